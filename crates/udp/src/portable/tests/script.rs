//! The sender against a socket that follows a script: full queues, refused batches, and errors.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weft_tunnel::{Ecn, Transmit};

use super::super::send::Outlet;
use super::*;
use crate::passage::{Advice, Passage};
use crate::system::Paths;
use crate::{SendError, UdpStats};

/// A socket that fails the next calls with these errors, then accepts everything.
#[derive(Default)]
struct Script {
    errors: RefCell<VecDeque<Option<i32>>>,
    /// Fails every call with more than one datagram.
    refuses_batches: Cell<Option<i32>>,
    always: Cell<Option<i32>>,
    max_segments: usize,
    is_blocked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    attempts: Cell<usize>,
    accepted: RefCell<Vec<Vec<u8>>>,
}

impl Script {
    fn new(errors: impl IntoIterator<Item = Option<i32>>) -> Self {
        Self { errors: RefCell::new(errors.into_iter().collect()), max_segments: 64, ..Self::default() }
    }

    fn unblock(&self) {
        self.is_blocked.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Outlet for Script {
    fn poll_call<T>(
        &self,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        if !self.is_blocked.get() {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_blocked.set(true),
                result => return Poll::Ready(result),
            }
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.attempts.set(self.attempts.get() + 1);
        assert!(transmit.segments() <= self.max_segments);
        let refusal = self.refuses_batches.get().filter(|_| transmit.segments() > 1);
        let next = self.errors.borrow_mut().pop_front().flatten();
        if let Some(error) = self.always.get().or(refusal).or(next) {
            return Err(io::Error::from_raw_os_error(error));
        }
        self.accepted
            .borrow_mut()
            .extend(transmit.contents.chunks(transmit.segment_size).map(<[u8]>::to_vec));
        Ok(())
    }

    fn max_segments(&self) -> usize {
        self.max_segments
    }

    fn let_pass<T>(
        &self,
        _: &Transmit<'_>,
        _: Passage,
        send: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let always = self.always.take();
        let sent = send();
        self.always.set(always);
        sent
    }

    fn advise(&self, _: &mut Paths, _: &Transmit<'_>) -> Advice {
        Advice::IN_PIECES
    }
}

/// Datagrams of 10 bytes, numbered; the last is shorter.
fn datagrams(count: usize) -> Vec<u8> {
    (0..count * 10 - 3).map(|at| (at / 10) as u8).collect()
}

fn transmit(contents: &[u8]) -> Transmit<'_> {
    Transmit {
        destination: ([192, 0, 2, 1], 1).into(),
        source: None,
        ecn: Ecn::NotEct,
        segment_size: 10,
        contents,
    }
}

fn sender(gso: bool) -> Sender {
    Sender::new(gso, PathMtu::Off, false, true)
}

/// Runs `body` in virtual time, which passes while everything waits.
fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(body)
}

/// Sends until all is accepted, as the event loop does. Returns the parts that were accepted.
async fn send_all(
    sender: &mut Sender,
    script: &Script,
    whole: Transmit<'_>,
    stats: &mut UdpStats,
) -> Result<Vec<usize>, SendError> {
    let (mut rest, mut parts) = (whole, Vec::new());
    while !rest.contents.is_empty() {
        let sent = poll_fn(|cx| sender.poll_send(cx, script, &rest, stats)).await?;
        assert!(sent.bytes > 0 && !sent.source_unusable);
        rest.contents = &rest.contents[sent.bytes..];
        parts.push(sent.bytes);
    }
    assert_eq!(*script.accepted.borrow(), whole.contents.chunks(10).map(<[u8]>::to_vec).collect::<Vec<_>>());
    assert_eq!(
        (stats.datagrams_sent, stats.bytes_sent),
        (whole.segments() as u64, whole.contents.len() as u64)
    );
    Ok(parts)
}

#[test]
fn a_queue_that_is_full_in_bursts_loses_and_repeats_nothing() {
    for gso in [false, true] {
        let full = Some(libc::ENOBUFS);
        let script =
            Script { max_segments: 8, ..Script::new([full, full, None, None, full, full, full, None, full]) };
        let sent = datagrams(30);
        let mut stats = UdpStats::default();
        run(send_all(&mut sender(gso), &script, transmit(&sent), &mut stats)).unwrap();
        let calls = if gso { 4 } else { 30 };
        // Six refusals, and one more for each that ended a part.
        assert_eq!(script.attempts.get(), calls + 6, "gso {gso}");
    }
}

#[test]
fn a_queue_that_stays_full_costs_at_most_an_attempt_a_millisecond_and_no_datagram() {
    run(async {
        let script = Script::new([]);
        script.always.set(Some(libc::ENOBUFS));
        let (mut sender, mut stats, sent) = (sender(true), UdpStats::default(), datagrams(20));
        let mut send = Box::pin(send_all(&mut sender, &script, transmit(&sent), &mut stats));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut send).await.is_err());
        let attempts = script.attempts.get();
        assert!((400..=1002).contains(&attempts), "{attempts}");
        // Other wakers of the event loop cause no attempts.
        for _ in 0..1000 {
            assert!(poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_pending())).await);
        }
        assert!(script.attempts.get() <= attempts + 1, "{}", script.attempts.get());
        script.always.set(None);
        assert_eq!(send.await.unwrap(), [sent.len()]);
    });
}

