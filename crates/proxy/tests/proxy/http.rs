//! The HTTP proxy, with curl and with clients of the tests.

use std::convert::Infallible;
use std::process::Output;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use weft_lab::here;
use weft_proxy::{Options, Users};

use crate::support::*;

const PROXY: &str = "127.0.0.1:3128";

fn options() -> Options {
    Options {
        http: vec![PROXY.parse().unwrap()],
        socks5: vec!["127.0.0.1:1080".parse().unwrap()],
        ..Options::default()
    }
}

impl Lab {
    /// Serves HTTP on port 80: the answer's body is the request as the server saw it.
    fn serve_http(&self) {
        let bound = ["10.9.0.1:80", "[fd09::1]:80"].map(|at| {
            let listener = self.far.run(|| std::net::TcpListener::bind(at).unwrap());
            listener.set_nonblocking(true).unwrap();
            listener
        });
        for listener in bound {
            self.serve(&self.far, move || async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(show));
                    tokio::spawn(serving);
                }
            });
        }
    }

    fn curl(&self, arguments: &[&str]) -> Output {
        let mut command = self.host.command("curl");
        command.args(["--silent", "--show-error", "--noproxy", "", "--max-time", "100"]).args(arguments);
        let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        child.spawn().unwrap().wait_with_output().unwrap()
    }

    /// Runs curl, which has to succeed, and returns its output.
    #[track_caller]
    fn curl_output(&self, arguments: &[&str]) -> String {
        let output = self.curl(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

async fn show(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = format!("{} {} {:?}\n", request.method(), request.uri(), request.version());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let mut bytes = text.into_bytes();
    bytes.extend(request.into_body().collect().await.unwrap().to_bytes());
    Ok(Response::new(Full::new(bytes.into())))
}

#[test]
fn curl_gets_and_posts_through_each_proxy_and_over_both_families() {
    let Some(lab) = Lab::new() else { return };
    if !here::installed(&["curl"]) {
        return;
    }
    lab.serve_http();
    let _running = lab.proxy(options());
    for proxy in ["http://127.0.0.1:3128", "socks5://127.0.0.1:1080", "socks5h://127.0.0.1:1080"] {
        for url in ["http://10.9.0.1/a?b=c", "http://[fd09::1]/a?b=c"] {
            let shown = lab.curl_output(&["--proxy", proxy, url]);
            assert!(shown.starts_with("GET /a?b=c HTTP/1.1\n"), "{shown}");
            assert_eq!(shown.contains("via: 1.1 weft\n"), proxy.starts_with("http:"), "{shown}");
            // CONNECT, as for https.
            let tunnelled = lab.curl_output(&["--proxy", proxy, "--proxytunnel", url]);
            assert!(tunnelled.starts_with("GET /a?b=c HTTP/1.1\n") && !tunnelled.contains("via:"));
        }
    }
    let body = "x".repeat(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("body");
    std::fs::write(&path, &body).unwrap();
    let file = format!("@{}", path.display());
    let proxy = ["--proxy", "http://127.0.0.1:3128"];
    // With a length, in chunks, and with the client waiting for the server's permission to send.
    for more in [&[][..], &["--header", "Transfer-Encoding: chunked"], &["--header", "Expect: 100-continue"]]
    {
        let arguments = [&proxy, more, &["--data-binary", &file, "http://10.9.0.1/"]].concat();
        let shown = lab.curl_output(&arguments);
        assert!(shown.starts_with("POST / HTTP/1.1\n") && shown.ends_with(&format!("\n{body}")), "{more:?}");
    }
    let head = lab.curl_output(&[&proxy[..], &["--head", "http://10.9.0.1/"]].concat());
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("via: 1.1 weft"), "{head}");
    // One connection of the client, two servers.
    let urls = ["http://10.9.0.1/1", "http://10.9.0.1/2", "http://[fd09::1]/3", "http://10.9.0.1/4"];
    let shown = lab.curl_output(&[&proxy[..], &urls].concat());
    for path in ["GET /1 ", "GET /2 ", "GET /3 ", "GET /4 "] {
        assert!(shown.contains(path), "{shown}");
    }
}

#[test]
fn a_refusal_says_why() {
    let Some(lab) = Lab::new() else { return };
    if !here::installed(&["curl"]) {
        return;
    }
    let _running = lab.proxy(options());
    let ask = |url: &str, more: &[&str]| {
        let arguments = ["--proxy", "http://127.0.0.1:3128", "--write-out", "%{http_code} %{http_connect}"];
        let output = lab.curl(&[&arguments[..], more, &[url]].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    for (url, code, why) in [
        ("http://198.51.100.1/", "403", "198.51.100.1 is in the AllowedIPs of no peer"),
        ("http://127.0.0.1:7/", "403", "127.0.0.1 is an address of this machine itself"),
        ("http://10.9.0.1:9/", "502", "cannot connect to 10.9.0.1:9: "),
        (
            "http://www.example/",
            "502",
            "www.example cannot be looked up: there is no DNS server (add DNS = ADDRESS",
        ),
    ] {
        let answer = ask(url, &["--globoff"]);
        assert!(answer.contains(&format!("weft: {why}")) || answer.contains(why), "{url}: {answer}");
        assert!(answer.ends_with(&format!("{code} 000")), "{url}: {answer}");
    }
    assert_eq!(ask("http://10.9.0.1:9/", &["--proxytunnel"]), "000 502");
    assert_eq!(ask("http://198.51.100.1/", &["--proxytunnel"]), "000 403");
    // What a browser sends to a server, and not to a proxy.
    let direct =
        lab.curl_output(&["--noproxy", "*", "--write-out", "%{http_code}", "http://127.0.0.1:3128/"]);
    assert!(direct.starts_with("weft: this is a proxy") && direct.ends_with("400"), "{direct}");
}

#[test]
fn only_a_user_with_the_right_password_comes_in() {
    let Some(lab) = Lab::new() else { return };
    if !here::installed(&["curl"]) {
        return;
    }
    lab.serve_http();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    std::fs::write(&path, "ann:sec:ret\n").unwrap();
    let with_users = Options {
        users: Some(Users::read(&path).unwrap()),
        http: vec!["0.0.0.0:3128".parse().unwrap()],
        socks5: vec!["0.0.0.0:1080".parse().unwrap()],
        ..Options::default()
    };
    let _running = lab.proxy(with_users);
    for scheme in ["http://127.0.0.1:3128", "socks5h://127.0.0.1:1080"] {
        let ask = |user: &[&str], url: &str| lab.curl(&[&["--proxy", scheme], user, &[url]].concat());
        let shown = ask(&["--proxy-user", "ann:sec:ret"], "http://10.9.0.1/");
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(text.starts_with("GET / HTTP/1.1\n"), "{scheme}: {text}");
        assert!(!text.to_lowercase().contains("proxy-authorization"), "{text}");
        for wrong in [&[][..], &["--proxy-user", "ann:secret"], &["--proxy-user", "bob:sec:ret"]] {
            let shown = ask(wrong, "http://10.9.0.1/");
            assert!(!String::from_utf8(shown.stdout).unwrap().starts_with("GET"), "{scheme} {wrong:?}");
        }
    }
    let arguments = ["--proxy", "http://127.0.0.1:3128", "--include", "http://10.9.0.1/"];
    let shown = lab.curl_output(&arguments);
    assert!(shown.starts_with("HTTP/1.1 407 Proxy Authentication Required"), "{shown}");
    assert!(shown.contains("proxy-authenticate: Basic realm=\"weft\""), "{shown}");
}

/// Sends a request on a connection. Returns the status of the answer, or `None` if the proxy has hung up.
async fn status(stream: &mut TcpStream, request: &str) -> Option<String> {
    stream.write_all(request.as_bytes()).await.ok()?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).await.ok()?;
    head.split(' ').nth(1).map(str::to_owned)
}

#[test]
fn clients_with_wrong_requests_keep_no_client_out_and_give_way_before_those_that_may_come_in() {
    const CLIENTS: usize = 8;
    /// The user ann of the tests.
    const PASSWORD: &str = "Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n";
    let Some(lab) = Lab::new() else { return };
    lab.serve_http();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    std::fs::write(&path, "ann:secret\n").unwrap();
    let request = |url: &str, field: &str| format!("GET {url} HTTP/1.1\r\nHost: x\r\n{field}\r\n");
    let good = request("http://10.9.0.1/", PASSWORD);
    for (proxy, users, wrong, code) in [
        ("127.0.0.1:3128", Some(Users::read(&path).unwrap()), request("http://10.9.0.1/", ""), "407"),
        ("127.0.0.1:3129", None, request("/", ""), "400"),
        ("127.0.0.1:3130", None, request("http://:1/", ""), "400"),
    ] {
        let is_asked = users.is_some();
        let hour = Duration::from_secs(3600);
        let http = vec![proxy.parse().unwrap()];
        let options = Options { http, users, clients: CLIENTS, request_timeout: hour, ..Options::default() };
        let _running = lab.proxy(options);
        lab.client(async || {
            let mut known = TcpStream::connect(proxy).await.unwrap();
            assert_eq!(status(&mut known, &good).await.as_deref(), Some("200"));
            let mut strangers = Vec::new();
            for _ in 1..CLIENTS {
                let mut stranger = TcpStream::connect(proxy).await.unwrap();
                assert_eq!(status(&mut stranger, &wrong).await.as_deref(), Some(code), "{wrong}");
                strangers.push(stranger);
            }
            for round in 0..2 * CLIENTS {
                // Those that are left send another one.
                for stranger in &mut strangers {
                    status(stranger, &wrong).await;
                }
                let mut client = TcpStream::connect(proxy).await.unwrap();
                assert_eq!(status(&mut client, &good).await.as_deref(), Some("200"), "{wrong}");
                // While strangers have a quarter of the places, they give way before a client that waits.
                if is_asked && round < CLIENTS - 3 {
                    assert_eq!(status(&mut known, &good).await.as_deref(), Some("200"));
                }
            }
        });
    }
}

#[test]
fn half_a_request_and_an_oversized_head_are_turned_away() {
    let Some(lab) = Lab::new() else { return };
    lab.serve_http();
    let hasty = Options { request_timeout: Duration::from_millis(300), ..options() };
    let _running = lab.proxy(hasty);
    lab.client(async || {
        for half in ["", "GET", "GET http://10.9.0.1/ HTTP/1.1\r\nHost: 10.9."] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(half.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        }
        // A client that keeps its connection and sends nothing more loses it too.
        // On a busy machine a whole request may be late too: then it is made again.
        let mut answer = Vec::new();
        while !answer.starts_with(b"HTTP/1.1 200") {
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{answer:?}");
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(b"GET http://10.9.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            answer.clear();
            stream.read_to_end(&mut answer).await.unwrap();
        }
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        let long = format!("GET http://10.9.0.1/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000));
        let _ = stream.write_all(long.as_bytes()).await;
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 431");
        for garbage in [&b"\x16\x03\x01\x00\xff"[..], b"\0\0\0\0\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n"] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(garbage).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
        }
    });
}

#[test]
fn five_hundred_and_twelve_connections_at_once_get_their_own_content() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        let mut clients = JoinSet::new();
        for seed in 0..512 {
            clients.spawn(async move {
                let mut stream = TcpStream::connect(PROXY).await.unwrap();
                let to = if seed % 2 == 0 { "10.9.0.1:7" } else { "[fd09::1]:7" };
                let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\n") {
                    answer.push(stream.read_u8().await.unwrap());
                }
                assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
                check_echo(stream, seed, 100_000).await;
            });
        }
        clients.join_all().await;
    });
}

