//! Answers of a kernel over netlink: devices, addresses, routes, rules and errors, with attributes that weft
//! does not know, in one datagram or several, intact or damaged. And the kernel's events.
//!
//! Every request ends. Its result is what the kernel sent, or the kernel's error.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Mutex;

use ipnet::IpNet;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use weft_host::network::Observer;
use weft_host::routes::{Link, Netlink, RouteError};

use crate::input::Input;

/// The device that is asked for, and another one.
const DEVICES: [u32; 2] = [7, 3];
/// Requests of one input.
const REQUESTS: usize = 6;
/// Messages in one answer of the kernel.
const MESSAGES: usize = 6;

// Types and flags of linux/netlink.h and linux/rtnetlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWRULE: u16 = 32;
const NLM_F_MULTI: u16 = 2;
const FIB_RULE_INVERT: u32 = 2;

/// The answer to one request.
#[derive(Default)]
struct Answer {
    messages: Vec<Vec<u8>>,
    is_one_datagram: bool,
    /// Where a byte is changed, and how.
    damage: Vec<(u16, u8)>,
    /// How many bytes are missing at the end.
    missing: usize,
}

impl Answer {
    /// Reports whether the answer arrives undamaged.
    fn is_whole(&self) -> bool {
        self.damage.is_empty() && self.missing == 0
    }

    /// Returns the datagrams for a request with this sequence number.
    fn datagrams(&self, number: [u8; 4]) -> Vec<Vec<u8>> {
        let numbered = self.messages.iter().map(|message| {
            let mut message = message.clone();
            message[8..12].copy_from_slice(&number);
            message
        });
        let mut datagrams: Vec<Vec<u8>> =
            if self.is_one_datagram { vec![numbered.flatten().collect()] } else { numbered.collect() };
        if let Some(first) = datagrams.first_mut() {
            for (at, change) in &self.damage {
                let at = usize::from(*at) % first.len().max(1);
                if let Some(byte) = first.get_mut(at) {
                    *byte ^= change;
                }
            }
            first.truncate(first.len().saturating_sub(self.missing));
        }
        let mut done = message(NLMSG_DONE, NLM_F_MULTI, &[0; 4]);
        done[8..12].copy_from_slice(&number);
        datagrams.push(done);
        datagrams
    }
}

/// weft's end of a socket, and the prepared answers of the kernel.
struct World<'a> {
    netlink: Netlink,
    answers: &'a Mutex<VecDeque<Answer>>,
}

pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.byte() & 3 == 0 {
        return check_events(&mut input);
    }
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    let answers = Mutex::default();
    std::thread::scope(|scope| {
        let kernel = scope.spawn(|| answer_all(&theirs, &answers));
        let world = World { netlink: Netlink::adopt(ours).unwrap(), answers: &answers };
        for _ in 0..REQUESTS {
            if input.is_empty() {
                break;
            }
            world.ask(&mut input);
        }
        // The thread has ended when the next input begins: what it held is not a leak.
        drop(world);
        kernel.join().unwrap();
    });
}

/// Answers requests until the other end is closed.
fn answer_all(socket: &OwnedFd, answers: &Mutex<VecDeque<Answer>>) {
    let mut request = [0; 4096];
    while let Ok(len) = recv(socket.as_raw_fd(), &mut request, MsgFlags::empty())
        && len >= 16
    {
        let number = [request[8], request[9], request[10], request[11]];
        let answer = answers.lock().unwrap().pop_front().unwrap_or_default();
        for datagram in answer.datagrams(number) {
            // An empty one would say that the socket is closed.
            if !datagram.is_empty() {
                let _ = send(socket.as_raw_fd(), &datagram, MsgFlags::MSG_NOSIGNAL);
            }
        }
    }
}

