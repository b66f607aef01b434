//! The HTTP server: one thread, few concurrent clients, and short time limits.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use weft_config::SAYS_ALL;
use weft_config::metrics::{Address, HostName, MetricsConfig};
use weft_ipc::{Place, ServerThread, Source, serve_each};

use super::answer::Site;
use super::hosts::Hosts;
use super::impatient::Impatient;
use super::listener::ListenerSocket;
use super::sampler::TakeReport;
use super::{ListenError, Listener};

/// Maximum number of concurrent clients.
const CLIENTS: usize = 32;
/// Time limit for the head of a request, and for the silence before the next request: longer than a usual
/// scrape interval of 15 s.
const IDLE: Duration = Duration::from_secs(20);
/// Age at which a connection is closed after the current answer.
const AGE: Duration = Duration::from_secs(120);
/// Time limit for sending that last answer.
const LAST_ANSWER: Duration = Duration::from_secs(15);
/// Maximum bytes of the head of a request.
const MAX_HEAD: usize = 16 << 10;
/// One thread for the snapshot in progress, one for formatting the last snapshot.
const WORKERS: usize = 2;

/// Serves the metrics of an interface. Dropping it ends the connections and the thread.
pub struct Server {
    address: Address,
    is_inherited: bool,
    site: Arc<Site>,
    _thread: ServerThread,
}

impl Server {
    /// Serves what `take_report` returns, in a dedicated thread. `hosts` are names that requests may use,
    /// besides those that every machine has.
    ///
    /// # Errors
    /// When no thread or no runtime can be started.
    pub fn start(
        listener: Listener,
        hosts: &[HostName],
        take_report: Arc<TakeReport>,
    ) -> Result<Self, ListenError> {
        let Listener { address, is_inherited, socket } = listener;
        let at = address.clone();
        let failed = move |source: io::Error| ListenError::Io { address: at.clone(), source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WORKERS)
            .build()
            .map_err(&failed)?;
        let hosts = match &socket {
            ListenerSocket::Tcp(_) => Hosts::named(hosts),
            ListenerSocket::Local(_) => Hosts::any(),
        };
        let site = Arc::new(Site::new(take_report, hosts));
        let served = Arc::clone(&site);
        let thread = ServerThread::start("weft-metrics", runtime, async move || {
            accept(socket, served).await;
        });
        let thread = thread.map_err(failed)?;
        let scheme = if matches!(address, Address::Tcp(_)) { "http://" } else { "" };
        tracing::info!(name: SAYS_ALL, %address, "metrics on {scheme}{address}");
        Ok(Self { address, is_inherited, site, _thread: thread })
    }

    /// Reports whether it serves at the address in `config`, or at a socket from the service manager, which
    /// takes precedence.
    pub fn is_at_place(&self, config: &MetricsConfig) -> bool {
        self.is_inherited || config.address.as_ref() == Some(&self.address)
    }

    /// Returns the address at which it serves.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Reports whether the service manager opened its socket.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Replaces the names that requests may use, from the next request on.
    pub fn allow(&self, hosts: &[HostName]) {
        self.site.allow(hosts);
    }
}

async fn accept(socket: ListenerSocket, site: Arc<Site>) {
    // Adopting a socket fails only in a runtime without I/O.
    match socket {
        ListenerSocket::Tcp(socket) => {
            let Ok(socket) = TcpListener::from_std(socket) else { return };
            let next = async || {
                let (stream, client) = socket.accept().await?;
                // Otherwise an answer may wait for an acknowledgement (Nagle's algorithm).
                let _ = stream.set_nodelay(true);
                Ok((stream, Source::from(client.ip())))
            };
            serve_each("metrics", CLIENTS, next, |stream, place| serve(stream, Arc::clone(&site), place))
                .await;
        }
        ListenerSocket::Local(socket) => {
            let Ok(socket) = socket.acceptor() else { return };
            let next = async || socket.accept().await;
            serve_each("metrics", CLIENTS, next, |stream, place| serve(stream, Arc::clone(&site), place))
                .await;
        }
    }
}

