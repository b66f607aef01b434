//! Tests with a kernel that is played, and a clock that goes on when all tasks wait; and with the kernel, in
//! a fresh network namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ipnet::IpNet;
use nix::sys::socket::{AddressFamily as Domain, SockFlag, SockType, socketpair};
use rtnetlink::packet_core::{DoneMessage, NLM_F_MULTIPART, NLMSG_DONE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use weft_lab::{Namespace, here};

use super::super::route_message;
use super::*;
use crate::routes::{Link, RouteError, TIMEOUT};

const TABLES: [u32; 3] = [7, 8, 51_820];

/// A kernel with a route in each of [`TABLES`].
#[derive(Clone, Copy, Default)]
struct PlayedKernel {
    /// How long it waits before each message.
    pause: Duration,
    /// How many lists are interrupted at their end.
    changing: usize,
}

impl PlayedKernel {
    /// Returns the tables in use, and how many lists were read for it.
    fn tables(self) -> (Result<BTreeSet<u32>, RouteError>, usize) {
        let (ours, theirs) =
            socketpair(Domain::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap();
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let lists = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&lists);
        runtime.spawn(async move {
            self.answer_all(UnixStream::from_std(theirs.into()).unwrap(), &counted).await;
        });
        let tables = Netlink::with(ours, runtime).unwrap().tables_in_use();
        (tables, lists.load(Ordering::Relaxed))
    }

    /// Answers each request. The socket keeps messages apart, unlike those that its type is for.
    async fn answer_all(self, mut socket: UnixStream, lists: &AtomicUsize) {
        let mut request = [0; 4096];
        loop {
            let len = socket.read(&mut request).await.unwrap();
            let header = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&request[..len]).unwrap().header;
            let link = Link { name: "wg0".to_owned(), index: 7, mtu: 1420 };
            let is_changing = lists.fetch_add(1, Ordering::Relaxed) < self.changing;
            // An interrupted list lacks what is there, and has what is not.
            let tables = if is_changing { &[7, 9][..] } else { &TABLES };
            let route = |table| route_message(&link, "10.0.0.0/8".parse().unwrap(), table);
            let routes = tables.iter().map(|table| RouteNetlinkMessage::NewRoute(route(*table)).into());
            for payload in routes.chain([NetlinkPayload::Done(DoneMessage::default())]) {
                tokio::time::sleep(self.pause).await;
                let is_interrupted = is_changing && matches!(payload, NetlinkPayload::Done(_));
                let mut message = NetlinkMessage::new(header, payload);
                message.header.flags = NLM_F_MULTIPART | if is_interrupted { NLM_F_DUMP_INTR } else { 0 };
                message.finalize();
                let mut bytes = vec![0; message.buffer_len()];
                message.serialize(&mut bytes);
                socket.write_all(&bytes).await.unwrap();
            }
        }
    }
}

#[test]
fn a_list_that_changes_while_it_is_read_is_read_again_from_the_beginning() {
    // Of IPv4 and of IPv6, in this order.
    for (changing, lists) in [(0, 2), (1, 3), (ATTEMPTS - 1, ATTEMPTS + 1)] {
        let (tables, read) = PlayedKernel { changing, ..PlayedKernel::default() }.tables();
        assert_eq!((tables.unwrap(), read), (BTreeSet::from(TABLES), lists), "{changing} changes");
    }
}

#[test]
fn a_list_that_changes_for_ever_is_taken_as_it_is() {
    let (tables, read) = PlayedKernel { changing: usize::MAX, ..PlayedKernel::default() }.tables();
    assert_eq!((tables.unwrap(), read), (BTreeSet::from([7, 9]), 2 * ATTEMPTS));
}

#[test]
fn a_list_of_the_kernel_is_complete_though_addresses_go_while_it_is_read() {
    if !here::namespaces_permitted() {
        return;
    }
    Namespace::new("lists").unwrap().run(|| {
        let kernel = Netlink::open().unwrap();
        let link = kernel.find_link("lo").unwrap();
        let nets = (0..1000_u32).map(|n| IpNet::from(IpAddr::from((0x0a00_0001 + (n << 8)).to_be_bytes())));
        let nets: Vec<IpNet> = nets.collect();
        for net in &nets {
            kernel.add_address(&link, *net).unwrap();
        }
        let (ours, theirs) = socketpair(Domain::Unix, SockType::SeqPacket, None, SockFlag::empty()).unwrap();
        std::thread::scope(|scope| {
            // Between the kernel and weft: after the first part of the first list, an address goes.
            let (gone, link) = (nets[0], &link);
            scope.spawn(move || pass_on(&theirs, || kernel.remove_address(link, gone).unwrap()));
            let found: BTreeSet<IpNet> =
                Netlink::adopt(ours).unwrap().addresses(link).unwrap().into_iter().collect();
            let wanted: BTreeSet<IpNet> = nets[1..].iter().copied().collect();
            let wrong = found.symmetric_difference(&wanted).filter(|net| !net.addr().is_loopback());
            assert_eq!(wrong.count(), 0, "of {} addresses", nets.len());
        });
    });
}

/// Passes requests on to the kernel, and its answers back, in small parts. Calls `change` after the first.
fn pass_on(to: &OwnedFd, change: impl Fn()) {
    let mut kernel = Socket::new(rtnetlink::sys::protocols::NETLINK_ROUTE).unwrap();
    kernel.bind_auto().unwrap();
    let (mut request, mut parts) = ([0; 4096], 0);
    while let Ok(len @ 1..) = nix::unistd::read(to, &mut request) {
        kernel.send_to(&request[..len], &SocketAddr::new(0, 0), 0).unwrap();
        loop {
            let mut part = Vec::with_capacity(4096);
            let (read, _) = kernel.recv_from(&mut part, 0).unwrap();
            nix::unistd::write(to, &part[..read]).unwrap();
            parts += 1;
            if parts == 1 {
                change();
            }
            if ends(&part) {
                break;
            }
        }
    }
}

/// Reports whether a list ends with this part.
fn ends(part: &[u8]) -> bool {
    let mut rest = part;
    while let Ok(message) = NetlinkBuffer::new_checked(rest) {
        if message.message_type() == NLMSG_DONE {
            return true;
        }
        rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[test]
fn a_list_may_take_long_as_long_as_it_goes_on() {
    let pause = TIMEOUT - Duration::from_secs(1);
    let (tables, _) = PlayedKernel { pause, ..PlayedKernel::default() }.tables();
    assert_eq!(tables.unwrap(), BTreeSet::from(TABLES));
}

#[test]
fn a_list_that_does_not_go_on_is_an_error() {
    let pause = TIMEOUT + Duration::from_secs(1);
    let error = PlayedKernel { pause, ..PlayedKernel::default() }.tables().0.unwrap_err();
    assert_eq!(error.to_string(), "cannot list the routes: the kernel did not answer within 10 s");
}