impl World<'_> {
    fn ask(&self, input: &mut Input<'_>) {
        match input.below(7) {
            0 => self.ask_for_a_link(input),
            1 => self.ask_for_addresses(input),
            2 => self.ask_for_routes(input),
            3 => self.ask_for_tables(input),
            4 => self.ask_for_rules(input),
            5 => self.ask_for_an_mtu(input),
            _ => self.change(input),
        }
    }

    /// Prepares an answer of these messages. Returns whether it arrives undamaged.
    fn answers(&self, messages: Vec<Vec<u8>>, input: &mut Input<'_>) -> bool {
        let mut answer = Answer { messages, is_one_datagram: input.byte() & 1 == 0, ..Answer::default() };
        if input.byte() & 3 == 3 {
            answer.damage = (0..input.below(4)).map(|_| (input.u16(), input.byte() | 1)).collect();
            answer.missing = input.below(64);
        }
        let is_whole = answer.is_whole();
        self.answers.lock().unwrap().push_back(answer);
        is_whole
    }

    /// Prepares a refusal, for one of several reasons, and returns its error number; `None` if the kernel
    /// does not refuse.
    fn refuses(&self, input: &mut Input<'_>) -> Option<i32> {
        let reasons = [libc::EPERM, libc::EACCES, libc::ENODEV, libc::EEXIST, libc::EINVAL, libc::ENOBUFS];
        let reason = *reasons.get(input.below(16))?;
        let mut refusal = (-reason).to_ne_bytes().to_vec();
        refusal.extend([0; 16]);
        self.answers(vec![message(NLMSG_ERROR, 0, &refusal)], &mut Input::new(&[]));
        Some(reason)
    }

    /// Compares a result with what the kernel sent. After a damaged answer (`None`) any result is right
    /// except a timeout.
    fn compare<T: PartialEq + std::fmt::Debug>(&self, result: Result<T, RouteError>, said: Option<&T>) {
        self.answers.lock().unwrap().clear();
        match (result, said) {
            (Ok(result), Some(said)) => assert_eq!(&result, said),
            (Err(error), Some(said)) => panic!("{error}: {said:?}"),
            (Err(RouteError::Timeout { action }), None) => panic!("{action}: no end"),
            (_, None) => {}
        }
    }

    fn expect_refusal<T: std::fmt::Debug>(&self, result: Result<T, RouteError>, reason: i32) {
        self.answers.lock().unwrap().clear();
        match result {
            Err(RouteError::NoLink(_)) => assert_eq!(reason, libc::ENODEV),
            Err(RouteError::RouteExists { .. }) => assert_eq!(reason, libc::EEXIST),
            Err(RouteError::Ipv6Off { .. }) => assert_eq!(reason, libc::EACCES),
            // The kernel of this test gives every link the MTU that it likes.
            Err(RouteError::MtuForIpv6 { .. }) => assert!([libc::ENODEV, libc::EINVAL].contains(&reason)),
            Err(RouteError::Refused { error, .. }) => assert_eq!(error.raw_os_error(), Some(reason)),
            other => panic!("{reason}: {other:?}"),
        }
    }

    fn ask_for_a_link(&self, input: &mut Input<'_>) {
        let name = "weft0".parse().unwrap();
        if let Some(reason) = self.refuses(input) {
            return self.expect_refusal(self.netlink.link(&name), reason);
        }
        let (bytes, mtu) = link(RTM_NEWLINK, DEVICES[0], input);
        let is_whole = self.answers(vec![bytes], input);
        let link = Link { name: "weft0".to_owned(), index: DEVICES[0], mtu: mtu.unwrap_or(1500) };
        self.compare(self.netlink.link(&name), is_whole.then_some(&link));
    }

    fn ask_for_addresses(&self, input: &mut Input<'_>) {
        if let Some(reason) = self.refuses(input) {
            return self.expect_refusal(self.netlink.addresses(&own_link()), reason);
        }
        let (mut messages, mut own_addresses) = (Vec::new(), Vec::new());
        for _ in 0..input.below(MESSAGES) {
            let device = DEVICES[input.below(2)];
            let net = net(input);
            let mut body = vec![family(net.addr()), net.prefix_len(), 0, 0];
            body.extend(device.to_ne_bytes());
            strange(&mut body, input);
            let address = octets(net.addr());
            if input.byte() & 1 == 0 {
                // The far end of a point-to-point link has a separate attribute.
                let far: Vec<u8> = address.iter().map(|byte| byte ^ 1).collect();
                attribute(&mut body, 1, &far);
                attribute(&mut body, 2, &address);
            } else {
                attribute(&mut body, 1, &address);
            }
            strange(&mut body, input);
            messages.push(message(RTM_NEWADDR, NLM_F_MULTI, &body));
            if device == DEVICES[0] {
                own_addresses.push(net);
            }
        }
        let is_whole = self.answers(messages, input);
        self.compare(self.netlink.addresses(&own_link()), is_whole.then_some(&own_addresses));
    }

    /// Prepares lists of the routes of both families. Returns these, and whether they arrive undamaged.
    fn answers_with_routes(&self, input: &mut Input<'_>) -> (Vec<Route>, bool) {
        let (mut all, mut is_whole) = (Vec::new(), true);
        for is_v4 in [true, false] {
            let routes: Vec<Route> = (0..input.below(MESSAGES)).map(|_| Route::new(is_v4, input)).collect();
            let messages = routes.iter().map(|route| route.message(NLM_F_MULTI, input)).collect();
            is_whole &= self.answers(messages, input);
            all.extend(routes);
        }
        (all, is_whole)
    }

    fn ask_for_routes(&self, input: &mut Input<'_>) {
        let (routes, is_whole) = self.answers_with_routes(input);
        let own = routes.iter().filter(|route| route.device == Some(DEVICES[0]));
        let expected: HashSet<_> = own.map(|route| (route.net, route.table)).collect();
        self.compare(self.netlink.routes_through(&own_link()), is_whole.then_some(&expected));
    }

    fn ask_for_tables(&self, input: &mut Input<'_>) {
        let (routes, is_whole) = self.answers_with_routes(input);
        let tables: BTreeSet<u32> = routes.iter().map(|route| route.table).collect();
        self.compare(self.netlink.tables_in_use(), is_whole.then_some(&tables));
    }

    fn ask_for_rules(&self, input: &mut Input<'_>) {
        let mut expected = Vec::new();
        let mut is_whole = true;
        for is_v4 in [true, false] {
            let mut messages = Vec::new();
            for _ in 0..input.below(MESSAGES) {
                let (priority, table) = (u32::from(input.u16()), table(input));
                let (mark, is_inverted) = (input.u32() & 0xff, input.byte() & 1 == 0);
                let mut body = vec![if is_v4 { 2 } else { 10 }, 0, 0, 0, table_byte(table), 0, 0, 1];
                body.extend(if is_inverted { FIB_RULE_INVERT } else { 0 }.to_ne_bytes());
                // Without a priority it is the first rule, without a mark it is for all packets.
                for (kind, value) in [(6, priority), (10, mark), (15, table)] {
                    strange(&mut body, input);
                    if value != 0 {
                        attribute(&mut body, kind, &value.to_ne_bytes());
                    }
                }
                messages.push(message(RTM_NEWRULE, NLM_F_MULTI, &body));
                expected.push((!is_v4, priority, (mark != 0).then_some(mark), is_inverted, table));
            }
            is_whole &= self.answers(messages, input);
        }
        expected.sort_by_key(|rule| (rule.0, rule.1));
        let found = self.netlink.rules().map(|rules| {
            let of = |rule: &weft_host::routes::FoundRule| {
                let is_v6 = rule.family == weft_host::routes::Family::V6;
                (is_v6, rule.priority, rule.mark, rule.is_inverted, rule.table)
            };
            rules.iter().map(of).collect::<Vec<_>>()
        });
        self.compare(found, is_whole.then_some(&expected));
    }

    fn ask_for_an_mtu(&self, input: &mut Input<'_>) {
        let towards = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut route = Route::new(true, input);
        route.mtu = u32::from(input.u16() & 0x3ff);
        let mut is_whole = self.answers(vec![route.message(0, input)], input);
        let devices =
            if route.hops.is_empty() { route.device.into_iter().collect() } else { route.hops.clone() };
        let mut smallest = None;
        for device in devices {
            let (bytes, mtu) = link(RTM_NEWLINK, device, input);
            is_whole &= self.answers(vec![bytes], input);
            smallest = smallest.into_iter().chain(mtu).min();
        }
        let mtu = if route.mtu > 0 { route.mtu } else { smallest.unwrap_or(1500) };
        self.compare(self.netlink.mtu_towards(towards, 0), is_whole.then_some(&mtu));
    }

    fn change(&self, input: &mut Input<'_>) {
        let net = net(input);
        let change = input.below(3);
        let reason = self.refuses(input);
        if reason.is_none() {
            let mut consent = vec![0; 4];
            consent.extend([0; 16]);
            let is_whole = self.answers(vec![message(NLMSG_ERROR, 0, &consent)], input);
            if !is_whole {
                // A damaged acknowledgement may mean anything.
                let result = self.netlink.set_up(&own_link());
                return self.compare(result, None);
            }
        }
        let result = match change {
            0 => self.netlink.add_address(&own_link(), net),
            1 => self.netlink.set_up(&own_link()),
            _ => self.netlink.set_mtu(&own_link(), 1420),
        };
        match reason {
            Some(reason) => self.expect_refusal(result, reason),
            None => self.compare(result, Some(&())),
        }
    }
}

