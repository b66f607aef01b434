use std::net::IpAddr;

use tokio::time::{advance, timeout};

use super::*;

fn process(id: i32) -> Source {
    Source::Process { user: 0, id: Some(id) }
}

/// Returns places that clients of these sources have taken, 1 ms apart.
async fn taken(sources: &[i32]) -> (Arc<Places>, Vec<Option<Place>>) {
    let places = Places::new(sources.len());
    let mut held = Vec::new();
    for &source in sources {
        held.push(Some(places.take(process(source)).await));
        advance(Duration::from_millis(1)).await;
    }
    (places, held)
}

/// Connects another client, and returns the index of the client that is asked for its place. The new client
/// takes that place, and is appended to `held`. `None` if no client is asked within a second.
async fn asked(places: &Arc<Places>, held: &mut Vec<Option<Place>>) -> Option<usize> {
    let mut next = std::pin::pin!(places.take(process(100 + i32::try_from(held.len()).unwrap())));
    for _ in 0..1000 {
        assert!(timeout(Duration::from_millis(1), &mut next).await.is_err(), "there was a free place");
        for (index, place) in held.iter_mut().enumerate() {
            if let Some(asked) = place
                && timeout(Duration::ZERO, asked.wanted()).await.is_ok()
            {
                *place = None;
                held.push(Some(next.await));
                return Some(index);
            }
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn the_longest_awaited_client_of_the_largest_source_gives_way() {
    let (places, mut held) = taken(&[1, 2, 2, 2, 3]).await;
    assert_eq!(asked(&places, &mut held).await, Some(1));
    // Source 2 still has the most places.
    assert_eq!(asked(&places, &mut held).await, Some(2));
    // Every source has one place, and the server has waited for client 0 longest.
    assert_eq!(asked(&places, &mut held).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_peer_of_a_tunnel_keeps_no_other_out_by_moving_a_little() {
    let of = |peer: u8, host: u8| {
        let address = |last| IpAddr::from([10, peer, 0, last]);
        Source::Tunnel { peer: (address(0), 24), address: address(host) }
    };
    let places = Places::new(3);
    let mut held = Vec::new();
    for source in [of(2, 1), of(1, 1), of(1, 2)] {
        let place = places.take(source).await;
        place.begin_serving();
        advance(Duration::from_millis(1)).await;
        place.moved();
        held.push(place);
    }
    // The first of the peer with the most, whatever the new one is of.
    let mut next = std::pin::pin!(places.take(of(1, 3)));
    assert!(timeout(Duration::ZERO, &mut next).await.is_err());
    timeout(Duration::ZERO, held[1].wanted()).await.unwrap();
    drop(held.remove(1));
    next.await;
}

#[tokio::test(start_paused = true)]
async fn of_those_that_wait_one_of_the_source_with_the_fewest_places_is_next() {
    let (places, mut held) = taken(&[1, 1]).await;
    let mut waiting: Vec<_> = [1, 1, 2].map(|id| Box::pin(places.take(process(id)))).into();
    for next in &mut waiting {
        assert!(timeout(Duration::ZERO, next).await.is_err());
    }
    // It has asked last.
    held[0] = None;
    let of_other = timeout(Duration::ZERO, waiting.remove(2)).await.unwrap();
    assert!(timeout(Duration::ZERO, &mut waiting[0]).await.is_err());
    // One that waits no more keeps no place from the others.
    drop(waiting.remove(0));
    held[1] = None;
    timeout(Duration::ZERO, waiting.remove(0)).await.unwrap();
    drop(of_other);
}

#[tokio::test(start_paused = true)]
async fn of_sources_without_a_place_the_one_with_fewer_that_wait_is_next() {
    let (places, mut held) = taken(&[1]).await;
    let mut waiting: Vec<_> = [2, 2, 3].map(|id| Box::pin(places.take(process(id)))).into();
    for next in &mut waiting {
        assert!(timeout(Duration::ZERO, next).await.is_err());
    }
    held.clear();
    timeout(Duration::ZERO, waiting.remove(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_another_place_gives_way_at_once_to_a_source_with_fewer() {
    let of = |host| Source::from(IpAddr::from([192, 0, 2, host]));
    let (clients, answers) = (Places::new(4), Places::new(1));
    let _taken = answers.take(of(9)).await;
    let mut held = Vec::new();
    for host in [3, 1, 1, 1] {
        held.push(clients.take(of(host)).await);
        held.last().unwrap().begin_serving();
        advance(Duration::from_millis(1)).await;
    }
    _taken.begin_serving();
    let mut queued: Vec<_> = held.iter().map(|client| Box::pin(answers.take_also(client))).collect();
    for next in &mut queued {
        assert!(timeout(Duration::ZERO, next).await.is_err());
    }
    // Not to another client of that source, and not one of a source that has no more than the new one.
    let mut same = Box::pin(clients.take(of(1)));
    assert!(timeout(Duration::from_secs(9), &mut same).await.is_err());
    for client in &held {
        assert!(timeout(Duration::ZERO, client.wanted()).await.is_err());
    }
    let mut other = Box::pin(clients.take(of(2)));
    assert!(timeout(Duration::ZERO, &mut other).await.is_err());
    timeout(Duration::ZERO, held[1].wanted()).await.unwrap();
    drop(queued);
    drop(held.remove(1));
    let other = timeout(Duration::ZERO, other).await.unwrap();
    // Its request is on the way.
    for client in &held {
        client.begin_serving();
    }
    assert!(timeout(Duration::ZERO, &mut same).await.is_err());
    assert!(timeout(GRACE / 2, other.wanted()).await.is_err());
    assert!(timeout(GRACE, &mut same).await.is_err());
    timeout(Duration::ZERO, other.wanted()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_with_two_places_gives_way_when_either_is_needed() {
    let (clients, answers) = (Places::new(2), Places::new(1));
    let client = clients.take(process(1)).await;
    let answer = answers.take_also(&client).await;
    answer.expect_end(GRACE * 2);
    advance(GRACE).await;
    let other = clients.take(process(2)).await;
    let mut next = std::pin::pin!(answers.take_also(&other));
    assert!(timeout(Duration::ZERO, &mut next).await.is_err());
    assert!(timeout(Duration::ZERO, client.wanted()).await.is_err(), "it has a moment left");
    answer.expect_progress();
    assert!(timeout(GRACE, &mut next).await.is_err());
    timeout(Duration::ZERO, client.wanted()).await.unwrap();
    assert!(!client.is_asked() && answer.is_asked());
    drop(answer);
    next.await;
}

#[tokio::test(start_paused = true)]
async fn a_request_moves_a_client_to_the_end() {
    let (places, mut held) = taken(&[1, 2, 3]).await;
    let first = held[0].as_ref().unwrap();
    first.begin_serving();
    first.expect_request();
    for expected in [1, 2, 0] {
        assert_eq!(asked(&places, &mut held).await, Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_begun_a_request_has_a_moment_for_the_rest() {
    let (places, mut held) = taken(&[1, 2]).await;
    held[0].as_ref().unwrap().expect_progress();
    assert_eq!(asked(&places, &mut held).await, Some(1));
    advance(GRACE).await;
    assert_eq!(asked(&places, &mut held).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_sends_before_it_is_served_wins_it_no_time() {
    let (places, mut held) = taken(&[1, 2]).await;
    let [unknown, other] = [0, 1].map(|index: usize| held[index].as_ref().unwrap());
    unknown.expect_progress();
    advance(Duration::from_millis(1)).await;
    other.expect_progress();
    for _ in 0..3 {
        advance(GRACE * 2 / 3).await;
        unknown.expect_progress();
        unknown.expect_request();
    }
    assert_eq!(asked(&places, &mut held).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_not_admitted_gives_way_before_one_that_was() {
    // The admitted clients have waited longest, and are of the largest source.
    let (places, mut held) = taken(&[1, 1, 1, 2, 3]).await;
    for place in held[..3].iter().flatten() {
        place.admit();
    }
    for expected in [3, 4, 5, 6] {
        assert_eq!(asked(&places, &mut held).await, Some(expected));
    }
    // Their last place is not taken from one newcomer by the next.
    held.last().unwrap().as_ref().unwrap().admit();
    assert_eq!(asked(&places, &mut held).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_admitted_client_is_not_asked_while_strangers_have_a_moment_left() {
    let (places, mut held) = taken(&[1, 2, 2]).await;
    held[0].as_ref().unwrap().admit();
    for stranger in held[1..].iter().flatten() {
        stranger.expect_progress();
    }
    assert_eq!(asked(&places, &mut held).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_served_keeps_its_place_until_it_is_waited_for() {
    let (places, mut held) = taken(&[1, 1]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
    }
    assert_eq!(asked(&places, &mut held).await, None);
    held[1].as_ref().unwrap().expect_progress();
    // Not at once, but without any progress of the client.
    assert_eq!(asked(&places, &mut held).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_gives_way_whatever_is_done_for_it() {
    let (places, mut held) = taken(&[1, 2, 3]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
    }
    held[1].as_ref().unwrap().end();
    held[1].as_ref().unwrap().begin_serving();
    assert_eq!(asked(&places, &mut held).await, Some(1));
    // At once, if one waits already.
    held[3].as_ref().unwrap().begin_serving();
    let mut next = std::pin::pin!(places.take(process(3)));
    assert!(timeout(Duration::from_secs(9), &mut next).await.is_err());
    held[2].as_ref().unwrap().end();
    assert!(timeout(Duration::ZERO, held[2].as_ref().unwrap().wanted()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_of_which_nothing_moves_gives_way_though_it_is_served() {
    let (places, mut held) = taken(&[1, 2, 2, 3]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
    }
    // Of the last one the server says nothing.
    for place in held[..3].iter().flatten() {
        place.moved();
    }
    held[0].as_ref().unwrap().hold(true);
    advance(STUCK - Duration::from_secs(2)).await;
    assert_eq!(asked(&places, &mut held).await, None);
    advance(Duration::from_secs(2)).await;
    assert_eq!(asked(&places, &mut held).await, Some(0), "bytes wait for it");
    held[4].as_ref().unwrap().begin_serving();
    held[4].as_ref().unwrap().moved();
    advance(IDLE - STUCK - Duration::from_secs(5)).await;
    assert_eq!(asked(&places, &mut held).await, None);
    held[2].as_ref().unwrap().moved();
    advance(Duration::from_secs(5)).await;
    assert_eq!(asked(&places, &mut held).await, Some(1));
    held[5].as_ref().unwrap().begin_serving();
    assert_eq!(asked(&places, &mut held).await, None, "the other one has moved something");
}

#[tokio::test(start_paused = true)]
async fn the_source_with_most_places_gives_way_among_clients_that_move_nothing() {
    let (places, mut held) = taken(&[1, 2, 2]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
        place.moved();
        advance(Duration::from_millis(1)).await;
    }
    advance(IDLE).await;
    assert_eq!(asked(&places, &mut held).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn clients_that_send_nothing_take_no_more_than_a_share_from_served_ones_that_move_nothing() {
    let (places, mut held) = taken(&[1; 8]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
        place.moved();
    }
    advance(IDLE).await;
    for expected in [0, 1, 8, 9, 10] {
        assert_eq!(asked(&places, &mut held).await, Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_has_the_place_of_one_that_is_stuck_later() {
    let (places, held) = taken(&[1]).await;
    held[0].as_ref().unwrap().begin_serving();
    held[0].as_ref().unwrap().moved();
    let mut next = std::pin::pin!(places.take(process(2)));
    assert!(timeout(Duration::from_secs(1), &mut next).await.is_err());
    held[0].as_ref().unwrap().moved();
    held[0].as_ref().unwrap().hold(true);
    assert!(timeout(STUCK + LOOK_AGAIN, &mut next).await.is_err(), "it is not given up yet");
    assert!(timeout(Duration::ZERO, held[0].as_ref().unwrap().wanted()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn processes_of_a_user_take_no_places_from_another_one() {
    let places = Places::new(4);
    let mut held = Vec::new();
    for (user, id) in [(1, 1), (2, 2), (2, 3), (2, 4)] {
        held.push(Some(places.take(Source::Process { user, id: Some(id) }).await));
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(asked(&places, &mut held).await, Some(1));
    held.clear();
    assert!(places.lock().sources.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_first_that_is_ready_for_another_request_gives_way_to_the_client_that_waits() {
    let (places, held) = taken(&[1, 2]).await;
    for place in held.iter().flatten() {
        place.begin_serving();
    }
    let mut next = std::pin::pin!(places.take(process(3)));
    assert!(timeout(Duration::from_secs(9), &mut next).await.is_err());
    let second = held[1].as_ref().unwrap();
    second.expect_request();
    // Its next request had arrived already.
    second.begin_serving();
    assert!(timeout(Duration::ZERO, second.wanted()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_up_is_taken() {
    let (places, mut held) = taken(&[1]).await;
    held[0].as_ref().unwrap().begin_serving();
    let mut next = std::pin::pin!(places.take(process(2)));
    assert!(timeout(Duration::from_secs(9), &mut next).await.is_err());
    held.clear();
    next.await;
}
