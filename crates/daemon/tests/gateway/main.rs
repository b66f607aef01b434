//! The files of `contrib/gateway` as they are: a gateway, the three peers of its configuration, and the
//! world.
//!
//! ```text
//!   laptop   10.9.0.2  192.0.2.6 ───┐
//! desktop  10.9.0.3  192.0.2.10 ──┼── gateway ── wan 198.51.100.2  2001:db8:1::2 ─── 198.51.100.1
//! 2001:db8:1::1  world phone    10.9.0.4  192.0.2.14 ──┘   10.9.0.1
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

#[path = "../support/ip.rs"]
mod ip;
mod machine;
mod one_big_peer;
mod packet_thread_needs;
mod packet_threads;
mod scene;
mod stopped_thread;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use weft_lab::{Namespace, until};

use crate::scene::{DESKTOP, LAPTOP, PHONE, Scene, WORLD, gateway_outside, inner};

/// Far less than the two minutes that TCP tries without an answer.
const PATIENCE: Duration = Duration::from_secs(45);

/// Connects, and gives both ends.
fn connect(from: &Namespace, to: &Namespace, address: IpAddr) -> Result<(TcpStream, TcpStream), ErrorKind> {
    let listener = to.run(|| TcpListener::bind((address, 0))).unwrap();
    let listening = listener.local_addr().unwrap();
    let near = from.run(|| TcpStream::connect_timeout(&listening, PATIENCE)).map_err(|error| error.kind())?;
    let (far, _) = listener.accept().unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    Ok((near, far))
}

/// That a byte goes each way.
#[track_caller]
fn assert_alive((near, far): &mut (TcpStream, TcpStream)) {
    near.write_all(b"?").unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(b"!").unwrap();
    near.read_exact(&mut [0]).unwrap();
}

/// That it is refused at once, by a gateway that says so.
#[track_caller]
fn assert_refused(scene: &Scene, from: u8, to: u8) {
    for address in inner(to) {
        let error = connect(scene.client(from), scene.client(to), address).map(drop).unwrap_err();
        assert_eq!(error, ErrorKind::ConnectionRefused, "from {from} to {address}");
    }
}

#[test]
fn peers_reach_the_world_with_the_address_of_the_gateway() {
    let _shared = machine::shared();
    let Some(scene) = Scene::new() else { return };
    for client in [LAPTOP, DESKTOP, PHONE] {
        for (world, gateway) in WORLD.map(|text| text.parse().unwrap()).into_iter().zip(gateway_outside()) {
            let mut connection = connect(scene.client(client), &scene.world, world).unwrap();
            assert_eq!(connection.1.peer_addr().unwrap().ip(), gateway, "from {client}");
            assert_alive(&mut connection);
        }
    }
}

#[test]
fn peers_reach_each_other_only_where_they_may() {
    let _shared = machine::shared();
    let Some(scene) = Scene::new() else { return };
    for (from, to) in [(LAPTOP, DESKTOP), (DESKTOP, LAPTOP)] {
        for address in inner(to) {
            assert_alive(&mut connect(scene.client(from), scene.client(to), address).unwrap());
        }
    }
    for (from, to) in [(LAPTOP, PHONE), (PHONE, LAPTOP), (DESKTOP, PHONE), (PHONE, DESKTOP)] {
        assert_refused(&scene, from, to);
    }
    // A pair that is taken out is parted at once, with what it has open.
    let mut open = connect(scene.client(LAPTOP), scene.client(DESKTOP), inner(DESKTOP)[0]).unwrap();
    assert_alive(&mut open);
    scene.nft(&["delete", "element", "inet", "weft-gateway", "may_talk_4", "{ 10.9.0.2 . 10.9.0.3 }"]);
    scene.nft(&["delete", "element", "inet", "weft-gateway", "may_talk_6", "{ fd09::2 . fd09::3 }"]);
    assert_refused(&scene, LAPTOP, DESKTOP);
    // The reset may be there already: the kernel's late acknowledgement of the last byte meets the rules too.
    let mut near = &open.0;
    let answer = near.write_all(b"?").and_then(|()| near.read(&mut [0]));
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // And joined again by a reload of the file.
    scene.load();
    assert_alive(&mut connect(scene.client(DESKTOP), scene.client(LAPTOP), inner(LAPTOP)[0]).unwrap());
}

#[test]
fn the_world_reaches_peers_only_with_answers() {
    let _shared = machine::shared();
    let Some(scene) = Scene::new() else { return };
    // A host next to the gateway that knows where the peers are.
    for (address, world) in inner(LAPTOP).into_iter().zip(WORLD) {
        let asked = scene.client(LAPTOP).run(|| UdpSocket::bind((address, 0))).unwrap();
        asked.set_nonblocking(true).unwrap();
        let before = scene.counted("not asked for");
        let stranger = scene.world.run(|| UdpSocket::bind((world.parse::<IpAddr>().unwrap(), 0))).unwrap();
        stranger.send_to(b"hello", asked.local_addr().unwrap()).unwrap();
        until("the gateway meets it", || scene.counted("not asked for") > before);
        assert_eq!(asked.recv_from(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        // An answer to the peer's own question does come.
        let question = scene.client(LAPTOP).run(|| UdpSocket::bind((address, 0))).unwrap();
        question.set_read_timeout(Some(PATIENCE)).unwrap();
        question.send_to(b"?", stranger.local_addr().unwrap()).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let (_, seen): (usize, SocketAddr) = stranger.recv_from(&mut [0; 8]).unwrap();
        stranger.send_to(b"!", seen).unwrap();
        question.recv_from(&mut [0; 8]).unwrap();
    }
}

#[test]
fn a_reload_of_the_rules_ends_no_connection() {
    let _shared = machine::shared();
    let Some(scene) = Scene::new() else { return };
    let mut connection = connect(scene.client(PHONE), &scene.world, WORLD[0].parse().unwrap()).unwrap();
    assert_alive(&mut connection);
    scene.load();
    assert_alive(&mut connection);
}