/// A route that the input describes.
struct Route {
    net: IpNet,
    table: u32,
    device: Option<u32>,
    hops: Vec<u32>,
    /// MTU of the route in bytes; 0: none.
    mtu: u32,
}

impl Route {
    fn new(is_v4: bool, input: &mut Input<'_>) -> Self {
        let net = net_of(is_v4, input).trunc();
        let (table, choice) = (table(input), input.byte());
        let device = (choice & 3 != 0).then(|| DEVICES[usize::from(choice >> 2 & 1)]);
        let hops = match device {
            Some(_) => Vec::new(),
            None => (0..input.below(4)).map(|_| DEVICES[input.below(2)]).collect(),
        };
        Self { net, table, device, hops, mtu: 0 }
    }

    fn message(&self, flags: u16, input: &mut Input<'_>) -> Vec<u8> {
        let Self { net, table, device, hops, mtu } = self;
        let mut body = vec![family(net.addr()), net.prefix_len(), 0, 0, table_byte(*table), 4, 0, 1];
        body.extend([0; 4]);
        strange(&mut body, input);
        if net.prefix_len() > 0 {
            attribute(&mut body, 1, &octets(net.addr()));
        }
        if *mtu > 0 {
            let mut metrics = Vec::new();
            strange(&mut metrics, input);
            attribute(&mut metrics, 2, &mtu.to_ne_bytes());
            attribute(&mut body, 8, &metrics);
        }
        if let Some(device) = device {
            attribute(&mut body, 4, &device.to_ne_bytes());
        }
        let next_hops: Vec<u8> =
            hops.iter().flat_map(|device| [[8, 0, 0, 0], device.to_ne_bytes()]).flatten().collect();
        if !hops.is_empty() {
            attribute(&mut body, 9, &next_hops);
        }
        strange(&mut body, input);
        attribute(&mut body, 15, &table.to_ne_bytes());
        message(RTM_NEWROUTE, flags, &body)
    }
}

