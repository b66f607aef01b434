//! Relays between pipes in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::budget::Budget;
use crate::gone::LINGER;
use crate::pipe::end;

fn roomy() -> Arc<Account> {
    Budget::new(64 << 20).account()
}

fn begin(
    client: Box<dyn Connection>,
    remote: Box<dyn Connection>,
    first: Vec<u8>,
    account: &Arc<Account>,
) -> JoinHandle<(Carried, io::Result<()>)> {
    let account = Arc::clone(account);
    tokio::spawn(async move { relay(client, remote, first, &account).await })
}

#[tokio::test(start_paused = true)]
async fn receivers_that_take_nothing_hold_no_more_than_the_budget_and_stop_no_other() {
    const RELAYS: usize = 100;
    const ALL: usize = 4 << 20;
    const SINK: usize = 1000;
    let budget = Budget::new(ALL);
    let account = budget.account();
    let mut stuck = Vec::new();
    for _ in 0..RELAYS {
        let (client, from_client, mut sender) = end(1 << 20);
        let (remote, _, receiver) = end(SINK);
        sender.write_all(&vec![0; 1 << 20]).await.unwrap();
        stuck.push((begin(client, remote, Vec::new(), &account), from_client, sender, receiver));
    }
    // Paused time goes on only when every task waits.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let held: usize = stuck.iter().map(|(_, from_client, ..)| from_client.read.load(Relaxed) - SINK).sum();
    assert!(held <= ALL / 2 + RELAYS * SMALL, "{held}");
    let (client, _, mut sender) = end(100_000);
    let (remote, _, mut receiver) = end(SINK);
    let relaying = begin(client, remote, Vec::new(), &account);
    sender.write_all(&[7; 100_000]).await.unwrap();
    sender.shutdown().await.unwrap();
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, [7; 100_000]);
    drop(receiver);
    relaying.await.unwrap().1.unwrap();
    drop(stuck);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(account.free(), ALL);
}

#[tokio::test(start_paused = true)]
async fn a_relay_waits_for_a_slow_reader_and_holds_one_read_at_most() {
    const PIPE: usize = 10_000_000;
    const SINK: usize = 1000;
    let (client, from_client, mut sender) = end(PIPE);
    let (remote, _, mut receiver) = end(SINK);
    let relaying = begin(client, remote, Vec::new(), &roomy());
    let sent: Vec<u8> = (0..PIPE).map(|number| (number / 251 + number) as u8).collect();
    sender.write_all(&sent).await.unwrap();
    sender.shutdown().await.unwrap();
    // Paused time goes on only when every task waits.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let held = from_client.read.load(Relaxed);
    assert!((SINK..=BUFFER + SINK).contains(&held), "{held} bytes were read, and none is taken");
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).await.unwrap();
    assert!(received == sent);
    receiver.shutdown().await.unwrap();
    let (carried, result) = relaying.await.unwrap();
    assert!(result.is_ok());
    assert_eq!(carried, Carried { to_remote: PIPE as u64, to_client: 0 });
}

#[tokio::test]
async fn what_the_client_had_sent_before_comes_first() {
    let (client, _, mut sender) = end(64);
    let (remote, _, mut receiver) = end(64);
    let relaying = begin(client, remote, b"first, ".to_vec(), &roomy());
    sender.write_all(b"second").await.unwrap();
    sender.shutdown().await.unwrap();
    let mut received = String::new();
    receiver.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "first, second");
    drop(receiver);
    relaying.await.unwrap().1.unwrap();
}

#[tokio::test]
async fn a_source_that_fails_resets_both_ends_after_what_it_had_sent() {
    let (client, seen_client, mut sender) = end(64);
    let (remote, seen_remote, mut receiver) = end(64);
    let relaying = begin(client, remote, Vec::new(), &roomy());
    sender.write_all(b"data").await.unwrap();
    let mut received = [0; 4];
    receiver.read_exact(&mut received).await.unwrap();
    seen_client.is_broken.store(true, Relaxed);
    sender.write_all(b"x").await.unwrap();
    assert!(relaying.await.unwrap().1.is_err());
    assert!(seen_client.aborted.load(Relaxed) && seen_remote.aborted.load(Relaxed));
}

