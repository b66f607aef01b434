//! Connections over a network whose hosts answer, refuse, or are silent.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weft_network::{Datagrams, Later, Listener, Stats, Stream};

use super::*;

/// Of RFC 8305, section 5.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses that end in 1 accept at once, in 2 refuse at once, in 3 accept after a second, and others are
/// silent. The name `all` has all of `addresses`.
#[derive(Default)]
struct Hosts {
    addresses: Vec<IpAddr>,
    attempts: Mutex<Vec<IpAddr>>,
    /// One for each attempt under way, and one.
    under_way: Arc<()>,
    most_under_way: AtomicUsize,
}

impl Network for Hosts {
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>> {
        self.attempts.lock().unwrap().push(to.ip());
        let under_way = Arc::clone(&self.under_way);
        self.most_under_way.fetch_max(Arc::strong_count(&under_way) - 1, Ordering::Relaxed);
        let text = to.ip().to_string();
        Box::pin(async move {
            let _under_way = under_way;
            match text.as_bytes().last() {
                Some(b'1') => {}
                Some(b'2') => return Err(io::ErrorKind::ConnectionRefused.into()),
                Some(b'3') => sleep(Duration::from_secs(1)).await,
                _ => std::future::pending().await,
            }
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let stream = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
            let connection: Box<dyn Connection> = Box::new(Stream::from(stream));
            Ok(connection)
        })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn udp(&self, _: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn look_up<'a>(&'a self, _: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>> {
        Box::pin(async { Ok(self.addresses.clone()) })
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// Connects to a name with these addresses. Returns the result, the time that it took, and the attempts.
async fn connect(addresses: &[&str]) -> (Result<(), ReachError>, Duration, Vec<String>) {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let hosts = Arc::new(Hosts { addresses, ..Hosts::default() });
    let network: Arc<dyn Network> = Arc::clone(&hosts) as Arc<dyn Network>;
    let allowed = ["192.0.2.0/24", "2001:db8::/32"].map(|it| it.parse().unwrap()).to_vec();
    let start = Instant::now();
    let result = Reach::new(network, vec![allowed], None).connect(&"all:80".parse().unwrap()).await.map(drop);
    let attempts = hosts.attempts.lock().unwrap().iter().map(ToString::to_string).collect();
    assert!(hosts.most_under_way.load(Ordering::Relaxed) <= 4, "each takes a socket");
    (result, start.elapsed(), attempts)
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_never_answers_fails_after_its_time() {
    let (result, took, _) = connect(&["192.0.2.9"]).await;
    assert_eq!(result.unwrap_err().to_string(), "all:80 did not answer within 30 s");
    assert_eq!(took.as_secs(), CONNECT_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn the_next_address_is_tried_at_once_after_a_refusal_and_soon_beside_a_silent_one() {
    let (result, took, _) = connect(&["192.0.2.2", "192.0.2.1"]).await;
    assert!(result.is_ok() && took < ATTEMPT_DELAY, "{took:?}");
    let (result, took, attempts) = connect(&["2001:db8::9", "2001:db8::8", "192.0.2.1"]).await;
    assert!(result.is_ok() && took < 2 * ATTEMPT_DELAY, "{took:?}");
    assert_eq!(attempts, ["2001:db8::9", "192.0.2.1"], "families alternate");
    let (result, took, _) = connect(&["192.0.2.3", "192.0.2.9"]).await;
    assert!(result.is_ok() && took.as_secs() == 1, "the first attempt goes on: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn if_all_addresses_refuse_the_first_reason_is_told() {
    let (result, _, attempts) = connect(&["192.0.2.2", "2001:db8::2"]).await;
    let error = result.unwrap_err();
    assert!(
        matches!(&error, ReachError::Connect(_, cause) if cause.kind() == io::ErrorKind::ConnectionRefused)
    );
    assert!(error.to_string().starts_with("cannot connect to all:80: "), "{error}");
    assert_eq!(attempts.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_16_addresses_of_a_name_are_tried_of_both_families() {
    let many: Vec<String> = (4..=250).map(|last| format!("2001:db8::{last}4")).collect();
    let mut addresses: Vec<&str> = many.iter().map(String::as_str).collect();
    addresses.extend(["192.0.2.4", "192.0.2.14"]);
    let (result, _, attempts) = connect(&addresses).await;
    assert!(matches!(result, Err(ReachError::Silent(_))));
    assert_eq!(attempts.len(), 16);
    assert!(attempts.contains(&"192.0.2.14".to_owned()), "{attempts:?}");
}

#[tokio::test(start_paused = true)]
async fn addresses_outside_the_tunnel_are_left_out() {
    let (result, _, attempts) = connect(&["198.51.100.1", "192.0.2.1", "127.0.0.1"]).await;
    assert!(result.is_ok());
    assert_eq!(attempts, ["192.0.2.1"]);
    let (result, _, attempts) = connect(&["198.51.100.1"]).await;
    assert!(matches!(result, Err(ReachError::Outside(_))));
    assert!(attempts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_name_does_not_lead_to_this_machine_by_an_address_mapped_into_ipv6() {
    let (result, _, attempts) = connect(&["::ffff:127.0.0.1", "::ffff:0.0.0.0"]).await;
    assert!(matches!(result, Err(ReachError::Own(_))), "{attempts:?}");
    let (result, _, attempts) = connect(&["::ffff:192.0.2.1"]).await;
    assert!(result.is_ok());
    assert_eq!(attempts, ["192.0.2.1"]);
}

#[test]
fn all_networks_of_a_peer_are_of_one_source_but_what_another_peer_has_of_them() {
    let networks = [&["10.1.0.0/16", "fd01::/64", "0.0.0.0/0"][..], &["10.1.2.0/24", "10.3.0.0/16"]];
    let allowed = networks.map(|peer| peer.iter().map(|it| it.parse().unwrap()).collect()).to_vec();
    let reach = Reach::new(Arc::new(Hosts::default()), allowed, None);
    let [many, fewer] = [["10.1.0.1", "fd01::1", "198.51.100.1"], ["10.1.2.1", "10.3.0.1", "10.3.0.2"]]
        .map(|addresses| addresses.map(|address| reach.source(address.parse().unwrap()).owner()));
    assert_eq!((many, fewer), ([many[0]; 3], [fewer[0]; 3]));
    assert_ne!(many[0], fewer[0]);
}

#[test]
fn a_tunnel_for_everything_has_no_addresses_of_this_machine() {
    let everything = ["0.0.0.0/0", "::/0"].map(|it| it.parse().unwrap()).to_vec();
    let network: Arc<dyn Network> = Arc::new(Hosts::default());
    let elsewhere = Elsewhere::new(Arc::clone(&network), vec![]);
    let reach = Reach::new(network, vec![everything], Some(elsewhere));
    let network_for = |text: &str| reach.network_for(text.parse().unwrap()).map(drop);
    for own in ["127.0.0.1", "127.255.0.1", "::1", "0.0.0.0", "::"] {
        assert!(matches!(network_for(own), Err(ReachError::Own(_))), "{own}");
    }
    assert!(network_for("198.51.100.1").is_ok() && network_for("2001:db8::1").is_ok());
}