fn own_link() -> Link {
    Link { name: "weft0".to_owned(), index: DEVICES[0], mtu: 1420 }
}

/// Returns a message about a device, and the MTU in it.
fn link(kind: u16, device: u32, input: &mut Input<'_>) -> (Vec<u8>, Option<u32>) {
    let mut body = vec![0, 0, 0xfe, 0xff];
    body.extend(device.to_ne_bytes());
    body.extend([input.u32(), 0].map(u32::to_ne_bytes).concat());
    attribute(&mut body, 3, b"weft0\0");
    strange(&mut body, input);
    let mtu = (input.byte() & 7 != 0).then(|| u32::from(input.u16()));
    if let Some(mtu) = mtu {
        attribute(&mut body, 4, &mtu.to_ne_bytes());
    }
    strange(&mut body, input);
    (message(kind, 0, &body), mtu)
}

/// Returns a message of netlink(7): length, type, flags, sequence number and port (both 0), and the body.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend([kind, flags].map(u16::to_ne_bytes).concat());
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend([4 + value.len() as u16, kind].map(u16::to_ne_bytes).concat());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Adds an attribute that weft does not know, for one choice in eight.
fn strange(to: &mut Vec<u8>, input: &mut Input<'_>) {
    let choice = input.byte();
    if choice & 7 == 7 {
        attribute(to, 200 + u16::from(choice >> 3), input.bytes(usize::from(choice >> 3)));
    }
}

