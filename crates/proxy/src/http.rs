//! The HTTP proxy (RFC 9110, RFC 9112): CONNECT, and requests for absolute URLs.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION};
use hyper::http::uri::Scheme;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use weft_ipc::Place;

use crate::access::Users;
use crate::destination::Destination;
use crate::gone::LINGER;
use crate::moves::Moves;
use crate::proxy::Proxy;
use crate::reach::ReachError;
use crate::relay::relay;
use buffers::{Buffers, SMALL, charge_fields};
use first::First;
use upstream::{MAX_INFORMATIONAL, Upstream};
use weft_network::{Connection, Later, LookUpError};

mod buffers;
mod first;
mod head;
mod upstream;

/// The largest head, and the most that is kept of a body. Browsers send less than 16 KiB, with all cookies.
/// Without the password, and where the budget has no room, it is [`SMALL`].
const MAX_HEAD: usize = 32 * 1024;
const PORT: u16 = 80;

type Body = BoxBody<Bytes, hyper::Error>;

/// What the requests of one client share.
struct Client {
    place: Arc<Place>,
    proxy: Arc<Proxy>,
    /// The connection of the last request, for the next one to the same server.
    kept: Mutex<Option<Upstream>>,
    /// The connection that CONNECT opened, until the client has its answer.
    connected: Mutex<Option<Box<dyn Connection>>>,
    /// The bytes that were read of the client.
    read: Arc<AtomicU64>,
    /// Its last request was CONNECT, or has a body.
    has_more: AtomicBool,
}

/// Why a request has no answer of a server.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("a user and a password are required")]
    Password,
    #[error("too many requests wait for one with this many fields; try again")]
    Busy,
    #[error("{0}")]
    Request(&'static str),
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error("{0} failed: {1}")]
    Server(Destination, hyper::Error),
    #[error(
        "{0} sent more than {MAX_INFORMATIONAL} informational answers (1xx) to a request, and no other one"
    )]
    Informational(Destination),
}

/// Serves the requests of a client until it hangs up, or relays it after CONNECT.
pub(crate) async fn serve(mut client: Box<dyn Connection>, place: Arc<Place>, proxy: Arc<Proxy>) {
    let most = if proxy.users.is_some() { SMALL } else { MAX_HEAD };
    let first = First::read(&mut *client, most, proxy.unadmitted());
    let first = match timeout(proxy.request_timeout, first).await {
        Ok(Ok(first)) => first,
        Ok(Err(error)) => return tracing::debug!("a client of the HTTP proxy has gone: {error}"),
        Err(_) => return tracing::debug!("a client of the HTTP proxy sent no request in time"),
    };
    let state = Client {
        place,
        proxy,
        kept: Mutex::default(),
        connected: Mutex::default(),
        read: Arc::default(),
        has_more: AtomicBool::new(false),
    };
    let proxy = Arc::clone(&state.proxy);
    let (state, client) = match serve_requests(client, first, state).await {
        Ok(Some(served)) => served,
        Ok(None) => return tracing::debug!("a client of the HTTP proxy has gone before its answer"),
        Err(error) if error.is_parse() => {
            let reason = format!("it does not speak HTTP ({error}); for SOCKS5 there is the option --socks5");
            return proxy.refusals.report("a client of the HTTP port", &reason);
        }
        Err(error) => return tracing::debug!("a client of the HTTP proxy has gone: {error}"),
    };
    let Some(remote) = lock(&state.connected).take() else { return };
    let (client, first) = client;
    if let (_, Err(error)) = relay(client, remote, first, &proxy.relayed).await {
        tracing::debug!("a connection of the HTTP proxy failed: {error}");
    }
}

type Rest = (Box<dyn Connection>, Vec<u8>);

