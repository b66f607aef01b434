//! Two tunnels of programs, one the peer of the other, over the loopback: no device, no namespace, no right.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use weft_embed::{Listener, OpenError, Settings, Tunnel, datagram};
use weft_tunnel::PrivateKey;

const BYTES: usize = 3 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The files of two ends that are peers of each other: the first one knows the second one's port.
fn files() -> [String; 2] {
    let [first, second] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    [
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24, fd09::1/64\n[Peer]\nPublicKey = {}\n\
             AllowedIPs = 10.9.0.2/32, fd09::2/128\nEndpoint = localhost:{port}\n",
            *first.to_base64(),
            second.public_key()
        ),
        format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {port}\nAddress = 10.9.0.2/24, fd09::2/64\n[Peer]\n\
             PublicKey = {}\nAllowedIPs = 10.9.0.1/32, fd09::1/128\n",
            *second.to_base64(),
            first.public_key()
        ),
    ]
}

fn parse(file: &str) -> Settings {
    Settings::parse(file).unwrap()
}

async fn pair() -> [Tunnel; 2] {
    let [first, second] = files();
    let second = Tunnel::open(parse(&second)).await.unwrap();
    [Tunnel::open(parse(&first)).await.unwrap(), second]
}

/// Sends back what arrives, to its end.
async fn echo(listener: Box<dyn Listener>) {
    let connection = listener.accept().await.unwrap();
    let (mut from, mut into) = tokio::io::split(connection);
    tokio::io::copy(&mut from, &mut into).await.unwrap();
    into.shutdown().await.unwrap();
}

async fn exchange(tunnel: &Tunnel, host: &str) {
    let connection = tunnel.connect(host, 7).await.unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|place| (place / 3) as u8).collect();
    let (mut from, mut into) = tokio::io::split(connection);
    let copy = sent.clone();
    let writing = tokio::spawn(async move {
        into.write_all(&copy).await.unwrap();
        into.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await.unwrap();
    writing.await.unwrap();
    assert!(received == sent, "{} of {BYTES} bytes", received.len());
}

#[tokio::test]
async fn connections_cross_in_both_families_and_datagrams_too() {
    let [client, server] = pair().await;
    assert_eq!(server.addresses().len(), 2);
    for host in ["10.9.0.2", "fd09::2"] {
        let at = SocketAddr::new(host.parse().unwrap(), 7);
        let echoing = tokio::spawn(echo(server.listen(at).unwrap()));
        exchange(&client, host).await;
        echoing.await.unwrap();
    }
    let [from, to] = [(&client, "10.9.0.1:53"), (&server, "10.9.0.2:53")]
        .map(|(tunnel, at)| tunnel.udp(at.parse().unwrap()).unwrap());
    datagram::send(&*from, b"ping", "10.9.0.2:53".parse().unwrap()).await.unwrap();
    let received = datagram::receive(&*to, 0).await.unwrap();
    assert_eq!(received, (b"ping".to_vec(), "10.9.0.1:53".parse().unwrap()));

    let peers = client.peers().await.unwrap();
    assert!(peers[0].last_handshake.is_some() && peers[0].rx_bytes > 2 * BYTES as u64, "{peers:?}");
    assert_eq!(client.stats().opened, 2);
}

#[tokio::test]
async fn a_tunnel_that_is_dropped_resets_its_connections_and_frees_its_port() {
    let [client, server] = pair().await;
    let listener = server.listen(([10, 9, 0, 2], 7).into()).unwrap();
    let mut connection = client.connect("10.9.0.2", 7).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    client.close().await;
    let told = timeout(PATIENCE, accepted.read(&mut [0])).await.expect("it is told").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::ConnectionReset, "the other end does not take it for the end of data");
    assert!(connection.read(&mut [0]).await.is_err(), "the stream outlives its tunnel");

    let port = server.peers().await.unwrap()[0].endpoint.unwrap().port();
    UdpSocket::bind(("0.0.0.0", port)).unwrap();
}

#[tokio::test]
async fn the_caller_may_run_a_tunnel_itself() {
    let [first, second] = files();
    let (server, driver) = Tunnel::open_in_runtime(parse(&second)).await.unwrap();
    let driving = tokio::spawn(driver);
    let client = Tunnel::open(parse(&first)).await.unwrap();
    let echoing = tokio::spawn(echo(server.listen(([10, 9, 0, 2], 7).into()).unwrap()));
    exchange(&client, "10.9.0.2").await;
    echoing.await.unwrap();
    drop(server);
    driving.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_leads_nowhere_fails_at_once() {
    let [client, server] = pair().await;
    let outside = client.connect("192.0.2.1", 7).await.err().unwrap();
    assert_eq!(outside.kind(), ErrorKind::NetworkUnreachable);
    let refused = client.connect("10.9.0.2", 7).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(client.connect("build.internal", 7).await.err().unwrap().to_string().contains("DNS = ADDRESS"));
    let foreign = client.listen(([10, 9, 0, 2], 7).into()).err().unwrap();
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    drop(server);
}

#[tokio::test]
async fn a_tunnel_that_cannot_be_says_why() {
    let [first, second] = files();
    let error = |text: &str| Settings::parse(text).unwrap_err().to_string();
    let misspelt = error(&first.replace("Address =", "Adress ="));
    assert!(misspelt.contains("the text:3") && misspelt.contains("Address"), "{misspelt}");
    let lacking = first.replace("Address = 10.9.0.1/24, fd09::1/64\n", "");
    assert!(matches!(Settings::parse(&lacking), Err(OpenError::Missing("Address"))));
    let unknown = Tunnel::open(parse(&first.replace("localhost", "no.such.invalid"))).await.unwrap_err();
    assert!(unknown.to_string().contains("no.such.invalid"), "{unknown}");
    let open = Tunnel::open(parse(&second)).await.unwrap();
    let twice = Tunnel::open(parse(&second)).await.unwrap_err();
    assert!(matches!(twice, OpenError::Sockets(_)), "{twice}");
    open.close().await;
    Tunnel::open(parse(&second)).await.unwrap();
}

#[tokio::test]
async fn the_example_fetches_a_page() {
    let [first, second] = files();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, first).unwrap();
    let server = Tunnel::open(parse(&second)).await.unwrap();
    let listener = server.listen(([10, 9, 0, 2], 80).into()).unwrap();
    let serving = tokio::spawn(async move {
        let mut connection = listener.accept().await.unwrap();
        let mut request = [0; 5];
        connection.read_exact(&mut request).await.unwrap();
        connection.write_all(b"the page").await.unwrap();
        connection.shutdown().await.unwrap();
        // To the end, which is no reset.
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).await.unwrap();
        request
    });
    let fetched = tokio::task::spawn_blocking(move || {
        Command::new(example()).arg(file).args(["10.9.0.2", "80", "/"]).output().unwrap()
    });
    let fetched = fetched.await.unwrap();
    let told = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert!(fetched.status.success(), "{told}");
    assert_eq!(fetched.stdout, b"the page");
    assert!(told.contains("bytes received"), "{told}");
    assert_eq!(&serving.await.unwrap(), b"GET /");
}

/// Cargo builds examples with the tests, into the folder beside them.
fn example() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let name = format!("examples/fetch{}", std::env::consts::EXE_SUFFIX);
    deps.parent().and_then(|deps| deps.parent()).unwrap().join(name)
}
