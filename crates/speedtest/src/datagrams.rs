//! The datagrams of a test with `--udp`: numbered, at a steady rate, one way.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::from_device;
use crate::protocol::{NUMBER, UdpRequest};
use crate::sample::{Datagrams, Sent};

/// The time between two bursts.
const BURST_EVERY: Duration = Duration::from_millis(1);
/// What is overdue by more than this time is skipped: the rate is one that the machine cannot send.
const MAX_OVERDUE: Duration = Duration::from_millis(50);
/// The most datagrams between two looks at the end, after which other tasks have their turn.
const MAX_BURST: u64 = 64;
/// The most bytes of a datagram.
const MOST: usize = 65_535;

/// What was sent or received so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    expected: AtomicU64,
    received: AtomicU64,
    displaced: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    /// Returns the bytes received, and the datagrams.
    pub(crate) fn observe(&self) -> (u64, Datagrams) {
        let datagrams = Datagrams {
            sent: self.sent.load(Relaxed),
            expected: self.expected.load(Relaxed),
            received: self.received.load(Relaxed),
            displaced: self.displaced.load(Relaxed),
        };
        (self.bytes.load(Relaxed), datagrams)
    }

    /// Returns what was sent so far.
    pub(crate) fn sent(&self, size: u16) -> Sent {
        let datagrams = self.sent.load(Relaxed);
        Sent { bytes: datagrams.saturating_mul(size.into()), datagrams }
    }
}

/// Makes a socket that sends to and receives from one address, through this interface alone.
pub(crate) fn socket(device: &str, local: SocketAddr, remote: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    from_device::only(&socket, device)?;
    socket.set_nonblocking(true)?;
    socket.bind(&local.into())?;
    socket.connect(&remote.into())?;
    UdpSocket::from_std(socket.into())
}

/// Returns the most that a sender sends in this time.
pub(crate) fn most(udp: &UdpRequest, duration: Duration) -> Sent {
    let size = u64::from(udp.bytes).max(NUMBER as u64);
    let due = udp.bits_per_second as f64 / (size * 8) as f64 * duration.as_secs_f64();
    Sent { bytes: u64::MAX, datagrams: (due as u64).saturating_add(MAX_BURST) }
}

/// Sends datagrams of `bytes` bytes at this rate of payload until this time.
pub(crate) async fn send(
    socket: Arc<UdpSocket>,
    bits_per_second: u64,
    bytes: u16,
    until: Instant,
    counts: Arc<Counts>,
) -> io::Result<()> {
    let mut datagram = vec![0; usize::from(bytes).max(NUMBER)];
    let per_second = bits_per_second as f64 / (datagram.len() * 8) as f64;
    let mut begun = Instant::now();
    // Those sent since `begun`, and in all.
    let (mut sent, mut number) = (0_u64, 0_u64);
    let mut burst = interval(BURST_EVERY);
    burst.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut is_behind = false;
    while Instant::now() < until {
        if is_behind {
            yield_now().await;
        } else {
            burst.tick().await;
        }
        let next_due = Duration::from_secs_f64((sent + 1) as f64 / per_second);
        if begun.elapsed().saturating_sub(next_due) > MAX_OVERDUE {
            (begun, sent) = (Instant::now(), 0);
        }
        let due = (begun.elapsed().as_secs_f64() * per_second) as u64;
        let burst_end = due.min(sent + MAX_BURST);
        is_behind = due > burst_end;
        while sent < burst_end {
            datagram[..NUMBER].copy_from_slice(&number.to_le_bytes());
            match socket.try_send(&datagram) {
                Ok(_) => {}
                // What does not fit the socket waits: a rate that the machine cannot send is not loss.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_behind = false;
                    break;
                }
                // The receiver's socket is closed at the end of the test before this one.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
            number += 1;
            sent += 1;
            counts.sent.store(number, Relaxed);
        }
    }
    Ok(())
}

