//! Clients with wrong passwords, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{advance, sleep, timeout};
use weft_ipc::Places;
use weft_network::{Kernel, Network};

use super::*;
use crate::access::Users;
use crate::pipe::end;
use crate::proxy::Proxy;
use crate::reach::Reach;
use crate::{http, socks5};

fn source(number: u32) -> Source {
    IpAddr::V4(Ipv4Addr::from_bits(number)).into()
}

#[tokio::test(start_paused = true)]
async fn a_source_has_ten_wrong_passwords_a_second_whether_or_not_it_waits_for_the_answers() {
    for patience in [Duration::from_millis(20), Duration::from_secs(3600)] {
        let (guesses, compared) = (Arc::<Guesses>::default(), Arc::<AtomicUsize>::default());
        let mut clients = JoinSet::new();
        for _ in 0..200 {
            let (guesses, compared) = (Arc::clone(&guesses), Arc::clone(&compared));
            clients.spawn(async move {
                loop {
                    guesses.turn(source(1)).await;
                    compared.fetch_add(1, Relaxed);
                    let _ = timeout(patience, guesses.wrong(source(1))).await;
                }
            });
        }
        sleep(Duration::from_secs(60)).await;
        let compared = compared.load(Relaxed);
        assert!((500..=1 + 100 + 600).contains(&compared), "{compared} in a minute, {patience:?}");
        let begin = Instant::now();
        guesses.turn(source(2)).await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "another source");
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_password_waits_for_no_wrong_one_of_its_source_until_there_are_many() {
    let guesses = Guesses::default();
    let begin = Instant::now();
    for _ in 0..WAITING {
        guesses.turn(source(1)).await;
        guesses.record(source(1));
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    guesses.record(source(1));
    guesses.turn(source(1)).await;
    assert!((STEP..=STEP + TURN).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    guesses.wrong(source(1)).await;
    assert_eq!(begin.elapsed(), STEP * (WAITING + 2), "in its turn");
}

#[tokio::test(start_paused = true)]
async fn sources_with_the_least_to_answer_are_forgotten_first() {
    let guesses = Guesses::default();
    for _ in 0..=WAITING {
        guesses.record(source(0));
    }
    for number in 1..=2 * SOURCES as u32 {
        guesses.record(source(number));
    }
    assert_eq!(guesses.answered().len(), SOURCES);
    assert!(guesses.earliest(source(0)).is_some(), "the one with most stays");
    advance(STEP * (WAITING + 2)).await;
    guesses.record(source(1 << 20));
    assert_eq!(guesses.answered().len(), 1, "those that were answered go");
}

fn proxy() -> Arc<Proxy> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    std::fs::write(&path, "bob:b\n").unwrap();
    let network: Arc<dyn Network> = Arc::new(Kernel::of_this_thread());
    let reach = Reach::new(Arc::clone(&network), Vec::new(), None);
    let users = Some(Users::read(&path).unwrap());
    Arc::new(Proxy::new(reach, network, users, Duration::from_secs(10), 1 << 20, 1))
}

#[tokio::test(start_paused = true)]
async fn wrong_passwords_are_answered_in_turn_and_right_ones_at_once_by_both_protocols() {
    const CLIENTS: u32 = 50;
    const SECONDS: u32 = 2;
    let basic = |token| format!("GET / HTTP/1.1\r\nProxy-Authorization: Basic {token}\r\n\r\n").into_bytes();
    // `bob:x` and `bob:b` in base64; what is right goes on to a wrong request.
    for (is_http, wrong, refused, right, admitted) in [
        (true, basic("Ym9iOng="), &b"HTTP/1.1 407"[..], basic("Ym9iOmI="), &b"HTTP/1.1 400"[..]),
        (
            false,
            b"\x05\x01\x02\x01\x03bob\x01x".to_vec(),
            &[5, 2, 1, 1],
            b"\x05\x01\x02\x01\x03bob\x01b".to_vec(),
            &[5, 2, 1, 0],
        ),
    ] {
        let (proxy, places) = (proxy(), Places::new(1000));
        let begin = async |sent: &[u8]| {
            let (client, _, mut other) = end(1 << 16);
            other.write_all(sent).await.unwrap();
            let (place, proxy) = (Arc::new(places.take(source(1)).await), Arc::clone(&proxy));
            let served = tokio::spawn(async move {
                if is_http {
                    http::serve(client, place, proxy).await;
                } else {
                    socks5::serve(client, &place, &proxy).await;
                }
            });
            (served, other)
        };
        let mut guessing = Vec::new();
        for _ in 0..CLIENTS {
            guessing.push(begin(&wrong).await);
        }
        sleep(Duration::from_millis(1)).await;
        let now = Instant::now();
        let (_served, mut client) = begin(&right).await;
        let mut answer = vec![0; admitted.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!((&answer[..], now.elapsed()), (admitted, Duration::ZERO));
        sleep(Duration::from_secs(SECONDS.into())).await;
        let (answered, waiting): (Vec<_>, Vec<_>) =
            guessing.into_iter().partition(|(served, _)| served.is_finished());
        assert_eq!((answered.len(), waiting.len()), (20, 30), "ten a second");
        for (_, mut client) in answered {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(refused), "{answer:?}");
        }
    }
}