#[test]
fn what_a_client_sends_before_the_answer_to_its_connect_is_not_lost() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    lab.client(async || {
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        stream.write_all(b"CONNECT 10.9.0.1:7 HTTP/1.1\r\nHost: x\r\n\r\nearly").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nearly"), "{answer:?}");
    });
}

/// Returns what a client gets through the proxy from a server that sends these bytes.
fn through_proxy(lab: &Lab, sent: String) -> String {
    // A process that another test has just forked may still have the one before.
    let listener = lab.far.run(|| {
        weft_lab::wait_until_ok(|| {
            std::net::TcpListener::bind("10.9.0.1:81").map_err(|error| error.to_string())
        })
    });
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
    });
    let text = lab.client(async || {
        let mut stream = TcpStream::connect(PROXY).await.unwrap();
        let request = b"GET http://10.9.0.1:81/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    });
    server.join().unwrap();
    text
}

#[test]
fn an_answer_that_is_cut_off_is_not_taken_for_a_whole_one() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    for head in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        let text = through_proxy(&lab, format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhalf\n"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let is_whole = head.to_lowercase().contains("content-length: 10") && body.len() >= 10;
        assert!(!is_whole && !body.ends_with("0\r\n\r\n"), "{text}");
        assert!(head.to_lowercase().contains("content-length: 10") || head.contains("chunked"), "{text}");
    }
}

