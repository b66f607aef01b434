use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn source(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

/// Returns queues in which these sources are known, and each has a separate queue.
fn known(ports: impl IntoIterator<Item = u16>) -> SourceQueues<(u16, u32)> {
    let ports: Vec<u16> = ports.into_iter().collect();
    loop {
        let mut queues = SourceQueues::new();
        ports.iter().for_each(|port| queues.record_authentic(source(*port)));
        let hash = |port: &u16| queues.hasher.hash_one(source(*port)) as usize % KNOWN;
        if ports.iter().map(hash).collect::<HashSet<_>>().len() == ports.len() {
            return queues;
        }
    }
}

fn push(queues: &mut SourceQueues<(u16, u32)>, port: u16, number: u32, cost: usize) {
    queues.push(source(port), (port, number), cost, true, Instant::now());
}

fn pop(queues: &mut SourceQueues<(u16, u32)>) -> Option<(u16, u32)> {
    queues.pop(Instant::now()).map(|next| next.item)
}

#[test]
fn a_source_that_begins_goes_before_those_with_a_queue() {
    let mut queues = known([1, 2]);
    (0..10).for_each(|number| push(&mut queues, 1, number, 60_000));
    assert_eq!(pop(&mut queues), Some((1, 0)));
    push(&mut queues, 2, 0, 600);
    push(&mut queues, 2, 1, 600);
    assert_eq!([pop(&mut queues), pop(&mut queues)], [Some((2, 0)), Some((2, 1))]);
    assert_eq!(pop(&mut queues), Some((1, 1)));
}

#[test]
fn busy_sources_take_turns_by_cost() {
    let mut queues = known([1, 2, 3]);
    for number in 0..2000 {
        push(&mut queues, 1, number, 600);
        push(&mut queues, 2, number, 2000);
        push(&mut queues, 3, number, 60_000);
    }
    let mut cost = [0; 4];
    for _ in 0..1000 {
        let (port, _) = pop(&mut queues).unwrap();
        cost[usize::from(port)] += [0, 600, 2000, 60_000][usize::from(port)];
    }
    let (least, most) = (cost[1..].iter().min().unwrap(), cost[1..].iter().max().unwrap());
    assert!(most - least <= 2 * QUANTUM as usize, "{cost:?}");
}

#[test]
fn all_unknown_sources_together_get_what_one_known_source_gets() {
    let mut queues = known([1]);
    for number in 0..5000 {
        push(&mut queues, 1, number, 2000);
        push(&mut queues, 1000 + number as u16, number, 2000);
    }
    let ports: Vec<u16> = (0..4000).map(|_| pop(&mut queues).unwrap().0).collect();
    let of_known = ports.iter().filter(|port| **port == 1).count();
    assert!((1900..2100).contains(&of_known), "{of_known} of 4000");
}

#[test]
fn each_queue_of_known_sources_is_served_alike() {
    // The first of these queues is the next behind those of unknown sources.
    let ports: Vec<u16> = (1..=2).collect();
    let mut queues = loop {
        let queues = known(ports.clone());
        let is_first = |port: &u16| number(queues.hasher.hash_one(source(*port)), true) == UNKNOWN;
        if ports.iter().any(is_first) {
            break queues;
        }
    };
    for number in 0..2000 {
        ports.iter().for_each(|port| push(&mut queues, *port, number, 2000));
    }
    let served: Vec<u16> = (0..1000).map(|_| pop(&mut queues).unwrap().0).collect();
    let of_first = served.iter().filter(|port| **port == 1).count();
    assert!((480..=520).contains(&of_first), "{of_first} of 1000");
    // The longer queue gives way: none of both counts for more than it is.
    let given_up: Vec<u16> = (0..1000).map(|_| queues.pop_longest().unwrap().0).collect();
    let of_first = given_up.iter().filter(|port| **port == 1).count();
    assert!((480..=520).contains(&of_first), "{of_first} of 1000");
}

#[test]
fn the_longest_queue_gives_way() {
    let mut queues = known([1, 2]);
    (0..20).for_each(|number| push(&mut queues, 1, number, 600));
    push(&mut queues, 2, 0, 60_000);
    assert_eq!(queues.pop_longest(), Some((2, 0)));
    assert_eq!([queues.pop_longest(), queues.pop_longest()], [Some((1, 0)), Some((1, 1))], "oldest first");
    // Five messages of unknown sources count as forty.
    (0..5).for_each(|number| push(&mut queues, 9, number, 600));
    assert_eq!(queues.pop_longest(), Some((9, 0)));
    assert_eq!(queues.len(), 22);
    while queues.pop_longest().is_some() {}
    assert!(queues.is_empty() && pop(&mut queues).is_none());
}

#[test]
fn a_standing_queue_sheds_large_datagrams_alone_and_time_without_progress_does_not_count() {
    let (ms, start) = (Duration::from_millis(1), Instant::now());
    // A message arrives each millisecond and leaves 5 ms later.
    let shed = |may_be_shed, is_known, stops: bool| {
        let mut queues = SourceQueues::new();
        if is_known {
            queues.record_authentic(source(1));
        }
        let mut shed = 0;
        for time in 0..1000 {
            queues.push(source(1), time, 2000, may_be_shed, start + time * ms);
            if stops {
                queues.resume(start + time * ms);
            }
            if time >= 5 {
                shed += usize::from(queues.pop(start + time * ms).unwrap().sheds_first);
            }
        }
        shed
    };
    assert!((5..60).contains(&shed(true, true, false)));
    assert_eq!(shed(false, true, false), 0, "a ping is not shed");
    assert_eq!(shed(true, false, false), 0, "unknown sources are no TCP that would slow down");
    assert_eq!(shed(true, true, true), 0, "it waited for others");
}

#[test]
fn a_source_stays_known_while_others_come_and_is_forgotten_after_many() {
    let mut queues = known([1]);
    let is_recent =
        |queues: &mut SourceQueues<(u16, u32)>| queues.push(source(1), (1, 0), 600, true, Instant::now());
    let place =
        |queues: &SourceQueues<(u16, u32)>| queues.queues[UNKNOWN..].iter().any(|queue| queue.cost > 0);
    let others = |queues: &mut SourceQueues<(u16, u32)>, network: u8| {
        (0..GENERATION as u16).for_each(|port| {
            queues.record_authentic(SocketAddr::from(([198, 51, 100, network], port)));
        });
    };
    assert!(is_recent(&mut queues) && place(&queues));
    others(&mut queues, 1);
    assert!(!is_recent(&mut queues), "it has to be recorded again");
    assert!(place(&queues), "and is known meanwhile");
    while pop(&mut queues).is_some() {}
    others(&mut queues, 2);
    assert!(!is_recent(&mut queues) && !place(&queues));
}

proptest! {
    #[test]
    fn everything_comes_out_once_and_each_source_in_order(
        steps in prop::collection::vec((0..6_u16, 1..70_000_usize, 0..4_u8), 0..400),
    ) {
        let mut queues = SourceQueues::new();
        let (mut numbers, mut seen, mut waiting) = ([0; 6], [0; 6], 0);
        let mut check = |next: Option<(u16, u32)>, waiting: &mut usize| {
            let Some((port, number)) = next else { return *waiting == 0 };
            *waiting -= 1;
            // `pop_longest` and `pop` take the oldest message of a queue alike.
            let expected = std::mem::replace(&mut seen[usize::from(port)], number + 1);
            expected == number
        };
        for (port, cost, action) in steps {
            push(&mut queues, port, numbers[usize::from(port)], cost);
            numbers[usize::from(port)] += 1;
            waiting += 1;
            prop_assert_eq!(queues.len(), waiting);
            match action {
                0 => queues.record_authentic(source(port)),
                1 => prop_assert!(check(queues.pop_longest(), &mut waiting)),
                2 => prop_assert!(check(pop(&mut queues), &mut waiting) && check(pop(&mut queues), &mut waiting)),
                _ => {}
            }
        }
        while waiting > 0 {
            prop_assert!(check(pop(&mut queues), &mut waiting));
        }
        prop_assert!(pop(&mut queues).is_none() && queues.is_empty());
    }
}
