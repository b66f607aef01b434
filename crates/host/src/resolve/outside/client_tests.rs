use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

/// The header of a message.
const HEADER: usize = 12;
/// The type of an IPv6 address (RFC 3596).
const AAAA: u8 = 28;

/// What a server has done: `udp` or `tcp`, the name, and whether the query had EDNS.
type Log = Arc<Mutex<Vec<String>>>;

/// What a server answers to a query for a name: the code, and addresses of 192.0.2.0/24; `None`: nothing.
type Zone = fn(&str, bool) -> Option<(u8, Vec<u8>)>;

/// A server on the loopback, over UDP and TCP. Over UDP it says that it has more than `fits` addresses only.
fn serve(zone: Zone, fits: usize) -> (Server, Log) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = TcpListener::bind(address).unwrap();
    let log = Log::default();
    let (noted, also) = (log.clone(), log.clone());
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..length], zone, fits, "udp", &noted) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query).unwrap();
            if let Some(answer) = answer(&query, zone, usize::MAX, "tcp", &also) {
                let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                // In pieces, as a network may bring it.
                stream.write_all(&length[..1]).unwrap();
                stream.write_all(&[&length[1..], &answer].concat()).unwrap();
            }
        }
    });
    (Server { address, device: None }, log)
}

fn answer(query: &[u8], zone: Zone, fits: usize, over: &str, log: &Log) -> Option<Vec<u8>> {
    let (mut end, mut labels) = (HEADER, Vec::new());
    while query[end] != 0 {
        let length = usize::from(query[end]);
        labels.push(String::from_utf8(query[end + 1..=end + length].to_vec()).unwrap());
        end += length + 1;
    }
    let (name, is_v6, has_edns) = (labels.join("."), query[end + 2] == AAAA, query[HEADER - 1] > 0);
    if !is_v6 {
        log.lock().unwrap().push(format!("{over} {name}{}", if has_edns { " edns" } else { "" }));
    }
    let (code, lasts) = zone(&name, has_edns)?;
    let lasts: Vec<u8> = if is_v6 { Vec::new() } else { lasts };
    let is_cut = lasts.len() > fits;
    let lasts = &lasts[..lasts.len().min(fits)];
    let mut answer = query[..2].to_vec();
    answer.extend([if is_cut { 0x83 } else { 0x81 }, 0x80 | code, 0, 1, 0]);
    answer.extend([u8::try_from(lasts.len()).unwrap(), 0, 0, 0, 0]);
    answer.extend(&query[HEADER..end + 5]);
    for last in lasts {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, *last]);
    }
    Some(answer)
}

fn ask(servers: &[&Server], lines: &str, name: &str) -> Result<Vec<u8>, String> {
    let servers = servers.iter().map(|server| (*server).clone()).collect();
    let client = Client { upstream: Upstream::parse(lines), servers };
    let open = |server: &Server, kind| Socket::new(socket2::Domain::for_address(server.address), kind, None);
    let last = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(_) => panic!("no such address"),
    };
    let found = client.ask(name, &open).map_err(|error| error.to_string())?;
    Ok(found.into_iter().map(last).collect())
}

fn heard(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn servers_are_asked_in_turn_until_one_answers() {
    let (failing, asked_first) = serve(|_, _| Some((2, vec![])), 9);
    let (refusing, _) = serve(|_, _| Some((5, vec![])), 9);
    let (silent, _) = serve(|_, _| None, 9);
    let (good, asked) = serve(|_, _| Some((0, vec![1, 2])), 9);
    let dead = Server { address: ([127, 0, 0, 1], 1).into(), device: None };
    let all = [&failing, &refusing, &dead, &silent, &good];
    assert_eq!(ask(&all, "options timeout:1\n", "gw.example").unwrap(), [1, 2]);
    assert_eq!((heard(&asked_first).len(), heard(&asked)), (1, vec!["udp gw.example".to_owned()]));
    let error = ask(&[&refusing, &failing], "options attempts:3\n", "gw.example").unwrap_err();
    assert!(error.contains("127.0.0.1: it answers ServerFailure"), "{error}");
    assert_eq!(heard(&asked_first).len(), 3);
    let error = ask(&[&silent], "options timeout:1 attempts:1\n", "gw.example").unwrap_err();
    assert!(error.contains("127.0.0.1: no answer"), "{error}");
    assert!(ask(&[], "", "gw.example").unwrap_err().contains("but those of the tunnel"));
}

#[test]
fn a_name_that_does_not_exist_is_no_reason_to_ask_another_server() {
    let (empty, _) = serve(|_, _| Some((3, vec![])), 9);
    let (other, asked) = serve(|_, _| Some((0, vec![1])), 9);
    let error = ask(&[&empty, &other], "", "gw.example").unwrap_err();
    assert!(error.contains("no address"), "{error}");
    assert_eq!(heard(&asked), [] as [&str; 0]);
}

#[test]
fn a_short_name_is_looked_up_in_the_search_domains() {
    let zone: Zone = |name, _| match name {
        "gw.b.example" => Some((0, vec![7])),
        _ => Some((3, vec![])),
    };
    let (server, asked) = serve(zone, 9);
    assert_eq!(ask(&[&server], "search a.example b.example\n", "gw").unwrap(), [7]);
    assert_eq!(heard(&asked), ["udp gw.a.example", "udp gw.b.example"]);
}

#[test]
fn an_answer_that_does_not_fit_is_asked_for_over_tcp() {
    let (server, asked) = serve(|_, _| Some((0, (1..=40).collect())), 28);
    assert_eq!(ask(&[&server], "", "gw.example").unwrap().len(), 40);
    assert_eq!(heard(&asked), ["udp gw.example", "tcp gw.example"]);
    assert_eq!(ask(&[&server], "options use-vc\n", "gw.example").unwrap().len(), 40);
    assert_eq!(heard(&asked), ["tcp gw.example"]);
}

#[test]
fn a_server_without_edns_is_asked_without_it() {
    let zone: Zone = |_, has_edns| Some(if has_edns { (1, vec![]) } else { (0, vec![5]) });
    let (server, asked) = serve(zone, 9);
    assert_eq!(ask(&[&server], "options edns0\n", "gw.example").unwrap(), [5]);
    assert_eq!(heard(&asked), ["udp gw.example edns", "udp gw.example"]);
}
