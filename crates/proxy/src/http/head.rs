//! The heads of messages: what is for this proxy alone is taken out (RFC 9110, section 7.6).

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};

/// Fields for the next hop, beside those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Turns a request for an absolute URL into one for its server. Returns the authority that it goes to.
///
/// # Errors
/// The status with which the request is answered here, because it has come as far as it may go, or names no
/// server.
pub(super) fn origin_form<B>(mut request: Request<B>) -> Result<(Authority, Request<B>), StatusCode> {
    if !may_go_on(&mut request) {
        let is_options = request.method() == Method::OPTIONS;
        return Err(if is_options { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED });
    }
    let authority = request.uri().authority().cloned().ok_or(StatusCode::BAD_REQUEST)?;
    let is_whole_server = request.method() == Method::OPTIONS && request.uri().path().is_empty();
    let path = match request.uri().path_and_query() {
        _ if is_whole_server => PathAndQuery::from_static("*"),
        // That of `http://host#part` is empty inside, and that of `http://host?a` begins with `?`.
        Some(path) => {
            let path = path.as_str();
            let root = if path.starts_with('/') { "" } else { "/" };
            format!("{root}{path}").parse().map_err(|_| StatusCode::BAD_REQUEST)?
        }
        None => PathAndQuery::from_static("/"),
    };
    // The URL counts, whatever the field says (RFC 9112, section 3.2.2). It never has a user in it.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    let host_field = HeaderValue::from_str(host).map_err(|_| StatusCode::BAD_REQUEST)?;
    let authority = host.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    *request.uri_mut() = Uri::from(path);
    let version = request.version();
    remove_hop_by_hop(request.headers_mut());
    add_via(request.headers_mut(), version);
    request.headers_mut().insert(HOST, host_field);
    *request.version_mut() = Version::HTTP_11;
    Ok((authority, request))
}

/// Takes out of an answer what is for this proxy alone.
pub(super) fn make_end_to_end<B>(response: &mut Response<B>) {
    let version = response.version();
    remove_hop_by_hop(response.headers_mut());
    add_via(response.headers_mut(), version);
    *response.version_mut() = Version::HTTP_11;
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // What is chunked has no other length (RFC 9112, section 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn add_via(headers: &mut HeaderMap, version: Version) {
    let via = if version == Version::HTTP_10 { "1.0 weft" } else { "1.1 weft" };
    headers.append(VIA, HeaderValue::from_static(via));
}

/// Counts down how far OPTIONS and TRACE go (RFC 9110, section 7.6.2). Returns false at the end.
fn may_go_on<B>(request: &mut Request<B>) -> bool {
    if !matches!(*request.method(), Method::OPTIONS | Method::TRACE) {
        return true;
    }
    let Some(value) = request.headers().get(MAX_FORWARDS) else { return true };
    match value.to_str().ok().and_then(|text| text.parse::<u32>().ok()) {
        Some(0) => false,
        Some(hops) => {
            request.headers_mut().insert(MAX_FORWARDS, HeaderValue::from(hops - 1));
            true
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Forwarded = Result<(Authority, Request<()>), StatusCode>;

    fn request(method: &str, url: &str, fields: &[(&str, &str)]) -> Forwarded {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        origin_form(request.body(()).unwrap())
    }

    #[test]
    fn a_request_loses_what_is_for_the_proxy_and_gets_the_host_of_its_url() {
        let fields = [
            ("host", "other.example"),
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("keep-alive", "300"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic Ym9iOmI="),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
            ("via", "1.1 first"),
        ];
        let (authority, request) = request("GET", "http://example.com:81/a?b=c", &fields).unwrap();
        assert_eq!(authority, "example.com:81");
        assert_eq!(request.uri(), "/a?b=c");
        let mut left: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [("accept", "*/*"), ("host", "example.com:81"), ("via", "1.1 first"), ("via", "1.1 weft")]
        );
    }

    #[test]
    fn the_url_is_made_relative() {
        for (method, url, path) in [
            ("GET", "http://example.com", "/"),
            ("GET", "http://example.com?x", "/?x"),
            ("GET", "http://example.com#x", "/"),
            ("GET", "http://example.com/#x", "/"),
            ("GET", "http://example.com?x#y", "/?x"),
            ("POST", "http://example.com/a//b#?x", "/a//b"),
            ("OPTIONS", "http://example.com/", "/"),
            ("GET", "http://user:password@example.com/", "/"),
        ] {
            let (authority, request) = request(method, url, &[]).unwrap();
            assert_eq!(
                (authority.as_str(), request.uri().path_and_query().map(PathAndQuery::as_str)),
                ("example.com", Some(path)),
                "{url}"
            );
            assert_eq!(request.headers()[HOST], "example.com");
        }
    }

    #[test]
    fn options_and_trace_go_as_far_as_they_may() {
        let (_, one) = request("OPTIONS", "http://example.com/", &[("max-forwards", "2")]).unwrap();
        assert_eq!(one.headers()[MAX_FORWARDS], "1");
        for (method, status) in [("OPTIONS", StatusCode::OK), ("TRACE", StatusCode::METHOD_NOT_ALLOWED)] {
            let answered = request(method, "http://example.com/", &[("max-forwards", "0")]);
            assert_eq!(answered.unwrap_err(), status);
        }
        assert!(request("GET", "http://example.com/", &[("max-forwards", "0")]).is_ok());
    }
}
