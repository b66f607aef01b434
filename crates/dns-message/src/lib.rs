//! Messages of DNS: queries for addresses, and their answers (RFC 1035). No I/O here.

#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, TYPE};

/// The length of a header.
const HEADER: usize = 12;
/// Where the header has the numbers of questions and records, and the least bytes that one of them takes: a
/// question of an empty name, its type and class (RFC 1035, section 4.1).
const COUNTS: std::ops::Range<usize> = 4..HEADER;
const LEAST: usize = 5;
/// The last byte of the number of additional records in a header.
const ADDITIONAL: usize = 11;
/// Addresses of a name in each family: a message may have 4,000, of which one is needed.
const MAX_ADDRESSES: usize = 64;
/// The longest answer that a query with EDNS asks for, as the DNS flag day 2020 recommends.
const EDNS_BYTES: u16 = 1232;
/// In the third byte of a header: the answer did not fit.
const TRUNCATED: u8 = 0x02;
/// In the third byte of a header: the message is an answer.
const RESPONSE: u8 = 0x80;

/// The family of addresses that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

/// A query with its random identifier.
#[derive(Debug)]
pub struct Query {
    bytes: Vec<u8>,
    /// Where the question ends.
    end: usize,
}

/// What a server says about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The addresses, in the order of the server; empty: the name has none of this family.
    pub addresses: Vec<IpAddr>,
    /// The shortest time for which an address is valid.
    pub ttl: Duration,
    /// False: there is no such name.
    pub exists: bool,
}

impl Answer {
    /// Returns both answers as one, the addresses of `self` first.
    fn and(mut self, other: Self) -> Self {
        self.addresses.extend(other.addresses);
        Self { ttl: self.ttl.min(other.ttl), exists: self.exists | other.exists, ..self }
    }
}

/// The queries to one server for the addresses of both families, and its answers as they come.
#[derive(Debug)]
pub struct Pair {
    queries: [Query; 2],
    answers: [Option<Answer>; 2],
    is_answered: [bool; 2],
    failed: io::Error,
}

impl Pair {
    /// Makes the queries for a name.
    ///
    /// # Errors
    /// Those of [`Query::new`].
    pub fn new(name: &str) -> io::Result<Self> {
        Ok(Self {
            queries: [Query::new(name, Kind::A)?, Query::new(name, Kind::Aaaa)?],
            answers: [None, None],
            is_answered: [false; 2],
            failed: io::ErrorKind::TimedOut.into(),
        })
    }

    /// Returns the queries with the announcement of [`Query::with_edns`].
    #[must_use]
    pub fn with_edns(self) -> Self {
        Self { queries: self.queries.map(Query::with_edns), ..self }
    }

    /// Returns the queries.
    pub fn queries(&self) -> &[Query; 2] {
        &self.queries
    }

    /// Returns which of the queries has no answer yet and is answered by this message.
    pub fn answered_by(&self, message: &[u8]) -> Option<usize> {
        (0..self.queries.len())
            .find(|&place| !self.is_answered[place] && self.queries[place].is_answered_by(message))
    }

    /// Takes the answer to one of the queries. Returns whether it has addresses: the other one is not waited
    /// for as long then.
    pub fn put(&mut self, place: usize, answer: io::Result<Answer>) -> bool {
        self.is_answered[place] = true;
        match answer {
            Ok(mut answer) => {
                let has_addresses = !answer.addresses.is_empty();
                answer.addresses.truncate(MAX_ADDRESSES);
                self.answers[place] = Some(answer);
                has_addresses
            }
            Err(error) => {
                self.failed = error;
                false
            }
        }
    }

    /// Reports whether both queries are answered.
    pub fn is_complete(&self) -> bool {
        self.is_answered == [true; 2]
    }