fn net(input: &mut Input<'_>) -> IpNet {
    let is_v4 = input.byte() & 1 == 0;
    net_of(is_v4, input)
}

/// An address and the length of its prefix.
fn net_of(is_v4: bool, input: &mut Input<'_>) -> IpNet {
    let mut bytes = [0; 16];
    let (last, len) = (input.u32(), input.byte());
    bytes[..4].copy_from_slice(&last.to_be_bytes());
    let (address, longest) =
        if is_v4 { (IpAddr::V4(Ipv4Addr::from(last)), 32) } else { (IpAddr::V6(Ipv6Addr::from(bytes)), 128) };
    let net = IpNet::new(address, len % (longest + 1)).unwrap();
    if input.byte() & 1 == 0 { net } else { net.trunc() }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The main table, the local one, one of weft's, or another.
fn table(input: &mut Input<'_>) -> u32 {
    match input.below(4) {
        0 => 254,
        1 => 255,
        2 => 51_820,
        _ => 1 + u32::from(input.u16()),
    }
}

/// Returns the number of a table for the header, which has one byte for it.
fn table_byte(table: u32) -> u8 {
    u8::try_from(table).unwrap_or_default()
}

/// Checks the events in datagrams, intact or damaged: only a message about weft's device changes its MTU or
/// removes it.
fn check_events(input: &mut Input<'_>) {
    let mut observer = Observer::new(Some(&own_link()));
    let mut mtu = own_link().mtu;
    let mut is_there = true;
    for _ in 0..REQUESTS {
        let (mut datagram, mut told, mut gone) = (Vec::new(), None, false);
        for _ in 0..input.below(4) {
            let device = DEVICES[input.below(2)];
            let event = match input.below(4) {
                0 | 1 => {
                    let (event, mtu) = link(RTM_NEWLINK, device, input);
                    told = mtu.filter(|_| device == DEVICES[0] && is_there && !gone).or(told);
                    event
                }
                2 => {
                    gone |= device == DEVICES[0];
                    link(RTM_DELLINK, device, input).0
                }
                _ => {
                    let is_v4 = input.byte() & 1 == 0;
                    Route::new(is_v4, input).message(0, input)
                }
            };
            datagram.extend(event);
        }
        let is_whole = input.byte() & 1 == 0;
        if !is_whole {
            datagram.truncate(input.u16().into());
            let len = datagram.len().max(1);
            for _ in 0..input.below(4) {
                let (at, change) = (usize::from(input.u16()) % len, input.byte());
                if let Some(byte) = datagram.get_mut(at) {
                    *byte ^= change;
                }
            }
        }
        let change = observer.read(&datagram);
        if !is_whole {
            // A damaged message may mean anything.
            return;
        }
        assert!(!change.missed, "{datagram:02x?}");
        assert_eq!(change.device_gone, gone && is_there, "{datagram:02x?}");
        is_there &= !gone;
        if let Some(told) = told {
            assert!(change.device_mtu.is_none_or(|mtu| mtu == told), "{datagram:02x?}");
            assert!(change.device_mtu.is_some() || told == mtu || gone, "{datagram:02x?}");
            mtu = told;
        } else {
            assert_eq!(change.device_mtu, None);
        }
    }
}