/// Receives until the task is ended.
pub(crate) async fn receive(socket: Arc<UdpSocket>, counts: Arc<Counts>) -> io::Result<()> {
    let mut datagram = vec![0; MOST];
    loop {
        // A flood leaves a turn to the other tasks.
        consume_budget().await;
        let len = match socket.recv(&mut datagram).await {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        let Some(number) = datagram[..len].first_chunk().map(|number| u64::from_le_bytes(*number)) else {
            continue;
        };
        let expected = counts.expected.load(Relaxed);
        counts.displaced.fetch_add(u64::from(number < expected), Relaxed);
        counts.expected.store(expected.max(number.saturating_add(1)), Relaxed);
        counts.received.fetch_add(1, Relaxed);
        counts.bytes.fetch_add(len as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn what_is_missing_or_late_is_counted_by_number() {
        let receiver = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sender.connect(receiver.local_addr().unwrap()).await.unwrap();
        for number in [0_u64, 1, 4, 3, 5] {
            sender.send(&[&number.to_le_bytes()[..], &[0; 92]].concat()).await.unwrap();
        }
        sender.send(&[0; 3]).await.unwrap();
        let counts = Arc::new(Counts::default());
        let receive = receive(receiver, Arc::clone(&counts));
        assert!(timeout(Duration::from_millis(200), receive).await.is_err());
        let expected = Datagrams { sent: 0, expected: 6, received: 5, displaced: 1 };
        assert_eq!(counts.observe(), (500, expected));
    }

    /// Neither a rate that no machine sends, nor a receiver that refuses each datagram, keeps other tasks
    /// from their turn, or the sender from its end.
    #[tokio::test]
    async fn the_highest_rate_ends_in_time_and_leaves_turns_to_others() {
        for is_refused in [false, true] {
            let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            sender.connect(receiver.local_addr().unwrap()).await.unwrap();
            let _open = Some(receiver).filter(|_| !is_refused);
            let until = Instant::now() + Duration::from_millis(100);
            let sending = tokio::spawn(send(Arc::new(sender), u64::MAX, 8, until, Arc::default()));
            let mut turns = 0;
            while !sending.is_finished() {
                yield_now().await;
                turns += 1;
            }
            assert!(turns > 10, "{turns}");
            sending.await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_sender_that_had_no_turn_has_missed_is_left_out() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sender.connect(receiver.local_addr().unwrap()).await.unwrap();
        let (until, counts) = (Instant::now() + Duration::from_secs(6), Arc::<Counts>::default());
        // A thousand datagrams a second.
        let sending = tokio::spawn(send(Arc::new(sender), 8_000_000, 1000, until, Arc::clone(&counts)));
        yield_now().await;
        tokio::time::advance(Duration::from_secs(5)).await;
        sending.await.unwrap().unwrap();
        let sent = counts.observe().1.sent;
        assert!((900..1500).contains(&sent), "{sent}");
    }

    #[tokio::test]
    async fn a_slow_rate_sends_too() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sender.connect(receiver.local_addr().unwrap()).await.unwrap();
        let (until, counts) = (Instant::now() + Duration::from_millis(250), Arc::<Counts>::default());
        // One datagram in 100 ms, which is longer than the time after which one is skipped.
        send(Arc::new(sender), 10_000, 125, until, Arc::clone(&counts)).await.unwrap();
        assert!((1..=3).contains(&counts.observe().1.sent), "{:?}", counts.observe());
    }

    #[tokio::test]
    async fn the_rate_is_that_of_the_payload() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sender.connect(receiver.local_addr().unwrap()).await.unwrap();
        let counts = Arc::new(Counts::default());
        let (begun, time) = (Instant::now(), Duration::from_millis(300));
        send(Arc::new(sender), 8_000_000, 1000, begun + time, Arc::clone(&counts)).await.unwrap();
        // A thousand datagrams a second; the last burst may come late.
        let most = begun.elapsed().as_millis() as u64;
        let sent = counts.observe().1.sent;
        assert!((200..=most).contains(&sent), "{sent} of {most}");
    }
}