#[tokio::test]
async fn a_sink_that_is_gone_is_still_read_to_its_end() {
    let (client, seen_client, mut sender) = end(64);
    let (remote, _, mut receiver) = end(64);
    receiver.write_all(b"last words").await.unwrap();
    drop(receiver);
    sender.write_all(b"nothing takes this").await.unwrap();
    let relaying = begin(client, remote, Vec::new(), &roomy());
    let mut received = Vec::new();
    let (_, result) = relaying.await.unwrap();
    assert!(result.is_ok());
    sender.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    assert!(seen_client.aborted.load(Relaxed), "the client does not take the end for a regular one");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_gone_has_a_moment_for_what_it_has_sent_and_any_time_for_its_answer() {
    const PIPE: usize = 10_000;
    const SINK: usize = 1000;
    let begin = async || {
        let (client, seen, mut sender) = end(PIPE);
        let (remote, there, receiver) = end(SINK);
        sender.write_all(&[7; PIPE]).await.unwrap();
        seen.ended.send_replace(true);
        (begin(client, remote, Vec::new(), &roomy()), seen, there, sender, receiver)
    };
    // The receiver takes nothing.
    let (relaying, seen, there, _sender, _receiver) = begin().await;
    let (carried, result) = timeout(LINGER * 2, relaying).await.expect("it ends").unwrap();
    assert_eq!((carried.to_remote, result.is_err()), (SINK as u64, true));
    assert!(seen.aborted.load(Relaxed) && there.aborted.load(Relaxed));
    // It takes a little all the time, and has something to say long after.
    let (relaying, seen, _, mut sender, mut receiver) = begin().await;
    sender.shutdown().await.unwrap();
    for _ in 0..PIPE / SINK {
        tokio::time::sleep(LINGER * 2 / 3).await;
        receiver.read_exact(&mut [0; SINK]).await.unwrap();
    }
    assert_eq!(receiver.read(&mut [0]).await.unwrap(), 0);
    tokio::time::sleep(LINGER * 100).await;
    receiver.write_all(b"well").await.unwrap();
    sender.read_exact(&mut [0; 4]).await.unwrap();
    // There is no client any more to wait for it.
    assert!(!relaying.is_finished());
    seen.failed.send_replace(true);
    assert!(timeout(LINGER, relaying).await.expect("it ends").unwrap().1.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_bytes_nobody_takes_gives_way_to_another_one_and_both_ends_are_reset() {
    use crate::moves::Moves;

    // Of what the client sends nothing is taken, of what the remote sends, or of both; or the receiver takes
    // a little.
    for [sends, answers, takes] in
        [[true, false, false], [false, true, false], [true, true, false], [true, false, true]]
    {
        let places = weft_ipc::Places::new(1);
        let place = Arc::new(places.take(weft_ipc::Source::Unknown).await);
        place.begin_serving();
        let (client, seen, mut sender) = end(1000);
        let (remote, there, mut receiver) = end(1000);
        let (client, remote) = (Moves::of_client(client, &place), Moves::of_remote(remote, &place));
        let held = Arc::clone(&place);
        let relaying = tokio::spawn(async move {
            let account = roomy();
            tokio::select! {
                _ = relay(client, remote, Vec::new(), &account) => panic!("it ends"),
                () = held.wanted() => {}
            }
        });
        let (mut unread, mut unsent) = (0, 0);
        for _ in 0..4 {
            let sent = async { sender.write_all(&[0; 1000]).await };
            unread += usize::from(sends && timeout(LINGER / 100, sent).await.is_err());
            let sent = async { receiver.write_all(&[0; 1000]).await };
            unsent += usize::from(answers && timeout(LINGER / 100, sent).await.is_err());
        }
        assert_eq!([unread > 0, unsent > 0], [sends, answers], "nothing is read any more");
        drop(place);
        let mut next = std::pin::pin!(places.take(weft_ipc::Source::Unknown));
        for _ in 0..if takes { 20 } else { 1 } {
            assert!(timeout(LINGER * 2 / 3, &mut next).await.is_err(), "it keeps its place for a while");
            if takes {
                receiver.read_exact(&mut [0; 10]).await.unwrap();
            }
        }
        timeout(LINGER * 2, next).await.expect("it gives way");
        relaying.await.unwrap();
        assert!(seen.aborted.load(Relaxed) && there.aborted.load(Relaxed));
    }
}