#[test]
fn the_length_of_a_chunked_answer_is_that_of_its_chunks() {
    let Some(lab) = Lab::new() else { return };
    let _running = lab.proxy(options());
    for length in [3, 100] {
        let head = format!("Content-Length: {length}\r\nTransfer-Encoding: chunked");
        let text = through_proxy(&lab, format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nwhole\r\n0\r\n\r\n"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.to_lowercase().contains("content-length"), "{text}");
        assert_eq!(body, "5\r\nwhole\r\n0\r\n\r\n");
    }
}

/// Serves on port 82 what the path of a request says: `/STATUS/COUNT` has as many informational answers
/// before one of 200, or no end of them without a count, and `/head` has a head without end.
fn serve_informational(lab: &Lab) {
    let listener = lab.far.run(|| std::net::TcpListener::bind("10.9.0.1:82").unwrap());
    listener.set_nonblocking(true).unwrap();
    lab.serve(&lab.far, move || async move {
        let listener = TcpListener::from_std(listener).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while let Some(path) = read_path(&mut stream).await {
                    let mut words = path.split('/').skip(1);
                    let (begin, one) = match words.next()? {
                        "head" => ("HTTP/1.1 200 OK\r\nX: ", "x".to_owned()),
                        status => ("", format!("HTTP/1.1 {status} Early\r\nLink: x\r\n\r\n")),
                    };
                    stream.write_all(begin.as_bytes()).await.ok()?;
                    match words.next().and_then(|count| count.parse().ok()) {
                        Some(count) => {
                            let answer =
                                one.repeat(count) + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell";
                            stream.write_all(answer.as_bytes()).await.ok()?;
                        }
                        None => while stream.write_all(one.repeat(10_000).as_bytes()).await.is_ok() {},
                    }
                }
                Some(())
            });
        }
    });
}