    /// Returns both answers as one, IPv6 first (RFC 6724). One alone counts if it has addresses.
    ///
    /// # Errors
    /// The failure of the last query that failed, else that there was no answer in time.
    pub fn end(self) -> io::Result<Answer> {
        let [a, aaaa] = self.answers;
        match (aaaa, a) {
            (Some(aaaa), Some(a)) => Ok(aaaa.and(a)),
            (Some(one), None) | (None, Some(one)) if !one.addresses.is_empty() => Ok(one),
            _ => Err(self.failed),
        }
    }
}

/// The server sent what is no usable answer.
pub fn unusable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its answer cannot be read")
}

/// Reports whether the server could not read the query, as one that knows no EDNS.
pub fn is_format_error(answer: &[u8]) -> bool {
    const FORMAT_ERROR: u8 = 1;
    answer.get(3).is_some_and(|flags| flags & 0x0f == FORMAT_ERROR)
}

/// Reports whether the answer did not fit into the datagram.
pub fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Returns the names that a name may stand for, in the order in which they are looked up (resolv.conf(5)). A
/// name with a dot at its end is complete. One with at least `ndots` dots is tried as it is before the search
/// domains, another one after them.
pub fn candidates<'a>(name: &str, search: impl Iterator<Item = &'a str>, ndots: usize) -> Vec<String> {
    let whole = name.strip_suffix('.').unwrap_or(name).to_owned();
    if name.ends_with('.') {
        return vec![whole];
    }
    let mut all: Vec<String> = search.map(|domain| format!("{name}.{domain}")).collect();
    let place = if name.matches('.').count() >= ndots { 0 } else { all.len() };
    all.insert(place, whole);
    all
}

