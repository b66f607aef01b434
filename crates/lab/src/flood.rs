//! Floods: the traffic that an attacker without a key can send to a WireGuard port, at a high rate and from
//! any address.
//!
//! A flood sends complete frames through a packet socket (packet(7)) on a link of the test network, so that
//! each frame can have any source address. Messages are created before it begins. Replies to the sources come
//! back if the target routes those addresses over the same link; a flood with cookies reads them, as an
//! attacker with real addresses does. It ends by itself.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_tunnel::PublicKey;

use super::Namespace;
use super::pace::Pace;

mod aim;
mod frame;
mod junk;
mod message;
mod proof;
mod socket;
mod sources;

pub use aim::ObservedMessage;
pub use junk::Junk;
pub use message::{COOKIE_REPLY_LEN, Contents, Cookie, INITIATION_LEN, Initiation, open_cookie_reply};
pub use sources::Sources;

use frame::Frame;
use proof::Proofs;
use socket::{Batch, FrameSocket};

/// Messages created before the flood begins; they are sent cyclically.
const POOL: usize = 4096;
/// Upper bound of the frames sent with one system call.
const MAX_BATCH: usize = 64;
/// System calls a second, if a batch can hold the frames due in between.
const CALLS_PER_SECOND: u32 = 2000;

/// The messages of a flood.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Handshake initiations with a wrong first MAC.
    WithoutMac1,
    /// Handshake initiations with a valid first MAC: the target has to inspect the key to distinguish them
    /// from a peer's.
    WithMac1(Contents),
    /// Handshake initiations with a valid first MAC and, once the flood has opened a cookie reply to their
    /// source, the second MAC.
    WithCookie(Contents),
    /// Datagrams that are no handshake.
    Junk(Junk),
}

#[derive(Clone, Debug)]
pub struct Flood {
    pub kind: Kind,
    /// The WireGuard port under attack.
    pub target: SocketAddr,
    /// The public key of the target.
    pub key: PublicKey,
    /// The spoofed source addresses and ports.
    pub sources: Sources,
    /// Datagrams a second.
    pub per_second: u32,
    /// Maximum duration.
    pub time: Duration,
}

/// Counters of a running flood.
#[derive(Debug, Default)]
struct Progress {
    sent: AtomicU64,
    refused: AtomicU64,
    cookies: AtomicU64,
    proven: AtomicU64,
    stop: AtomicBool,
}

/// Counters of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams sent on the link.
    pub datagrams: u64,
    /// Datagrams that the link refused.
    pub refused: u64,
    /// Cookie replies that the flood accepted.
    pub cookies: u64,
    /// Datagrams with a cookie (a second MAC), counted whether the link accepted them or not.
    pub proven: u64,
}

/// A running flood. Dropping it ends the flood.
#[derive(Debug)]
pub struct Running {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Flood {
    /// Starts to send from `link` in the attacker's namespace to the target's namespace, in which the other
    /// end of the link is `target_link`.
    ///
    /// # Errors
    /// When there is no such link, or no permission for packet sockets.
    pub fn start(
        self,
        attacker: &Namespace,
        link: &str,
        target: &Namespace,
        target_link: &str,
    ) -> io::Result<Running> {
        let to = target.run(|| socket::hardware_address(target_link))?;
        let (from, socket) = attacker.run(|| {
            io::Result::Ok((
                socket::hardware_address(link)?,
                FrameSocket::open(link, self.target.is_ipv6(), self.reads())?,
            ))
        })?;
        let frame = Frame::new(from, to, self.target);
        let messages = self.messages()?;
        let progress = Arc::<Progress>::default();
        let thread = {
            let progress = Arc::clone(&progress);
            std::thread::Builder::new()
                .name("flood".to_owned())
                .spawn(move || self.send(&socket, frame, messages, &progress))?
        };
        Ok(Running { progress, thread: Some(thread) })
    }

    fn reads(&self) -> bool {
        matches!(self.kind, Kind::WithCookie(_))
    }

