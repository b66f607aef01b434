//! Several queues that the packet thread serves itself: each gets its turn, and no flow is reordered between
//! them.

use super::*;

/// The maximum number of slabs of one queue.
const SLABS: usize = 6;

/// Returns a long packet. The socket of a queue holds four of them, and a slab three.
fn long_packet(flow: u8, number: u32) -> Vec<u8> {
    let mut long = [packet(flow, number), vec![0; 59_000]].concat();
    long[2..4].copy_from_slice(&60_000_u16.to_be_bytes());
    long
}

/// Fills a queue with long packets of `flow`, numbered from `number`, until it is full. Returns their number.
fn fill(peer: &UnixDatagram, flow: u8, number: &mut u32) -> u32 {
    let before = *number;
    peer.set_nonblocking(true).unwrap();
    while peer.send(&framed(&long_packet(flow, *number))).is_ok() {
        *number += 1;
    }
    *number - before
}

/// Returns the batches of one poll, after the runtime has asked the kernel what is readable, as between two
/// turns of the event loop.
async fn next_turn(device: &mut Device, max_bytes: usize) -> VecDeque<TunBatch> {
    tokio::task::yield_now().await;
    let mut batches = VecDeque::new();
    let _ = device.poll_recv_many(&mut Context::from_waker(Waker::noop()), &mut batches, max_bytes);
    batches
}

fn queues(batches: &VecDeque<TunBatch>) -> Vec<u16> {
    batches.iter().map(TunBatch::queue).collect()
}

/// Returns flow and number of every packet in the batches.
fn contents(batches: VecDeque<TunBatch>) -> Vec<(u8, u32)> {
    let packets = |batch: TunBatch| batch.remaining().map(flow_and_number).collect::<Vec<_>>();
    batches.into_iter().flat_map(packets).collect()
}

#[tokio::test]
async fn a_queue_that_is_always_full_does_not_keep_another_from_being_read_next() {
    let (mut device, peers) = device(4, false);
    let mut number = 0;
    for turn in 0..10 {
        fill(&peers[1], 1, &mut number);
        assert_eq!(queues(&recv(&mut device, 1).await.1), [1], "no other has anything");
        fill(&peers[1], 1, &mut number);
        let other = [3, 0, 2][turn as usize % 3];
        peers[other].send(&framed(&packet(2, turn))).unwrap();
        let batches = next_turn(&mut device, 1).await;
        assert_eq!(contents(batches), [(2, turn)], "queue {other}");
    }
}

#[tokio::test]
async fn one_read_gives_a_slab_of_each_queue_in_turn() {
    let (mut device, peers) = device(3, false);
    assert!(fill(&peers[0], 1, &mut 0) > 3, "more than a slab takes");
    assert!(fill(&peers[2], 2, &mut 0) > 3);
    peers[1].send(&framed(&packet(3, 0))).unwrap();
    let (_, batches) = recv(&mut device, usize::MAX).await;
    assert_eq!(queues(&batches), [0, 1, 2, 0, 2]);
}

#[tokio::test]
async fn flows_that_share_a_queue_get_as_much_as_one_that_has_its_own() {
    const TOGETHER: u8 = 5;
    let (mut device, peers) = device(2, false);
    peers.iter().for_each(|peer| peer.set_nonblocking(true).unwrap());
    let mut packets = [0; 1 + TOGETHER as usize];
    let mut next = 0;
    for _ in 0..200 {
        while peers[0].send(&framed(&long_packet(1 + next % TOGETHER, 0))).is_ok() {
            next = (next + 1) % TOGETHER;
        }
        fill(&peers[1], 0, &mut 0);
        for (flow, _) in contents(next_turn(&mut device, 1).await) {
            packets[usize::from(flow)] += 1;
        }
    }
    let each = packets[1..].iter().sum::<u32>() / u32::from(TOGETHER);
    assert!((each / 2..each * 2).contains(&packets[0]), "{packets:?}");
}