impl Query {
    /// Makes a query for the addresses of one family.
    ///
    /// # Errors
    /// The name is not one of DNS.
    pub fn new(name: &str, kind: Kind) -> io::Result<Self> {
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "the name is not one of DNS");
        let kind = match kind {
            Kind::A => TYPE::A,
            Kind::Aaaa => TYPE::AAAA,
        };
        let mut packet = Packet::new_query(rand::random());
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let name = Name::new(name).map_err(invalid)?;
        packet.questions.push(Question::new(name, QTYPE::TYPE(kind), CLASS::IN.into(), false));
        let bytes = packet.build_bytes_vec().map_err(invalid)?;
        Ok(Self { end: bytes.len(), bytes })
    }

    /// Returns the query with the announcement that a datagram may have more than 512 bytes (EDNS, RFC 6891).
    #[must_use]
    pub fn with_edns(mut self) -> Self {
        // The root, the type OPT, the size of a datagram that needs no fragments, no flags, no options.
        self.bytes.extend([0, 0, 41]);
        self.bytes.extend(EDNS_BYTES.to_be_bytes());
        self.bytes.extend([0; 6]);
        self.bytes[ADDITIONAL] = 1;
        self
    }

    /// Returns the message.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reports whether a message answers this query: it has its identifier and its question. The letters of
    /// the name may be of another case.
    pub fn is_answered_by(&self, message: &[u8]) -> bool {
        let (question, header) = (&self.bytes[HEADER..self.end], &self.bytes[..HEADER]);
        let answered = message.get(HEADER..self.end);
        answered.is_some_and(|answered| answered.eq_ignore_ascii_case(question))
            && message[..2] == header[..2]
            && message[2] & RESPONSE != 0
    }

    /// Reads the answer to this query.
    ///
    /// # Errors
    /// When the server failed or refused, and when the message cannot be read.
    pub fn read(&self, message: &[u8]) -> io::Result<Answer> {
        // Room for as many is reserved before the first one is read.
        let counts = message.get(COUNTS).unwrap_or_default().chunks_exact(2);
        let count: usize = counts.map(|count| usize::from(u16::from_be_bytes([count[0], count[1]]))).sum();
        if count * LEAST > message.len() {
            return Err(unusable());
        }
        let packet = Packet::parse(message).map_err(|_| unusable())?;
        let exists = match packet.rcode() {
            RCODE::NoError => true,
            RCODE::NameError => false,
            other => return Err(io::Error::other(format!("it answers {other:?}"))),
        };
        let mut answer = Answer { addresses: Vec::new(), ttl: Duration::MAX, exists };
        for record in &packet.answers {
            let address = match &record.rdata {
                RData::A(a) => IpAddr::from(a.address.to_be_bytes()),
                RData::AAAA(aaaa) => IpAddr::from(aaaa.address.to_be_bytes()),
                _ => continue,
            };
            answer.addresses.push(address);
            answer.ttl = answer.ttl.min(Duration::from_secs(record.ttl.into()));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, CNAME};

    use super::*;

    fn answer(query: &Query, change: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
        let mut packet = Packet::parse(query.bytes()).unwrap().into_reply();
        change(&mut packet);
        packet.build_bytes_vec().unwrap()
    }

    #[test]
    fn an_answer_to_the_query_is_read_through_aliases() {
        let query = Query::new("www.example.com", Kind::A).unwrap();
        let bytes = answer(&query, |packet| {
            let record =
                |name, ttl, rdata| ResourceRecord::new(Name::new_unchecked(name), CLASS::IN, ttl, rdata);
            packet.answers.push(record(
                "www.example.com",
                9,
                RData::CNAME(CNAME(Name::new_unchecked("x.example.net"))),
            ));
            packet.answers.push(record("x.example.net", 60, RData::A(A { address: 0xc000_0201 })));
            packet.answers.push(record("x.example.net", 30, RData::A(A { address: 0xc000_0202 })));
        });
        assert!(query.is_answered_by(&bytes) && !is_truncated(&bytes));
        let read = query.read(&bytes).unwrap();
        assert_eq!(read.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap(), "192.0.2.2".parse().unwrap()]);
        assert_eq!((read.ttl, read.exists), (Duration::from_secs(30), true));
    }

    #[test]
    fn other_messages_are_no_answers() {
        let query = Query::new("www.example.com", Kind::A).unwrap();
        let good = answer(&query, |_| ());
        let shouted = [&good[..HEADER], &good[HEADER..].to_ascii_uppercase()].concat();
        assert!(query.is_answered_by(&good) && query.is_answered_by(&shouted));
        assert!(!query.is_answered_by(query.bytes()), "a query is no answer");
        for len in 0..good.len() {
            assert!(!query.is_answered_by(&good[..len]), "{len}");
        }
        let other_id = answer(&query, |packet| packet.set_id(packet.id().wrapping_add(1)));
        assert!(!query.is_answered_by(&other_id));
        let other_kind = Query::new("www.example.com", Kind::Aaaa).unwrap();
        assert!(!query.is_answered_by(&answer(&other_kind, |packet| {
            packet.set_id(u16::from_be_bytes([query.bytes()[0], query.bytes()[1]]));
        })));
    }

    #[test]
    fn a_query_with_edns_asks_the_same_question() {
        let query = Query::new("www.example.com", Kind::A).unwrap();
        let plain = query.bytes().to_vec();
        let query = query.with_edns();
        let packet = Packet::parse(query.bytes()).unwrap();
        assert_eq!(packet.opt().unwrap().udp_packet_size, EDNS_BYTES);
        assert_eq!(
            (packet.questions.len(), packet.questions[0].qname.to_string().as_str()),
            (1, "www.example.com")
        );
        let plain = answer(&Query { end: plain.len(), bytes: plain }, |_| ());
        assert!(query.is_answered_by(&plain), "a server that knows no EDNS");
        assert!(query.is_answered_by(&answer(&query, |_| ())));
    }

    #[test]
    fn the_answers_of_both_families_end_as_one() {
        let answer = |addresses: &[&str], exists| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            Ok(Answer { addresses, ttl: Duration::from_secs(60), exists })
        };
        let failed = || Err(io::Error::other("it fails"));
        let ended = |a: Option<io::Result<Answer>>, aaaa: Option<io::Result<Answer>>| {
            let mut pair = Pair::new("www.example.com").unwrap();
            for (place, answer) in [a, aaaa].into_iter().enumerate() {
                let Some(answer) = answer else { continue };
                let has_addresses = answer.as_ref().is_ok_and(|answer| !answer.addresses.is_empty());
                assert_eq!(pair.put(place, answer), has_addresses);
            }
            let addresses =
                |answer: Answer| answer.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>();
            pair.end().map(addresses).map_err(|error| error.to_string())
        };
        let timed_out = io::Error::from(io::ErrorKind::TimedOut).to_string();
        for (a, aaaa, end) in [
            (
                Some(answer(&["192.0.2.1"], true)),
                Some(answer(&["2001:db8::1"], true)),
                Ok(vec!["2001:db8::1", "192.0.2.1"]),
            ),
            (Some(answer(&["192.0.2.1"], true)), Some(answer(&[], true)), Ok(vec!["192.0.2.1"])),
            (Some(answer(&["192.0.2.1"], true)), Some(failed()), Ok(vec!["192.0.2.1"])),
            (None, Some(answer(&["2001:db8::1"], true)), Ok(vec!["2001:db8::1"])),
            (Some(answer(&[], false)), Some(answer(&[], false)), Ok(vec![])),
            // The other one may have addresses.
            (Some(answer(&[], true)), Some(failed()), Err("it fails")),
            (Some(answer(&[], true)), None, Err(timed_out.as_str())),
        ] {
            let end = end.map(|addresses| addresses.into_iter().map(str::to_owned).collect());
            assert_eq!(ended(a, aaaa), end.map_err(str::to_owned));
        }
    }

    #[test]
    fn no_more_addresses_are_kept_than_one_needs_to_try() {
        let mut pair = Pair::new("www.example.com").unwrap();
        let addresses = vec![IpAddr::from([192, 0, 2, 1]); 4000];
        for place in 0..2 {
            let addresses = addresses.clone();
            pair.put(place, Ok(Answer { addresses, ttl: Duration::ZERO, exists: true }));
        }
        assert_eq!(pair.end().unwrap().addresses.len(), 2 * MAX_ADDRESSES);
    }

    #[test]
    fn a_query_is_answered_once_also_if_its_answer_is_of_no_use() {
        let mut pair = Pair::new("www.example.com").unwrap();
        let refusal = answer(&pair.queries()[1], |_| ());
        assert_eq!(pair.answered_by(&refusal), Some(1));
        pair.put(1, Err(unusable()));
        assert_eq!(pair.answered_by(&refusal), None, "it came twice");
        assert!(!pair.is_complete());
        pair.put(0, Err(unusable()));
        assert!(pair.is_complete());
    }

    #[test]
    fn a_name_may_be_meant_in_each_search_domain() {
        let found = |name, ndots| candidates(name, ["a.example", "b.example"].into_iter(), ndots);
        assert_eq!(found("gw", 1), ["gw.a.example", "gw.b.example", "gw"]);
        assert_eq!(found("gw.x", 1), ["gw.x", "gw.x.a.example", "gw.x.b.example"]);
        assert_eq!(found("gw.x", 2).last().unwrap(), "gw.x");
        assert_eq!(found("gw.x.", 5), ["gw.x"]);
    }

    #[test]
    fn a_server_that_fails_is_told_from_a_name_that_does_not_exist() {
        let query = Query::new("www.example.com", Kind::A).unwrap();
        let with = |code| query.read(&answer(&query, |packet| *packet.rcode_mut() = code));
        assert!(!with(RCODE::NameError).unwrap().exists);
        assert!(with(RCODE::NoError).unwrap().exists);
        assert_eq!(with(RCODE::ServerFailure).unwrap_err().to_string(), "it answers ServerFailure");
        let garbage = [query.bytes(), &[0xff; 40]].concat();
        // Nothing panics, whatever follows the question.
        for len in 0..garbage.len() {
            let _ = query.read(&garbage[..len]);
        }
    }
}