/// Reads the head of a request, and returns its path.
async fn read_path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).unwrap().split(' ').nth(1).map(str::to_owned)
}

#[test]
fn a_server_that_sends_informational_answers_without_end_is_given_up_and_holds_no_client_up() {
    /// Far more than any of it takes.
    const PATIENCE: Duration = Duration::from_secs(60);
    let Some(lab) = Lab::new() else { return };
    lab.serve_http();
    serve_informational(&lab);
    let _running = lab.proxy(options());
    let get = |path: &str| format!("GET http://10.9.0.1:82/{path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let within = async |stream: &mut TcpStream, request: &str| {
        tokio::time::timeout(PATIENCE, status(stream, request)).await.expect("an answer")
    };
    lab.client(async || {
        // On one connection to the server, and each on a new one: the count is that of one request.
        let mut kept = TcpStream::connect(PROXY).await.unwrap();
        for (path, code) in [
            ("100/0", "200"),
            ("100/16", "200"),
            ("103/16", "200"),
            ("100/17", "502"),
            ("103/17", "502"),
            ("100/2000", "502"),
            ("103/16", "200"),
        ] {
            let mut new = TcpStream::connect(PROXY).await.unwrap();
            for stream in [&mut kept, &mut new] {
                assert_eq!(within(stream, &get(path)).await.as_deref(), Some(code), "{path}");
            }
        }
        let mut flooded = Vec::new();
        for path in ["100", "103", "102", "199", "100", "103", "head"] {
            let mut stream = TcpStream::connect(PROXY).await.unwrap();
            stream.write_all(get(path).as_bytes()).await.unwrap();
            flooded.push(stream);
        }
        let mut other = TcpStream::connect(PROXY).await.unwrap();
        let answered = within(&mut other, "GET http://10.9.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(answered.as_deref(), Some("200"));
        for mut stream in flooded {
            assert_eq!(within(&mut stream, "").await.as_deref(), Some("502"));
        }
    });
}

#[test]
fn clients_that_have_closed_keep_no_client_out_whatever_they_wait_for() {
    const CLIENTS: usize = 4;
    /// Far more than an answer takes.
    const PATIENCE: Duration = Duration::from_secs(60);
    let Some(lab) = Lab::new() else { return };
    lab.serve_http();
    // The kernel accepts, and nothing is ever answered.
    let _silent = lab.far.run(|| std::net::TcpListener::bind("10.9.0.1:83").unwrap());
    let to_silent = [&[5, 1, 0, 5, 1, 0], &socks5_address(FAR_V4, 83)[..]].concat();
    let get = "GET http://10.9.0.1:83/ HTTP/1.1\r\nHost: x\r\n\r\n";
    let body = "POST http://10.9.0.1:83/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx";
    let connect = "CONNECT 10.9.0.1:83 HTTP/1.1\r\nHost: x\r\n\r\nx";
    // An address that never answers either.
    let pending = "CONNECT 10.9.0.77:83 HTTP/1.1\r\nHost: x\r\n\r\nx";
    let good = b"GET http://10.9.0.1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let to_http = [&[5, 1, 0, 5, 1, 0], &socks5_address(FAR_V4, 80)[..], good].concat();
    let _running = lab.proxy(Options {
        // Each has the same number of places.
        clients: 3 * CLIENTS,
        forwards: vec!["8000=10.9.0.1:83".parse().unwrap()],
        request_timeout: Duration::from_secs(3600),
        ..options()
    });
    lab.client(async || {
        for (proxy, sent, good) in [
            (PROXY, format!("{get}{get}").as_bytes(), Some(&good[..])),
            (PROXY, body.as_bytes(), Some(good)),
            (PROXY, connect.as_bytes(), Some(good)),
            (PROXY, pending.as_bytes(), Some(good)),
            ("127.0.0.1:1080", &to_silent, Some(&to_http)),
            // All places of the forward, again and again.
            ("127.0.0.1:8000", b"x", None),
        ] {
            let mut ended = Vec::new();
            for round in 0..2 * CLIENTS {
                // A closed one would be reset by an answer to it.
                let mut ending = TcpStream::connect(proxy).await.unwrap();
                ending.write_all(sent).await.unwrap();
                ending.shutdown().await.unwrap();
                ended.push(ending);
                let Some(good) = good.filter(|_| round >= CLIENTS) else { continue };
                let mut client = TcpStream::connect(proxy).await.unwrap();
                client.write_all(good).await.unwrap();
                let mut answer = Vec::new();
                let read = client.read_to_end(&mut answer);
                let _ = tokio::time::timeout(PATIENCE, read).await.expect("an answer");
                let answer = String::from_utf8_lossy(&answer).into_owned();
                assert!(answer.contains("HTTP/1.1 200"), "{proxy} {round}: {answer}");
            }
            let given_way = tokio::time::timeout(PATIENCE, ended[0].read_to_end(&mut Vec::new())).await;
            assert!(given_way.is_ok(), "{proxy}: the first one is disconnected");
        }
    });
}
