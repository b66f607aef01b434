//! A thread of packets that panics ends its process, and the next process goes on.

use std::path::Path;

use weft::up::{Beginning, Daemon, Options};
use weft_host::{Host, Recording};
use weft_lab::{Process, Transfer, link, until};
use weft_tunnel::Event;

use crate::support::{Conf, End, Ended, Ends, Family, NAME, Running, alone, links_of};

const CHILD: &str = "WEFT_TEST_PANICKING_DAEMON";

/// Runs an interface that panics on its packet thread when a peer roams, until that happens.
fn run_until_it_panics(file: &Path) -> ! {
    let text = std::fs::read_to_string(file).unwrap();
    let config = weft_config::parse(&text, file, NAME.parse().unwrap()).unwrap().config;
    let endpoints = config.endpoint_addresses();
    let known: Vec<_> = endpoints.iter().flatten().copied().collect();
    let host = Host::prepare(&config, None, &known, &Recording::Nowhere).unwrap();
    let port = config.interface.settings.listen_port;
    let beginning = Beginning { endpoints, port, ..Beginning::default() };
    let on_event = |event| assert!(!matches!(event, Event::EndpointChanged { .. }), "on purpose");
    let _daemon = Daemon::start_on(
        host,
        &config,
        beginning,
        &Options::default(),
        Some(Box::new(on_event)),
        |_| Ok(()),
        || {},
    )
    .unwrap();
    eprintln!(" is up: port ");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_packet_thread_that_panics_ends_the_process_and_streams_go_on_with_the_next() {
    if let Some(file) = std::env::var_os(CHILD) {
        run_until_it_panics(Path::new(&file));
    }
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let (mut conf_a, conf_b) = Conf::pair(Family::V4);
    let directory = tempfile::tempdir().unwrap();
    let mut command = ends.a.command(std::env::current_exe().unwrap());
    let test = "panics::a_packet_thread_that_panics_ends_the_process_and_streams_go_on_with_the_next";
    command.args(["--exact", test, "--nocapture"]).env(CHILD, conf_a.write(directory.path(), NAME));
    let a = Process::start(&ends.a, command).unwrap();
    a.wait_for_line(" is up: port ");
    let b = Running::up(&ends.b, &conf_b, &[]);
    let streams = [
        Transfer::endless(&ends.a, &ends.b, End::B.inner(Family::V4)).unwrap(),
        Transfer::endless(&ends.b, &ends.a, End::A.inner(Family::V4)).unwrap(),
    ];

    // B roams.
    link::remove_address(&ends.b, "eth0", "192.0.2.2/24".parse().unwrap()).unwrap();
    link::add_address(&ends.b, "eth0", "192.0.2.22/24".parse().unwrap()).unwrap();
    let ended = Ended::of(a);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("on purpose"), "{ended:?}");
    assert!(ended.stderr.contains("panicked; ending the process"), "{ended:?}");
    until("nothing is left of it", || links_of(&ends.a).iter().all(|(name, ..)| name != NAME));

    conf_a.peers[0].endpoint = Some("192.0.2.22:51820".parse().unwrap());
    let a = Running::up(&ends.a, &conf_a, &[]);
    streams.into_iter().for_each(Transfer::end);
    a.stop();
    b.stop();
}