#[test]
fn after_a_full_queue_had_room_the_next_pause_is_short_again() {
    run(async {
        let full = Some(libc::ENOBUFS);
        let script = Script::new(std::iter::repeat_n(full, 20).chain([None, full]));
        let (mut sender, sent) = (sender(true), datagrams(2));
        send_all(&mut sender, &script, transmit(&sent), &mut UdpStats::default()).await.unwrap();
        let before = tokio::time::Instant::now();
        script.accepted.borrow_mut().clear();
        send_all(&mut sender, &script, transmit(&sent), &mut UdpStats::default()).await.unwrap();
        assert!(before.elapsed() <= Duration::from_millis(2), "{:?}", before.elapsed());
    });
}

#[test]
fn where_it_is_a_lack_of_memory_enobufs_is_an_error() {
    let script = Script::new([Some(libc::ENOBUFS)]);
    let mut sender = Sender::new(true, PathMtu::Off, false, false);
    let sent = datagrams(3);
    let answer = run(send_all(&mut sender, &script, transmit(&sent), &mut UdpStats::default()));
    assert!(matches!(answer, Err(SendError::Failed(_))), "{answer:?}");
}

#[test]
fn a_full_socket_is_waited_for_and_tried_once() {
    run(async {
        let script = Script::new([None, Some(libc::EAGAIN), Some(libc::EAGAIN)]);
        let (mut sender, mut stats, sent) = (sender(false), UdpStats::default(), datagrams(5));
        let mut send = Box::pin(send_all(&mut sender, &script, transmit(&sent), &mut stats));
        for _ in 0..100 {
            assert!(poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_pending())).await);
        }
        // The first, the one that ended the part, and the one that waits.
        assert_eq!(script.attempts.get(), 3);
        script.unblock();
        assert_eq!(send.await.unwrap(), [10, 37]);
    });
}

#[test]
fn batches_that_are_refused_go_one_by_one_also_from_the_middle() {
    for refusal in [libc::EIO, libc::EINVAL, libc::EMSGSIZE] {
        // The second batch is refused, and from then on every batch.
        let script = Script { max_segments: 8, ..Script::new([]) };
        let (mut sender, mut stats, sent) = (sender(true), UdpStats::default(), datagrams(30));
        let first = transmit(&sent[..80]);
        run(async {
            let accepted = poll_fn(|cx| sender.poll_send(cx, &script, &first, &mut stats)).await.unwrap();
            assert_eq!(accepted.bytes, 80);
            script.refuses_batches.set(Some(refusal));
            let rest = transmit(&sent[80..]);
            for part in [rest, Transmit { destination: ([192, 0, 2, 1], 2).into(), ..rest }] {
                let accepted = poll_fn(|cx| sender.poll_send(cx, &script, &part, &mut stats)).await.unwrap();
                assert_eq!(accepted.bytes, part.contents.len());
            }
        });
        let numbers: Vec<u8> = script.accepted.borrow().iter().map(|datagram| datagram[0]).collect();
        assert_eq!(numbers, (0..30).chain(8..30).collect::<Vec<u8>>());
        // The refusal is remembered: one refused call in all.
        assert_eq!((script.attempts.get(), stats.gso_fallbacks), (1 + 1 + 22 + 22, 2));
    }
}

#[test]
fn a_batch_that_is_refused_half_way_continues_behind_what_was_accepted() {
    let script = Script { max_segments: 4, ..Script::new([None, None, Some(libc::EIO), Some(libc::EIO)]) };
    let sent = datagrams(20);
    let mut stats = UdpStats::default();
    let parts = run(send_all(&mut sender(true), &script, transmit(&sent), &mut stats)).unwrap();
    assert_eq!(parts, [80, 117]);
    assert_eq!(stats.gso_fallbacks, 1);
}

#[test]
fn a_datagram_that_is_too_long_is_reported_and_what_follows_is_sent() {
    let (mut sender, mut stats, sent) = (sender(true), UdpStats::default(), datagrams(1));
    let script = Script::new([Some(libc::EMSGSIZE)]);
    run(async {
        let answer = send_all(&mut sender, &script, transmit(&sent), &mut stats).await;
        assert!(matches!(answer, Err(SendError::TooLong)), "{answer:?}");
        send_all(&mut sender, &script, transmit(&sent), &mut stats).await.unwrap();
    });
}

#[test]
fn with_df_what_is_too_long_goes_in_pieces() {
    let script = Script::new([]);
    script.always.set(Some(libc::EMSGSIZE));
    let mut sender = Sender::new(true, PathMtu::On, false, true);
    let sent = datagrams(5);
    run(send_all(&mut sender, &script, transmit(&sent), &mut UdpStats::default())).unwrap();
}

#[test]
fn a_source_that_is_gone_is_given_up_but_not_for_a_full_queue() {
    let script = Script::new([Some(libc::EADDRNOTAVAIL), Some(libc::ENOBUFS), Some(libc::EADDRNOTAVAIL)]);
    let (mut sender, sent) = (sender(true), datagrams(1));
    let transmit = Transmit { source: Some([192, 0, 2, 9].into()), ..transmit(&sent) };
    let mut stats = UdpStats::default();
    let answer = run(poll_fn(|cx| sender.poll_send(cx, &script, &transmit, &mut stats))).unwrap();
    assert!(answer.source_unusable && answer.bytes == sent.len());
    assert_eq!((script.attempts.get(), stats.datagrams_sent), (4, 1));
}

#[test]
fn a_kernel_that_mangles_equal_segments_gets_them_one_by_one() {
    for (bytes, calls) in [(80, 8), (77, 1)] {
        let script = Script::new([]);
        let mut sender = Sender::new(true, PathMtu::Off, true, true);
        let sent = datagrams(9);
        run(send_all(&mut sender, &script, transmit(&sent[..bytes]), &mut UdpStats::default())).unwrap();
        assert_eq!(script.attempts.get(), calls);
    }
}