    fn messages(&self) -> io::Result<Messages> {
        let initiations = |contents| Initiation::several(&self.key, POOL, contents);
        Ok(match &self.kind {
            Kind::WithoutMac1 => {
                let mut all = initiations(Contents::Random)?;
                all.iter_mut().for_each(Initiation::spoil);
                Messages::Initiations(all, None)
            }
            Kind::WithMac1(contents) => Messages::Initiations(initiations(*contents)?, None),
            Kind::WithCookie(contents) => {
                // At least one message per source: a cookie is valid for one source, and a second MAC for one
                // message.
                let count = POOL.next_multiple_of(self.sources.len());
                let all = Initiation::several(&self.key, count, *contents)?;
                let proofs = Proofs::new(&self.key, self.sources.len(), all.len());
                Messages::Initiations(all, Some(proofs))
            }
            Kind::Junk(junk) => Messages::Junk(junk.several(POOL)),
        })
    }

    fn send(
        &self,
        socket: &FrameSocket,
        frame: Frame,
        mut messages: Messages,
        progress: &Progress,
    ) -> io::Result<()> {
        let size = (self.per_second / CALLS_PER_SECOND).clamp(1, MAX_BATCH as u32) as usize;
        let mut batch = Batch::new(size, messages.longest() + frame.headers());
        let start = Instant::now();
        let mut pace = Pace::new(self.per_second, start);
        let mut number = 0;
        while start.elapsed() < self.time && !progress.stop.load(Relaxed) {
            pace.wait();
            let mut proven = 0;
            for slot in 0..size {
                let (message, is_proven) = messages.get(number);
                let source = self.sources.get(number);
                batch.fill(slot, |buffer| frame.write(source, message, buffer));
                proven += u64::from(is_proven);
                number += 1;
            }
            let sent = socket.send(&mut batch)?;
            progress.sent.fetch_add(sent as u64, Relaxed);
            progress.refused.fetch_add((size - sent) as u64, Relaxed);
            progress.proven.fetch_add(proven, Relaxed);
            if let Messages::Initiations(all, Some(proofs)) = &mut messages {
                // Twice as many as a batch can cause: to drain the whole socket could interrupt the flood.
                for _ in 0..2 * size {
                    let Some(datagram) = socket.receive()? else { break };
                    progress.cookies.fetch_add(proofs.take(&datagram, all), Relaxed);
                }
            }
            pace.spent(size as u64);
        }
        Ok(())
    }
}

/// The messages, which are sent cyclically.
#[derive(Debug)]
enum Messages {
    Initiations(Vec<Initiation>, Option<Proofs>),
    Junk(Vec<Vec<u8>>),
}

impl Messages {
    fn longest(&self) -> usize {
        match self {
            Self::Initiations(..) => INITIATION_LEN,
            Self::Junk(all) => all.iter().map(Vec::len).max().unwrap_or(0),
        }
    }

    /// Returns message `number` (cyclically), and whether it carries a cookie.
    fn get(&self, number: usize) -> (&[u8], bool) {
        match self {
            Self::Initiations(all, proofs) => {
                let place = number % all.len();
                (all[place].bytes(), proofs.as_ref().is_some_and(|proofs| proofs.has(place)))
            }
            Self::Junk(all) => (&all[number % all.len()], false),
        }
    }
}

impl Running {
    /// Returns the counters so far.
    pub fn so_far(&self) -> Sent {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let Progress { sent, refused, cookies, proven, .. } = &*self.progress;
        Sent { datagrams: of(sent), refused: of(refused), cookies: of(cookies), proven: of(proven) }
    }

    /// Reports whether the flood has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the flood and waits for its thread.
    ///
    /// # Errors
    /// When the link was removed meanwhile.
    pub fn end(mut self) -> io::Result<Sent> {
        self.progress.stop.store(true, Relaxed);
        self.wait()
    }

    /// Waits until the flood has ended by itself.
    ///
    /// # Errors
    /// When the link was removed meanwhile.
    pub fn wait(&mut self) -> io::Result<Sent> {
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| io::Error::other("the flood's thread panicked"))??;
        }
        Ok(self.so_far())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.progress.stop.store(true, Relaxed);
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests;
