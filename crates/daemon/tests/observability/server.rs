//! What the server answers, to which clients, and when it refuses.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};
use weft_lab::{PATIENCE, Process, until, wait_until};

use crate::support::{ADDRESS, End, NAME, exchange, request, two_ends};

const METRICS: &[&str] = &["--metrics", ADDRESS];

#[test]
fn a_scrape_tells_what_the_tunnel_does() {
    let Some((a, b)) = two_ends() else { return };
    let friendly = "# friendly_name = the \"office\"\nPersistentKeepalive = 25";
    // Where it is served stands in the file.
    let conf = a.conf(&format!("# weft: Metrics = {ADDRESS}")) + &End::peer(&b, friendly);
    let running = a.up(&conf, &[]);
    // The other end is not there.
    let not_ready = a.get("/readyz");
    assert_eq!(not_ready.status, 503, "{not_ready:?}");
    assert!(not_ready.body.contains("the \"office\""), "{not_ready:?}");
    assert_eq!(a.get("/healthz").status, 200);
    let _other = b.up(&(b.conf("") + &End::peer(&a, "")), &[]);
    a.reach(&b);
    until("it is ready", || a.get("/readyz").status == 200);

    let scrape = wait_until("the counters are those of the tunnel", || {
        let scrape = a.get("/metrics");
        assert_eq!(scrape.status, 200);
        (scrape.sample("weft_ready{") == 1.0 && scrape.sample("weft_decrypted_packets_total{") > 0.0)
            .then_some(scrape)
    });
    assert!(
        scrape.head.to_lowercase().contains("content-type: text/plain; version=0.0.4"),
        "{}",
        scrape.head
    );
    let labels = format!(
        r#"{{interface="{NAME}",public_key="{}",allowed_ips="10.77.0.2/32",friendly_name="the \"office\""}}"#,
        b.public_key()
    );
    let sent = scrape.sample(&format!("wireguard_sent_bytes_total{labels}"));
    assert!(sent > 148.0 && scrape.sample(&format!("wireguard_received_bytes_total{labels}")) > 92.0);
    assert_eq!(sent, scrape.sample("weft_udp_sent_bytes_total{"));
    let handshake = scrape.sample(&format!("wireguard_latest_handshake_seconds{labels}"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 60.0..=now).contains(&handshake), "{handshake}");
    assert!(scrape.sample(r#"weft_handshakes_total{interface="weft0",outcome="completed"}"#) >= 1.0);
    let messages = |kind: &str| {
        scrape.sample(&format!(r#"weft_handshake_messages_sent_total{{interface="weft0",type="{kind}"}}"#))
    };
    assert!(messages("initiation") + messages("response") >= 1.0);
    assert!(scrape.sample("weft_staging_budget_bytes{") >= f64::from(2 << 20));
    assert!(scrape.sample("weft_turn_seconds_count{") > 0.0 && scrape.sample("weft_turn_seconds_sum{") > 0.0);
    assert!(scrape.sample("weft_udp_batch_datagrams_count{") > 0.0);
    assert!(
        scrape.sample("process_resident_memory_bytes{") > 1e6 && scrape.sample("process_open_fds{") > 5.0
    );
    // The stages of the first turn were looked at, and of each 64th since.
    assert!(scrape.body.contains("weft_stage_seconds_count{"), "{}", scrape.body);
    assert!(
        !scrape.body.contains(&*a.key.to_base64())
            && !a.get("/status.json").body.contains(&*a.key.to_base64())
    );

    let open = a.ask(
        ADDRESS.parse().unwrap(),
        &request("/metrics", ADDRESS, "Accept: application/openmetrics-text\r\n"),
    );
    assert!(open.head.to_lowercase().contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
    let status = a.get("/status.json").json();
    assert_eq!(status["peers"][0]["friendly_name"], "the \"office\"");
    assert_eq!(status["unready"].as_array().unwrap().len(), 0);
    running.stop();
}

#[test]
fn requests_that_could_do_harm_are_refused() {
    let Some((a, _)) = two_ends() else { return };
    let _running = a.up(&a.conf("# weft: MetricsHost = gw.example"), METRICS);
    let address: SocketAddr = ADDRESS.parse().unwrap();
    for (host, status) in [
        (ADDRESS, 200),
        ("localhost:9586", 200),
        ("gw.example:9586", 200),
        ("evil.example", 421),
        ("evil.example:9586", 421),
    ] {
        let answer = a.ask(address, &request("/metrics", host, ""));
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
    let post =
        format!("POST / HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!(a.ask(address, &post).status, 405);
    let head = format!("HEAD /metrics HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: close\r\n\r\n");
    let head = a.ask(address, &head);
    assert!(head.status == 200 && head.body.is_empty() && head.head.contains("content-length"), "{head:?}");
    // A head without an end, and one that is no request.
    let long = format!("GET / HTTP/1.1\r\nHost: {ADDRESS}\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let stream = || a.namespace.run(|| TcpStream::connect(address).unwrap());
    let mut hostile = stream();
    hostile.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close before all of it is written.
    let _ = hostile.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = hostile.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let mut nonsense = stream();
    nonsense.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(exchange(&mut nonsense, "\u{0}\u{1}\r\n\r\n").status, 400);
}

/// If each of so many silent clients kept its place for the time limit of 20 s, 32 at a time, the last one
/// would be served after ten minutes: later than [`PATIENCE`].
const MANY_CLIENTS: usize = 1000;

/// A client from this address that does not end what it begins: it says nothing, sends a part of a request,
/// or asks for something and then for nothing more.
fn slow_client(from: Ipv4Addr, number: usize) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from.into(), 0).into())?;
    socket.connect_timeout(&ADDRESS.parse::<SocketAddr>().unwrap().into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    let half = format!("GET /metrics HTTP/1.1\r\nHost: {ADDRESS}\r\n");
    // It may have lost its place already.
    let _ = match number % 3 {
        0 => Ok(()),
        1 => stream.write_all(half.as_bytes()),
        _ => stream.write_all(format!("{half}\r\n").as_bytes()),
    };
    Ok(stream)
}

/// Whether the server has closed the connection of this client.
fn has_lost_its_place(client: &mut TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    match client.read(&mut [0; 4096]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// Whether `/healthz` answers, time and again.
#[track_caller]
fn assert_healthy(a: &End) {
    for _ in 0..10 {
        let answer = a.get("/healthz");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn health_is_told_beside_a_thousand_slow_clients() {
    let Some((a, _)) = two_ends() else { return };
    let _running = a.up(&a.conf(""), METRICS);
    let from_one = |_| Ipv4Addr::LOCALHOST;
    let from_many = |number: usize| Ipv4Addr::from(0x7f01_0001 + u32::try_from(number).unwrap());
    let sources: [fn(usize) -> Ipv4Addr; 2] = [from_one, from_many];
    for source in sources {
        let connect = |number| slow_client(source(number), number).unwrap();
        let slow: Vec<TcpStream> = a.namespace.run(|| (0..MANY_CLIENTS).map(connect).collect());
        assert_healthy(&a);
        drop(slow);
    }
}

#[test]
fn health_is_told_beside_a_host_that_takes_every_place_again_and_again() {
    let Some((a, _)) = two_ends() else { return };
    let _running = a.up(&a.conf(""), METRICS);
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            a.namespace.run(|| {
                let connect = |number| slow_client(Ipv4Addr::new(127, 0, 0, 9), number).unwrap();
                let mut clients: Vec<TcpStream> = (0..MANY_CLIENTS).map(connect).collect();
                has_begun.store(true, Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    for (number, client) in clients.iter_mut().enumerate() {
                        if has_lost_its_place(client) {
                            *client = connect(number);
                        }
                    }
                }
            });
        });
        let check = || {
            until("every place is taken", || has_begun.load(Ordering::Relaxed));
            assert_healthy(&a);
        };
        let checked = catch_unwind(AssertUnwindSafe(check));
        is_over.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[test]
fn a_socket_in_the_file_system_is_its_owners_and_goes_at_the_end() {
    let Some((a, _)) = two_ends() else { return };
    let path = a.directory.path().join("weft0.metrics");
    let running = a.up(&a.conf(""), &["--metrics", &format!("unix:{}", path.display())]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = exchange(UnixStream::connect(&path).unwrap(), &request("/metrics", "anything.example", ""));
    assert!(answer.status == 200 && answer.body.contains("weft_build_info{"), "{answer:?}");
    running.stop();
    assert!(!path.exists());
}

#[test]
fn an_address_that_cannot_be_had_ends_the_start_before_anything_is_done() {
    let Some((a, _)) = two_ends() else { return };
    let _taken = a.namespace.run(|| std::net::TcpListener::bind(ADDRESS).unwrap());
    a.write(&a.conf("PreUp = touch %i.was-here"));
    let long = format!("unix:{}/{}", a.directory.path().display(), "x".repeat(100));
    let file = a.file();
    for (address, code, said) in [
        (ADDRESS, 1, "another program listens there"),
        (&long, 2, "at most 107"),
        ("nonsense", 2, "127.0.0.1:9586"),
    ] {
        let mut command = a.weft(&["up", file.to_str().unwrap(), "--metrics", address]);
        let output = command.current_dir(a.directory.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(said) && stderr.contains(address), "{stderr}");
    }
    assert!(!a.directory.path().join("weft0.was-here").exists());
}

#[test]
fn a_reload_moves_the_server() {
    let Some((a, _)) = two_ends() else { return };
    let running = a.up(&a.conf(&format!("# weft: Metrics = {ADDRESS}")), &[]);
    assert_eq!(a.get("/healthz").status, 200);
    let file = a.file();
    let reload_with = |more: &[&str], code: i32| {
        let output = a.weft(&[&["reload", file.to_str().unwrap()], more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let reload = || reload_with(&[], 0);
    let status = || String::from_utf8(a.weft(&["status", "weft0"]).output().unwrap().stdout).unwrap();
    let other: SocketAddr = "127.0.0.1:9587".parse().unwrap();
    a.write(&a.conf("# weft: Metrics = 127.0.0.1:9587"));
    assert!(reload().contains("serve metrics on 127.0.0.1:9587"));
    assert_eq!(a.ask(other, &request("/healthz", "127.0.0.1", "")).status, 200);
    assert!(a.namespace.run(|| TcpStream::connect(ADDRESS)).is_err());
    // An address in use leaves the server where it is, and is reported.
    let taken = a.namespace.run(|| std::net::TcpListener::bind(ADDRESS).unwrap());
    a.write(&a.conf(&format!("# weft: Metrics = {ADDRESS}")));
    let foreseen = reload_with(&["--dry-run"], 1);
    assert!(foreseen.contains("another program listens there"), "{foreseen}");
    for _ in 0..2 {
        let said = reload_with(&[], 1);
        assert!(said.contains("another program listens there"), "{said}");
        assert!(!said.lines().any(|line| line.starts_with("serve metrics")), "{said}");
        assert!(status().contains("another program listens there"), "{}", status());
        assert_eq!(a.ask(other, &request("/healthz", "127.0.0.1", "")).status, 200);
    }
    // Once it is free the same file moves it there.
    drop(taken);
    assert!(reload().contains(&format!("serve metrics on {ADDRESS}")));
    assert!(!status().contains("another program listens there"), "{}", status());
    assert_eq!(a.get("/healthz").status, 200);
    assert!(a.namespace.run(|| TcpStream::connect(other)).is_err());
    a.write(&a.conf(""));
    reload();
    assert!(a.namespace.run(|| TcpStream::connect(ADDRESS)).is_err());
    running.stop();
}

#[test]
fn a_reload_changes_the_names_that_requests_may_be_for_without_a_new_socket() {
    let Some((a, _)) = two_ends() else { return };
    let served = format!("# weft: Metrics = {ADDRESS}");
    let running = a.up(&a.conf(&format!("{served}\n# weft: MetricsHost = old.example")), &[]);
    let mut stream = a.namespace.run(|| TcpStream::connect(ADDRESS).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut status_of = |host: &str| {
        stream.write_all(format!("HEAD /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!((status_of("old.example"), status_of("new.example")), ("200".to_owned(), "421".to_owned()));
    a.write(&a.conf(&format!("{served}\n# weft: MetricsHost = new.example")));
    let file = a.file();
    let output = a.weft(&["reload", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((status_of("old.example"), status_of("new.example")), ("421".to_owned(), "200".to_owned()));
    running.stop();
}

#[test]
fn a_socket_of_the_service_manager_is_served_whatever_a_reload_says() {
    let Some((a, _)) = two_ends() else { return };
    let listener = a.namespace.run(|| std::net::TcpListener::bind(ADDRESS).unwrap());
    let running = a.up_with_socket(&a.conf(""), listener);
    assert_eq!(a.get("/healthz").status, 200);
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let named = || a.ask(address, &request("/healthz", "gw.example", "")).status;
    assert_eq!(named(), 421);
    let file = a.file();
    for (settings, status) in [
        ("# weft: MetricsHost = gw.example", 200),
        ("# weft: Metrics = 127.0.0.1:9587\n# weft: MetricsHost = gw.example", 200),
        ("", 421),
    ] {
        a.write(&a.conf(settings));
        let output = a.weft(&["reload", file.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(a.get("/healthz").status, 200, "{settings}");
        assert_eq!(named(), status, "{settings}");
        assert!(a.namespace.run(|| TcpStream::connect("127.0.0.1:9587")).is_err(), "{settings}");
    }
    running.stop();
}

#[test]
fn ten_thousand_peers_are_told_of_in_bounded_memory() {
    let Some((a, _)) = two_ends() else { return };
    let count = 10_000;
    let running = a.up(&(a.conf("Table = off") + &End::silent_peers(count)), METRICS);
    let get = |path: &str| a.get(path);
    let resident = || get("/metrics?peers=off").sample("process_resident_memory_bytes{");
    let before = resident();
    let scrape = get("/metrics");
    assert_eq!(scrape.sample("weft_peers{"), f64::from(count));
    let samples = scrape.body.lines().filter(|line| line.starts_with("wireguard_sent_bytes_total{")).count();
    assert_eq!(samples, count as usize);
    let without = get("/metrics?peers=off");
    assert!(without.body.len() < 100_000 && without.sample("weft_peers{") == f64::from(count));
    let status = get("/status.json?peers=100");
    assert_eq!(status.json()["peers"].as_array().unwrap().len(), 100);
    assert!(status.body.len() < 200_000);
    // Clients that do not take their answers cost no more than a few of them would, also where each asks for
    // a separate look at the interface.
    let uptime = || {
        let status = get("/status.json?peers=off");
        status.json()["uptime_ms"].as_u64().unwrap()
    };
    let slow: Vec<TcpStream> = (0..30)
        .map(|number| {
            let before = uptime();
            let mut stream = a.namespace.run(|| TcpStream::connect(ADDRESS).unwrap());
            let path = if number % 2 == 0 { "/metrics" } else { "/status.json" };
            stream.write_all(request(path, ADDRESS, "").as_bytes()).unwrap();
            until("the next look at the interface", || uptime() > before);
            stream
        })
        .collect();
    assert_eq!(a.get("/healthz").status, 200);
    let peak = running.peak_memory_kib().unwrap() as f64 * 1024.0;
    println!("10,000 peers: a scrape has {} bytes; resident {before}, at most {peak}", scrape.body.len());
    // A separate answer and report for each would be 500 MB.
    assert!(peak - before < 150e6, "{before} became {peak}");
    drop(slow);
    running.stop();
}

#[test]
fn an_interface_for_wg_is_watched_as_well() {
    let Some((a, _)) = two_ends() else { return };
    let arguments = ["run", "-f", "weftmetrics", "--metrics", ADDRESS, "--metrics-host", "gw"];
    let process = Process::start(&a.namespace, a.weft(&arguments)).unwrap();
    wait_until("it serves", || a.namespace.run(|| TcpStream::connect(ADDRESS)).ok());
    let answer = a.ask(ADDRESS.parse().unwrap(), &request("/readyz", "gw", ""));
    assert!(answer.status == 503 && answer.body.contains("no private key"), "{answer:?}");
    process.signal(Signal::SIGTERM);
}
