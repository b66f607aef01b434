//! Opening: ports, families, marks and privileges.

use super::*;

#[test]
fn one_family_alone_works_and_refuses_the_other() {
    in_namespace(async || {
        let (mut a, mut b) = (UdpSockets::of_v4_alone(), open());
        assert_eq!(send(&mut a, to(V4, b.port(), 32, &one())).await.unwrap().bytes, 32);
        receive(&mut b, 1).await;
        let answer = send(&mut a, to(V6, b.port(), 32, &one())).await;
        let Err(SendError::Failed(error)) = answer else { panic!("{answer:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT));
    });
}

#[test]
fn both_families_share_a_random_port() {
    in_namespace(async || {
        let sockets = open();
        assert_ne!(sockets.port(), 0);
        let facts: Vec<SocketFacts> =
            sockets.descriptors().unwrap().iter().map(|socket| check_socket(socket).unwrap()).collect();
        assert!(facts.iter().all(|facts| facts.port == sockets.port()), "{facts:?}");
        assert!(!facts[0].is_v6 && facts.iter().any(|facts| facts.is_v6), "{facts:?}");
    });
}

#[test]
fn a_busy_port_is_named() {
    in_namespace(async || {
        let config = UdpConfig { port: 51820, ..UdpConfig::default() };
        let first = UdpSockets::bind(&config).unwrap();
        assert_eq!(first.port(), 51820);
        let error = UdpSockets::bind(&config).unwrap_err().to_string();
        assert!(error.starts_with("port 51820 is in use by another program"), "{error}");
        assert!(error.contains("0.0.0.0:51820"), "{error}");

        let config = UdpConfig { port: 51821, ..config };
        let v6_only = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        v6_only.set_only_v6(true).unwrap();
        v6_only.bind(&SocketAddr::new(V6, 51821).into()).unwrap();
        let error = UdpSockets::bind(&config).unwrap_err().to_string();
        assert!(error.contains("[::]:51821"), "{error}");

        // A child process that another test has just forked may hold the port for a moment.
        drop(v6_only);
        lab::wait_until_ok(|| UdpSockets::bind(&config).map(drop).map_err(|error| error.to_string()));
    });
}

#[test]
fn the_firewall_mark_is_set_on_both_sockets() {
    in_namespace(async || {
        let config = UdpConfig { fwmark: 0xca6c, ..UdpConfig::default() };
        let sockets = UdpSockets::bind(&config).unwrap();
        for socket in sockets.descriptors().unwrap() {
            assert_eq!(SockRef::from(&socket).mark().unwrap(), 0xca6c);
        }
    });
}

#[test]
fn opening_needs_no_privilege_without_a_mark() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _context = runtime.enter();
    open();
}

#[test]
fn a_socket_of_another_user_is_not_taken_over() {
    in_namespace(async || {
        let mine = nix::unistd::geteuid();
        let opened_by = |user: u32| {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(user));
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None);
            nix::unistd::setfsuid(mine);
            let socket = socket.unwrap();
            socket.bind(&SocketAddr::new("0.0.0.0".parse().unwrap(), 0).into()).unwrap();
            check_socket(&socket.into())
        };
        assert!(opened_by(mine.as_raw()).is_ok());
        // In a user namespace without further users there is no other.
        if nix::unistd::setfsuid(nix::unistd::Uid::from_raw(1)) == mine
            && nix::unistd::setfsuid(mine).as_raw() == 1
        {
            let refusal = opened_by(1).unwrap_err();
            assert!(refusal.contains("another user"), "{refusal}");
        }
    });
}