/// Answers requests until the client has sent its last one. Returns the connection, and what the client sent
/// after that request; `None` if the client has gone.
async fn serve_requests(
    client: Box<dyn Connection>,
    first: First,
    state: Client,
) -> hyper::Result<Option<(Arc<Client>, Rest)>> {
    let state = Arc::new(state);
    let buffers = state.buffers(&first);
    let shared = Arc::clone(&state);
    let service = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&shared);
        let has_more = request.method() == Method::CONNECT || !request.body().is_end_stream();
        state.has_more.store(has_more, Relaxed);
        // Pinned, since hyper is asked for the connection back.
        Box::pin(async move { Ok::<_, Infallible>(state.answer(request).await) })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(state.proxy.request_timeout)
        .max_buf_size(buffers.bytes);
    builder.max_header_size(buffers.bytes);
    // The case of names means nothing, but some servers behave as if it did.
    builder.preserve_header_case(true).auto_date_header(false);
    let ended = client.ended();
    let client = first.before(client, Arc::clone(&state.read));
    let mut connection = builder.serve_connection(TokioIo::new(client), service);
    tokio::select! {
        biased;
        served = poll_fn(|cx| connection.poll_without_shutdown(cx)) => served?,
        () = state.gone(ended) => return Ok(None),
    }
    let parts = connection.into_parts();
    let (unread, client) = parts.io.into_inner().into_parts();
    Ok(Some((state, (client, [&parts.read_buf, &unread[..]].concat()))))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Waits until the client has ended its side, and nothing more of it is passed on. hyper sees the end
    /// only after all that was sent before it.
    async fn gone(&self, ended: Later<'static, ()>) {
        ended.await;
        while self.has_more.load(Relaxed) {
            let read = self.read.load(Relaxed);
            sleep(LINGER).await;
            if self.read.load(Relaxed) == read {
                break;
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        // A refusal waits for nothing: a client that sends requests ahead would keep the thread busy.
        yield_now().await;
        let is_head = request.method() == Method::HEAD;
        let answered = match self.admit(request).await {
            Ok(request) if request.method() == Method::CONNECT => match self.connect(request).await {
                // `serve` goes on with the client, which keeps its place.
                Ok(connected) => return connected,
                refused => refused,
            },
            Ok(request) => self.forward(request).await,
            Err(refusal) => Err(refusal),
        };
        let response = answered.unwrap_or_else(|refusal| {
            if !matches!(refusal, Refusal::Password | Refusal::Request(_)) {
                self.proxy.refusals.report("an HTTP client", &refusal);
            }
            refusal.response(is_head)
        });
        let place = Arc::clone(&self.place);
        response.map(|body| Answer { body, place }.boxed())
    }

    /// Returns the buffers for a client that begins with this: the smallest where it will not need others.
    fn buffers(&self, first: &First) -> Buffers {
        let has_password =
            |users: &Users| first.field(&PROXY_AUTHORIZATION).is_some_and(|value| users.admit_basic(value));
        if !self.proxy.users.as_ref().is_none_or(has_password) {
            return Buffers::take(self.proxy.unadmitted(), SMALL);
        }
        let is_small = first.is_connect() && first.bytes().len() <= SMALL;
        Buffers::take(&self.proxy.heads, if is_small { SMALL } else { MAX_HEAD })
    }

    /// Returns the request if the client may make it, and tells its place. Where it has to wait with a wrong
    /// password, nothing of it is kept.
    async fn admit(&self, request: Request<Incoming>) -> Result<Request<Incoming>, Refusal> {
        let Some(users) = &self.proxy.users else { return Ok(request) };
        let given = request.headers().get(PROXY_AUTHORIZATION).ok_or(Refusal::Password)?;
        let waiting = charge_fields(request.headers(), self.proxy.unadmitted()).ok_or(Refusal::Busy)?;
        let (guesses, source) = (&self.proxy.guesses, self.place.source());
        guesses.turn(source).await;
        if users.admit_basic(given.as_bytes()) {
            self.place.admit();
            return Ok(request);
        }
        drop((request, waiting));
        guesses.wrong(source).await;
        Err(Refusal::Password)
    }

    /// Opens a connection; once the client has the answer, `serve` relays both.
    async fn connect(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        const WRONG: Refusal = Refusal::Request("CONNECT needs HOST:PORT");
        let authority = request.uri().authority().ok_or(WRONG)?;
        let destination = authority.as_str().parse().map_err(|_| WRONG)?;
        drop(request);
        self.place.begin_serving();
        let remote = self.proxy.reach.connect(&destination).await?;
        let remote = Moves::of_remote(remote, &self.place);
        *lock(&self.connected) = Some(remote);
        Ok(Response::new(text(String::new())))
    }

    /// Passes a request on, and its answer back.
    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        if request.uri().scheme() != Some(&Scheme::HTTP) {
            return Err(Refusal::Request(
                "this is a proxy: it takes requests for http:// URLs, and CONNECT for everything else",
            ));
        }
        let (authority, mut request) = match head::origin_form(request) {
            Ok(forwarded) => forwarded,
            Err(status) => return Ok(empty(status)),
        };
        let destination = Destination::with_default_port(authority.as_str(), Some(PORT))
            .map_err(|_| Refusal::Request("the URL names no host and port that can be connected to"))?;
        let _waiting = charge_fields(request.headers(), &self.proxy.requests).ok_or(Refusal::Busy)?;
        // Wrong requests win a client no time.
        self.place.begin_serving();
        if let Some(mut kept) = self.kept_for(&destination).await {
            kept.count_for(&mut request);
            match kept.sender.try_send_request(request).await {
                Ok(response) => return self.finish(kept, response),
                // The server closed the connection before it had any of the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(kept.refusal(error.into_error())),
                },
            }
        }
        let remote = self.proxy.reach.connect(&destination).await?;
        let remote = Moves::of_remote(remote, &self.place);
        let buffers = Buffers::take(&self.proxy.heads, MAX_HEAD);
        let mut server = Upstream::open(destination, remote, buffers).await?;
        server.count_for(&mut request);
        match server.sender.send_request(request).await {
            Ok(response) => self.finish(server, response),
            Err(error) => Err(server.refusal(error)),
        }
    }

    async fn kept_for(&self, destination: &Destination) -> Option<Upstream> {
        let mut kept = lock(&self.kept).take()?;
        (kept.destination == *destination && kept.sender.ready().await.is_ok()).then_some(kept)
    }

    fn finish(&self, server: Upstream, mut response: Response<Incoming>) -> Result<Response<Body>, Refusal> {
        if server.is_over_limit() {
            return Err(Refusal::Informational(server.destination));
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // No request asks for it: `Upgrade` is not passed on.
            return Ok(empty(StatusCode::BAD_GATEWAY));
        }
        *lock(&self.kept) = Some(server);
        head::make_end_to_end(&mut response);
        Ok(response.map(|body| body.boxed()))
    }
}

/// The body of an answer. After its end the client is waited for: between requests it gives way.
struct Answer {
    body: Body,
    place: Arc<Place>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // The end of the answer may still wait for the client.
        self.place.expect_progress();
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Password => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Reach(ReachError::Outside(_) | ReachError::Own(_) | ReachError::Near(..)) => {
                StatusCode::FORBIDDEN
            }
            Self::Reach(ReachError::Silent(_) | ReachError::Name(LookUpError::NoAnswer { .. })) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Reach(ReachError::Connect(_, error)) if error.kind() == io::ErrorKind::TimedOut => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Reach(ReachError::Name(_) | ReachError::Connect(..))
            | Self::Server(..)
            | Self::Informational(_) => StatusCode::BAD_GATEWAY,
        }
    }

    fn response(&self, is_head: bool) -> Response<Body> {
        let body = if is_head { String::new() } else { format!("weft: {self}\n") };
        let mut response = Response::new(text(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if matches!(self, Self::Password) {
            headers.insert(PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"weft\""));
            // One head is all that is kept of a client without the password.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn text(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(text(String::new()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