#[tokio::test]
async fn a_queue_that_holds_every_slab_that_it_may_leaves_one_for_each_of_the_others() {
    let (mut device, peers) = device(3, false);
    let (mut number, mut kept) = (0, VecDeque::new());
    while kept.len() < SLABS {
        fill(&peers[0], 1, &mut number);
        kept.append(&mut recv(&mut device, 1).await.1);
    }
    fill(&peers[0], 1, &mut number);
    assert!(next_turn(&mut device, 1).await.is_empty(), "its slabs are all out");
    for other in [2, 1] {
        peers[other].send(&framed(&packet(2, 0))).unwrap();
        let batches = next_turn(&mut device, usize::MAX).await;
        assert_eq!(queues(&batches), [other as u16]);
        kept.extend(batches);
    }
    assert_eq!(kept.len(), SLABS + 2);
    // A slab that returns wakes the task that waits for it.
    let (received, ()) = tokio::join!(recv(&mut device, 1), async {
        tokio::task::yield_now().await;
        kept.clear();
    });
    assert_eq!(queues(&received.1), [0]);
}

#[tokio::test]
async fn a_flow_that_moved_waits_for_its_old_queue_and_others_do_not() {
    let (mut device, peers) = device(2, false);
    let mut number = 0;
    fill(&peers[0], 1, &mut number);
    let (_, first) = recv(&mut device, 1).await;
    // Packets that follow in the other queue are newer than those left in the first queue.
    let left = number - first[0].packets() as u32;
    assert!(left > 0);
    for newer in [packet(1, number), packet(2, 0), packet(1, number + 1)] {
        peers[1].send(&framed(&newer)).unwrap();
    }
    number += 2;
    let mut seen = contents(first);
    let second = next_turn(&mut device, 1).await;
    assert_eq!(queues(&second), [1]);
    seen.extend(contents(second));
    assert_eq!(seen.last(), Some(&(2, 0)), "all but what moved");
    while seen.len() < number as usize + 1 {
        seen.extend(contents(recv(&mut device, 1).await.1));
    }
    let of_flow = |flow| seen.iter().filter(move |(its, _)| *its == flow).map(|(_, number)| *number);
    assert_eq!(of_flow(2).count(), 1);
    assert!(of_flow(1).eq(0..number), "{seen:?}");
}

#[tokio::test]
async fn a_flow_that_moved_goes_on_as_soon_as_its_old_queue_is_found_empty() {
    let (mut device, peers) = device(2, false);
    peers[0].send(&framed(&packet(1, 0))).unwrap();
    assert_eq!(contents(recv(&mut device, 1).await.1), [(1, 0)]);
    // Not a packet, so nothing else comes out of the old queue.
    peers[0].send(&[1, 2, 3]).unwrap();
    peers[1].send(&framed(&packet(1, 1))).unwrap();
    assert_eq!(contents(next_turn(&mut device, usize::MAX).await), [(1, 1)]);
}

#[tokio::test]
async fn a_flow_that_moved_and_waits_does_not_run_its_new_queue_empty() {
    let (mut device, peers) = device(2, false);
    let (mut number, mut seen, mut kept) = (0, Vec::new(), VecDeque::new());
    while kept.len() < SLABS {
        fill(&peers[0], 1, &mut number);
        kept.append(&mut recv(&mut device, 1).await.1);
    }
    // The old queue has more packets, but no slab to read them into.
    assert!(fill(&peers[0], 1, &mut number) > 0);
    assert!(fill(&peers[1], 1, &mut number) > 3);
    assert!(next_turn(&mut device, 1).await.is_empty());
    assert_eq!(device.stats().queues()[1].packets_read, 3, "a slab, and no more");
    seen.extend(contents(std::mem::take(&mut kept)));
    while seen.len() < number as usize {
        seen.extend(contents(recv(&mut device, 1).await.1));
    }
    assert!(seen.iter().map(|(_, number)| *number).eq(0..number), "{seen:?}");
}

