//! Full and short buffers, and turns of the two families.

use super::*;

#[test]
fn a_full_socket_takes_a_part_then_waits_for_room() {
    if !here::namespaces_permitted() {
        return;
    }
    // No host answers for 10.9.0.99, so datagrams to it wait in the neighbour's queue and fill the socket.
    //   ┌─ near ────────────┐      ┌─ far ─┐
    //   │ eth0 10.9.0.1/24  ├──────┤ eth0  │
    //   └───────────────────┘      └───────┘
    let (near, far) = (Namespace::new("near").unwrap(), Namespace::new("far").unwrap());
    let addresses_a = vec!["10.9.0.1/24".parse().unwrap()];
    link::join(&near, &far, &link::LinkOptions { addresses_a, ..Default::default() }).unwrap();
    near.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _context = runtime.enter();
        let mut sockets = UdpSockets::bind(&UdpConfig { gso: false, ..UdpConfig::default() }).unwrap();
        let control = Socket::from(sockets.descriptors().unwrap().remove(0));
        crate::sockopt::set_option(&control, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();

        let sent = contents(1000, 64_000);
        let (mut unsent, mut parts, mut waited) = (&sent[..], 0, false);
        runtime.block_on(poll_fn(|cx| {
            while !unsent.is_empty() {
                match sockets.poll_send(cx, &to("10.9.0.99".parse().unwrap(), 9, 1000, unsent)) {
                    Poll::Ready(result) => {
                        let Sent { bytes, .. } = result.unwrap();
                        assert!(bytes > 0 && bytes % 1000 == 0);
                        (unsent, parts) = (&unsent[bytes..], parts + 1);
                    }
                    Poll::Pending => {
                        // The first time it only means that the runtime has not polled the socket yet.
                        if parts > 0 && !waited {
                            waited = true;
                            resolve_neighbour(&control, [10, 9, 0, 99]);
                        }
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(())
        }));
        assert!(waited && parts > 1);
        assert_eq!(sockets.stats().datagrams_sent, 64);
    });
}

/// Lets the kernel know the hardware address of a neighbour on eth0.
fn resolve_neighbour(socket: &Socket, address: [u8; 4]) {
    // SAFETY: an arpreq of zeros is valid.
    let mut request: libc::arpreq = unsafe { std::mem::zeroed() };
    request.arp_pa.sa_family = libc::AF_INET as libc::sa_family_t;
    // A sockaddr_in: port, then address.
    for (place, byte) in request.arp_pa.sa_data[2..].iter_mut().zip(address) {
        *place = byte as libc::c_char;
    }
    request.arp_ha.sa_family = libc::ARPHRD_ETHER;
    request.arp_ha.sa_data[0] = 2;
    request.arp_flags = libc::ATF_PERM | libc::ATF_COM;
    for (place, byte) in request.arp_dev.iter_mut().zip(b"eth0") {
        *place = *byte as libc::c_char;
    }
    // SAFETY: SIOCSARP reads an arpreq, which lives until after the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSARP as _, &raw const request) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[test]
fn neither_family_starves_the_other() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        for _ in 0..3 * RecvBuffers::COUNT {
            send(&mut a, to(V4, b.port(), 32, &one())).await.unwrap();
        }
        send(&mut a, to(V6, b.port(), 32, &one())).await.unwrap();
        let mut buffers = RecvBuffers::default();
        let mut families = Vec::new();
        for _ in 0..2 {
            // Lets the runtime update the readiness of the sockets, as between turns.
            tokio::task::yield_now().await;
            poll_fn(|cx| b.poll_recv(cx, &mut buffers)).await.unwrap();
            while let Some(received) = buffers.next() {
                families.push(received.meta.source.is_ipv6());
            }
        }
        assert!(families.contains(&false) && families.contains(&true), "{families:?}");
    });
}

#[test]
fn what_the_receive_buffer_has_no_room_for_is_counted_also_after_another_port_was_bound() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        let sent = contents(1200, 1200 * 40);
        // The buffer of 7 MiB, which the kernel doubles, is full long before the end.
        for _ in 0..2000 {
            send(&mut a, to(V4, b.port(), 1200, &sent)).await.unwrap();
        }
        let lost = b.stats().receive_overflows;
        assert!(lost > 0, "{:?}", b.stats());
        b.rebind(Some(0), None).unwrap();
        assert_eq!(b.stats().receive_overflows, lost);
    });
}
