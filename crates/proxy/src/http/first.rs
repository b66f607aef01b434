//! The head of a client's first request. It is read before HTTP is spoken, so that a client which has sent
//! none, or a part of one, holds nothing but what it has sent.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use hyper::header::HeaderName;
use weft_network::Connection;

use super::buffers::SMALL;
use crate::budget::{Account, Charge};

/// The least that is kept for a head.
const LEAST: usize = 512;

thread_local! {
    static SHARED: RefCell<[u8; SMALL]> = const { RefCell::new([0; SMALL]) };
}

/// What a client has sent so far.
#[derive(Default)]
pub(super) struct First {
    bytes: Vec<u8>,
    start: usize,
    charge: Option<Charge>,
}

impl First {
    /// Reads until the head is whole, longer than `most`, or none of HTTP. More than [`SMALL`] is read only
    /// if the account has room for it.
    pub(super) async fn read(
        client: &mut dyn Connection,
        most: usize,
        account: &Arc<Account>,
    ) -> io::Result<Self> {
        let mut first = Self::default();
        while !first.is_enough(most) && first.has_room(account) {
            let before = first.bytes.len();
            let count = poll_fn(|cx| first.poll_read(cx, &mut *client)).await?;
            if count == 0 || is_whole(&first.bytes[before.saturating_sub(3)..]) {
                break;
            }
        }
        Ok(first)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_connect(&self) -> bool {
        self.bytes.starts_with(b"CONNECT ")
    }

    /// Returns the value of a field, unchecked: what counts is what hyper makes of it.
    pub(super) fn field(&self, name: &HeaderName) -> Option<&[u8]> {
        self.bytes.split(|byte| *byte == b'\n').find_map(|line| {
            let (start, rest) = line.split_at_checked(name.as_str().len())?;
            let value = rest.strip_prefix(b":")?;
            start.eq_ignore_ascii_case(name.as_str().as_bytes()).then(|| value.trim_ascii())
        })
    }

    fn is_enough(&self, most: usize) -> bool {
        // TLS and SOCKS begin otherwise: they are told at once.
        self.bytes.len() >= most || self.bytes.first().is_some_and(|first| !first.is_ascii_alphabetic())
    }

    /// Makes room for more, if the account has it.
    fn has_room(&mut self, account: &Arc<Account>) -> bool {
        if self.bytes.len() < self.bytes.capacity() {
            return true;
        }
        let capacity = (2 * self.bytes.len()).max(LEAST);
        self.charge = None;
        self.charge = account.charge(capacity);
        let has_room = self.charge.is_some() || capacity <= SMALL;
        if has_room {
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        has_room
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, client: &mut dyn Connection) -> Poll<io::Result<usize>> {
        SHARED.with_borrow_mut(|shared| {
            let room = shared.len().min(self.bytes.capacity() - self.bytes.len());
            let mut buffer = ReadBuf::new(&mut shared[..room]);
            ready!(Pin::new(client).poll_read(cx, &mut buffer))?;
            self.bytes.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Puts these bytes in front of what the client sends.
    /// `read` counts what is read of it.
    pub(super) fn before(self, client: Box<dyn Connection>, read: Arc<AtomicU64>) -> Client {
        Client { first: self, client, read }
    }
}

fn is_whole(end: &[u8]) -> bool {
    end.windows(2).any(|pair| pair == b"\n\n") || end.windows(3).any(|end| end == b"\n\r\n")
}

/// A client of which something was read already.
pub(super) struct Client {
    first: First,
    client: Box<dyn Connection>,
    read: Arc<AtomicU64>,
}

impl Client {
    /// Returns what is left of the first bytes, and the connection.
    pub(super) fn into_parts(self) -> (Vec<u8>, Box<dyn Connection>) {
        (self.first.bytes[self.first.start..].to_vec(), self.client)
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let First { bytes, start, .. } = &mut self.first;
        if *start == bytes.len() {
            let before = into.filled().len();
            let read = Pin::new(&mut self.client).poll_read(cx, into);
            self.read.fetch_add((into.filled().len() - before) as u64, Relaxed);
            return read;
        }
        let count = into.remaining().min(bytes.len() - *start);
        into.put_slice(&bytes[*start..*start + count]);
        *start += count;
        if *start == bytes.len() {
            self.first = First::default();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.client).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.client).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.client.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.client).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.client).poll_shutdown(cx)
    }
}