#[tokio::test]
async fn what_was_held_back_is_given_out_when_the_device_is_gone() {
    let (mut device, mut peers) = device(2, false);
    peers[0].send(&framed(&packet(1, 0))).unwrap();
    assert_eq!(contents(recv(&mut device, 1).await.1), [(1, 0)]);
    peers[1].send(&framed(&packet(1, 1))).unwrap();
    // The end of the old queue looks readable.
    drop(peers.remove(0));
    let mut seen = Vec::new();
    loop {
        let (bytes, batches) = recv(&mut device, 1).await;
        seen.extend(contents(batches));
        if bytes == 0 {
            break;
        }
    }
    assert_eq!(seen, [(1, 1)]);
}

#[tokio::test]
async fn every_queue_that_was_full_goes_on_by_itself() {
    const QUEUES: usize = 4;
    let (mut device, peers) = device(QUEUES, false);
    for (flow, peer) in (0..).zip(&peers) {
        peer.send(&framed(&packet(flow, 0))).unwrap();
    }
    let mut seen = 0;
    while seen < QUEUES {
        seen += recv(&mut device, 1 << 20).await.1.iter().map(TunBatch::packets).sum::<usize>();
    }
    // Each queue gets the same number of packets, so that all are full at the same time.
    let mut sent = 0;
    while poll_send_ready_once(&mut device) {
        while device.plain_slab().room() >= QUEUES * 1000 {
            for flow in 0..QUEUES as u8 {
                let range = device.plain_slab().push(&packet(flow, sent)).unwrap();
                device.send(range).unwrap();
            }
            sent += 1;
        }
        device.flush().unwrap();
    }
    let stats = device.stats().snapshot();
    assert!(stats.segments_written < u64::from(sent) * QUEUES as u64);
    assert_eq!(device.plain_slab().room(), 0, "it is being written");

    // The last queue is read first, while the others are still full.
    let peers: Vec<_> = peers
        .into_iter()
        .map(|peer| {
            peer.set_nonblocking(true).unwrap();
            tokio::net::UnixDatagram::from_std(peer).unwrap()
        })
        .collect();
    let (resumed, ()) = tokio::join!(poll_fn(|cx| device.poll_send_ready(cx)), async {
        let mut buffer = vec![0; 2000];
        for (flow, peer) in peers.iter().enumerate().rev() {
            for number in 0..sent {
                let len = peer.recv(&mut buffer).await.unwrap();
                assert_eq!(len, VNET_HDR + 1000);
                assert_eq!(flow_and_number(&buffer[VNET_HDR..]), (flow as u8, number));
            }
        }
    });
    resumed.unwrap();
    let each = device.stats().queues();
    assert!(each.iter().all(|queue| queue.segments_written == u64::from(sent)), "{each:?}");
    assert_eq!(device.plain_slab().room(), 4 * 65_535);
}

#[tokio::test]
async fn a_flow_changes_its_queue_between_batches_and_not_in_one() {
    let (mut device, peers) = device(2, false);
    peers[0].send(&framed(&packet(1, 0))).unwrap();
    recv(&mut device, 1).await;
    let stage = |device: &mut Device, number| {
        let range = device.plain_slab().push(&packet(1, number)).unwrap();
        device.send(range).unwrap();
    };
    stage(&mut device, 0);
    peers[1].send(&framed(&packet(1, 1))).unwrap();
    recv(&mut device, 1).await;
    stage(&mut device, 1);
    device.flush().unwrap();
    // The kernel delivers it where it was written, until it forgets that.
    for peer in &peers {
        peer.send(&framed(&packet(1, 2))).unwrap();
        recv(&mut device, 1).await;
    }
    stage(&mut device, 2);
    device.flush().unwrap();
    let written = peers.iter().map(|peer| {
        peer.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2000];
        let next = || peer.recv(&mut buffer).ok().map(|_| flow_and_number(&buffer[VNET_HDR..]).1);
        std::iter::from_fn(next).collect::<Vec<_>>()
    });
    assert!(written.eq([vec![0, 1], vec![2]]));
}
