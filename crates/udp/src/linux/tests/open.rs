//! Opening: ports, families, marks and privileges.

use super::*;

#[test]
fn one_family_alone_works_and_refuses_the_other() {
    in_namespace(
        "one_family_alone_works_and_refuses_the_other",
        |_| (),
        async || {
            let config = UdpConfig::default();
            let (v4, _) = socket::bind_both(&config).unwrap();
            let mut a =
                UdpSockets::from_sockets(v4.into_iter().collect(), Vec::new(), true, &config).unwrap();
            let mut b = open();
            assert_eq!(send(&mut a, to(V4, b.port(), 32, &one())).await.unwrap().bytes, 32);
            receive(&mut b, 1).await;
            let answer = send(&mut a, to(V6, b.port(), 32, &one())).await;
            let Err(SendError::Failed(error)) = answer else { panic!("{answer:?}") };
            assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT));
        },
    );
}

#[test]
fn both_families_share_a_random_port() {
    in_namespace(
        "both_families_share_a_random_port",
        |_| (),
        async || {
            let sockets = open();
            assert_ne!(sockets.port(), 0);
            let ports =
                [&sockets.v4, &sockets.v6].map(|family| family.as_ref().unwrap().first().local_port());
            assert_eq!(ports, [Some(sockets.port()); 2]);
        },
    );
}

#[test]
fn what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send() {
    in_namespace(
        "what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send",
        |_| (),
        async || {
            let sockets = open();
            let told = sockets.features().send_buffer_bytes;
            let family = sockets.v4.as_ref().unwrap();
            assert_eq!(told, family.first().send_buffer_bytes());
            // The others keep the default of the system.
            assert!(family.each().skip(1).all(|other| other.send_buffer_bytes() < told), "{told}");
        },
    );
}

#[test]
fn a_busy_port_is_named() {
    in_namespace(
        "a_busy_port_is_named",
        |_| (),
        async || {
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
        },
    );
}

#[test]
fn the_firewall_mark_is_set_on_both_sockets() {
    in_namespace(
        "the_firewall_mark_is_set_on_both_sockets",
        |_| (),
        async || {
            let config = UdpConfig { fwmark: 0xca6c, ..UdpConfig::default() };
            let sockets = UdpSockets::bind(&config).unwrap();
            for socket in sockets.each() {
                assert_eq!(socket.io.get_ref().mark().unwrap(), 0xca6c);
            }
        },
    );
}

#[test]
fn opening_needs_no_privilege_without_a_mark() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _context = runtime.enter();
    open();
}
