//! An end forgets its sessions, or comes only later: a new handshake, and TCP goes on.

use std::time::{Duration, Instant};

use weft_lab::mounts::separate_sockets;
use weft_lab::{Process, until};

use crate::conversation::{Conversation, MIB};
use crate::topology::{Cable, Family, weft_endpoint};
use crate::weft_end::Weft;
use crate::wireguard_go::WireguardGo;

/// A handshake initiation (whitepaper, section 5.4).
const INITIATION: u64 = 148;

#[test]
fn a_peer_that_appears_later_is_found_by_the_next_initiation() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start_empty(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let (weft_place, go_place) = (lab.weft_place(Family::V4), lab.go_place(Family::V4));
    std::thread::scope(|scope| {
        let conversation = scope.spawn(|| Conversation::start(weft_place, go_place));
        let sent = || weft.peer(&lab.go.public_key()).sent_bytes;
        until("weft tries again", || sent() >= 2 * INITIATION);
        assert_eq!(sent() % INITIATION, 0, "something else than initiations was sent");
        go.configure(&lab.go);
        let configured = Instant::now();
        until("a handshake", || weft.peer(&lab.go.public_key()).last_handshake.is_some());
        // Initiations are 5 s apart (Rekey-Timeout).
        assert!(configured.elapsed() < Duration::from_secs(20), "{:?}", configured.elapsed());
        let conversation = conversation.join().unwrap();
        conversation.wait_for_more(MIB);
        conversation.finish();
    });
}

#[test]
fn tcp_goes_on_when_wireguard_go_has_forgotten_the_session() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = Weft::start(&lab.weft_side, &lab.weft);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    for handshakes in 2..=3 {
        conversation.wait_for_more(2 * MIB);
        go.remove_peer(&lab.weft.public_key());
        go.add_peer(&lab.weft.as_peer(Some(weft_endpoint(Family::V4))));
        until("a new handshake", || weft.snapshot().tunnel.handshakes >= handshakes);
    }
    conversation.wait_for_more(2 * MIB);
    conversation.finish();
}

#[test]
fn tcp_goes_on_when_wireguard_go_is_killed_and_comes_back() {
    let Some(lab) = Cable::both_begin(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let _weft = Weft::start(&lab.weft_side, &lab.weft);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    conversation.wait_for_more(2 * MIB);
    drop(go);
    let _go = WireguardGo::start(&lab.go_side, &lab.go);
    conversation.wait_for_more(2 * MIB);
    conversation.finish();
}

#[test]
fn tcp_goes_on_when_weft_goes_down_and_up_again() {
    let Some(lab) = Cable::weft_begins(Family::V4) else { return };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let mut weft = Weft::start(&lab.weft_side, &lab.weft);
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    for tun_threads in [2, 0] {
        conversation.wait_for_more(2 * MIB);
        weft.stop();
        weft = Weft::start_with_threads(&lab.weft_side, &lab.weft, tun_threads);
    }
    conversation.wait_for_more(2 * MIB);
    conversation.finish();
    assert!(go.peer(&lab.weft.public_key()).latest_handshake > 0);
}

#[test]
fn tcp_goes_on_when_the_binary_is_killed_and_started_again() {
    let Some(lab) = Cable::both_begin(Family::V4) else { return };
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("weft0.conf");
    std::fs::write(&file, lab.weft.wg_quick_text()).unwrap();
    let start = || {
        let mut command = lab.weft_side.command(env!("CARGO_BIN_EXE_weft"));
        command.env(weft_ipc::runtime_dir::VARIABLE, file.with_extension("run"));
        command.arg("up").arg(&file);
        separate_sockets(&mut command);
        Process::start(&lab.weft_side, command).unwrap()
    };
    let go = WireguardGo::start(&lab.go_side, &lab.go);
    let weft = start();
    // The address comes first, and the way to the peer only when the link is up.
    until("weft is up", || {
        let socket = lab.weft_side.run(|| std::net::UdpSocket::bind((lab.weft_place(Family::V4).1, 0)));
        socket.is_ok_and(|socket| socket.connect((lab.go_place(Family::V4).1, 9)).is_ok())
    });
    let conversation = Conversation::start(lab.weft_place(Family::V4), lab.go_place(Family::V4));
    conversation.wait_for_more(2 * MIB);
    drop(weft);
    let _weft = start();
    conversation.wait_for_more(2 * MIB);
    conversation.finish();
    assert_eq!(go.peer(&lab.weft.public_key()).endpoint, Some(weft_endpoint(Family::V4)));
}