fn serve<S>(stream: S, site: Arc<Site>, place: Arc<Place>) -> impl Future<Output = ()> + Send + 'static
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Impatient::new(stream, Arc::clone(&place));
    let answer = service_fn(move |request| {
        let (site, place) = (Arc::clone(&site), Arc::clone(&place));
        async move {
            place.begin_serving();
            let answer = site.answer(&request, &place).await;
            place.expect_progress();
            Ok::<_, Infallible>(answer)
        }
    });
    async move {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), answer);
        let mut connection = pin!(connection);
        tokio::select! {
            // Errors are left for the client to notice.
            _ = &mut connection => return,
            () = sleep(AGE) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_ANSWER, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;
    use weft_ipc::Places;
    use weft_report::control_socket::ManageError;
    use weft_report::{PeerReport, StatusReport};

    /// A gateway with many peers.
    fn gateway() -> Result<StatusReport, ManageError> {
        let peer = |i| PeerReport { public_key: format!("key{i}"), ..PeerReport::default() };
        Ok(StatusReport { peers: (0..2000).map(peer).collect(), ..StatusReport::default() })
    }

    /// The way to a server of that gateway.
    struct Running(mpsc::UnboundedSender<(DuplexStream, Source)>);

    /// Runs `work` with such a server.
    async fn serving(work: impl AsyncFnOnce(Running)) {
        let site = Arc::new(Site::new(Arc::new(gateway), Hosts::named(&[])));
        let (sender, mut clients) = mpsc::unbounded_channel();
        let next = async || clients.recv().await.ok_or(io::ErrorKind::NotConnected.into());
        tokio::select! {
            _ = serve_each("metrics", CLIENTS, next, |stream, place| serve(stream, Arc::clone(&site), place)) => {}
            () = work(Running(sender)) => {}
        }
    }

    impl Running {
        /// Returns a client at 192.0.2.`host` that has sent a request.
        async fn ask(&self, host: u8, path: &str) -> Client {
            let (mut stream, other) = duplex(16 << 10);
            self.0.send((other, IpAddr::from([192, 0, 2, host]).into())).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            Client(stream)
        }
    }

    struct Client(DuplexStream);

    impl Client {
        async fn is_answered(&mut self) {
            assert_eq!(self.0.read_u8().await.unwrap(), b'H');
        }

        async fn rest(mut self) -> usize {
            let mut rest = Vec::new();
            self.0.read_to_end(&mut rest).await.unwrap();
            rest.len()
        }
    }

    const MOMENT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn large_answers_are_few_at_once_and_are_not_kept_for_a_client_that_takes_nothing() {
        serving(async |server| {
            let mut stuck = Vec::new();
            for (host, path) in
                [(1, "/metrics"), (2, "/status.json"), (3, "/metrics"), (4, "/status.json?peers=1000")]
            {
                let mut client = server.ask(host, path).await;
                client.is_answered().await;
                stuck.push(client);
            }
            let mut next = server.ask(5, "/metrics").await;
            assert!(timeout(MOMENT, next.is_answered()).await.is_err(), "a fifth large answer was made");
            // Small answers are still served.
            for path in ["/metrics?peers=off", "/status.json?peers=100", "/healthz", "/"] {
                let client = server.ask(5, path).await;
                assert!(timeout(MOMENT, client.rest()).await.is_ok(), "{path}");
            }
            next.is_answered().await;
            let whole = next.rest().await;
            assert!(whole > 1 << 19, "{whole}");
            sleep(Duration::from_secs(5)).await;
            for client in stuck {
                let taken = client.rest().await;
                assert!(taken < 64 << 10, "{taken} bytes were kept for a client that took nothing");
            }
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_takes_many_large_answers_slowly_keeps_no_other_out() {
        serving(async |server| {
            let mut slow = Vec::new();
            for _ in 0..16 {
                let Client(mut stream) = server.ask(1, "/metrics").await;
                slow.push(tokio::spawn(async move {
                    let mut part = [0; 1 << 10];
                    while let Ok(1..) = stream.read(&mut part).await {
                        sleep(Duration::from_millis(100)).await;
                    }
                }));
            }
            sleep(MOMENT).await;
            for _ in 0..4 {
                let mut scrape = server.ask(2, "/metrics").await;
                // Not after those of the other host that wait, though they have asked before.
                assert!(timeout(3 * MOMENT, scrape.is_answered()).await.is_ok());
                assert!(scrape.rest().await > 1 << 19);
            }
            slow.into_iter().for_each(|slow| slow.abort());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_asks_for_many_large_answers_delays_no_small_one_of_another() {
        serving(async |server| {
            let mut slow = Vec::new();
            for _ in 0..8 * CLIENTS {
                let Client(mut stream) = server.ask(1, "/metrics").await;
                slow.push(tokio::spawn(async move {
                    let mut part = [0; 2 << 10];
                    while let Ok(1..) = stream.read(&mut part).await {
                        sleep(Duration::from_millis(100)).await;
                    }
                }));
            }
            for _ in 0..4 {
                let health = server.ask(2, "/healthz").await;
                assert!(timeout(MOMENT / 4, health.rest()).await.is_ok_and(|length| length > 0));
                let scrape = server.ask(3, "/metrics").await;
                assert!(timeout(3 * MOMENT, scrape.rest()).await.is_ok_and(|length| length > 1 << 19));
            }
            slow.into_iter().for_each(|slow| slow.abort());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_large_answer_slowly_gives_way_when_another_host_waits() {
        serving(async |server| {
            let mut slow = Vec::new();
            for host in 1..=4 {
                let Client(mut stream) = server.ask(host, "/metrics").await;
                slow.push(tokio::spawn(async move {
                    let (mut part, mut taken) = ([0; 1 << 10], 0);
                    while let Ok(count @ 1..) = stream.read(&mut part).await {
                        taken += count;
                        sleep(Duration::from_millis(100)).await;
                    }
                    taken
                }));
            }
            sleep(MOMENT).await;
            let scrape = server.ask(5, "/metrics").await;
            assert!(timeout(3 * MOMENT, scrape.rest()).await.is_ok());
            let mut taken = Vec::new();
            for slow in slow {
                taken.push(slow.await.unwrap());
            }
            assert_eq!(taken.iter().filter(|taken| **taken < 1 << 19).count(), 1, "{taken:?}");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_without_an_end_is_bounded_in_bytes_and_in_time() {
        let site = Arc::new(Site::new(Arc::new(gateway), Hosts::named(&[])));
        for is_silent in [false, true] {
            let (mut stream, other) = duplex(1 << 10);
            let place = Places::new(1).take(Source::Unknown).await;
            let served = tokio::spawn(serve(other, Arc::clone(&site), Arc::new(place)));
            let (mut sent, head) = (0, [b'x'; 1 << 10]);
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ").await.unwrap();
            while !is_silent && stream.write_all(&head).await.is_ok() {
                sent += head.len();
            }
            assert!(sent <= MAX_HEAD + (4 << 10), "{sent} bytes were taken");
            assert!(
                timeout(IDLE + Duration::from_secs(1), served).await.is_ok(),
                "half a head is waited for"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_an_answer_slowly_gets_all_of_it() {
        serving(async |server| {
            let mut client = server.ask(1, "/metrics").await;
            let mut taken = 0;
            let mut part = vec![0; 64 << 10];
            loop {
                sleep(Duration::from_secs(1)).await;
                match client.0.read(&mut part).await.unwrap() {
                    0 => break,
                    count => taken += count,
                }
            }
            assert!(taken > 1 << 19, "{taken}");
        })
        .await;
    }
}
