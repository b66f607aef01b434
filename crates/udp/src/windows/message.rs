//! `WSASendMsg` and `WSARecvMsg`, with the ancillary data that the packet path needs.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::windows::io::AsRawSocket;
use std::{fmt, ptr};

use socket2::SockAddr;
use weft_tunnel::{Ecn, RecvMeta, Transmit};
use windows_sys::Win32::Networking::WinSock::{
    IP_ECN, IP_PKTINFO, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPV6_ECN, IPV6_PKTINFO, LPFN_WSARECVMSG,
    SIO_GET_EXTENSION_FUNCTION_POINTER, SOCKET, UDP_SEND_MSG_SIZE, WSABUF, WSAECONNRESET, WSAEMSGSIZE,
    WSAENETRESET, WSAID_WSARECVMSG, WSAIoctl, WSAMSG, WSASendMsg,
};

use super::control::AncillaryBuffer;

/// The calls of a socket.
#[derive(Clone, Copy)]
pub(super) struct Messages {
    recv: LPFN_WSARECVMSG,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}

impl Messages {
    /// Asks for `WSARecvMsg`, which is an extension of the socket's provider.
    pub(super) fn of(socket: &impl AsRawSocket) -> io::Result<Self> {
        let mut recv: LPFN_WSARECVMSG = None;
        let id = WSAID_WSARECVMSG;
        // SAFETY: input and output are a GUID and a pointer to a function, as this request has them.
        unsafe { control(socket, SIO_GET_EXTENSION_FUNCTION_POINTER, Some(&id), Some(&mut recv)) }?;
        Ok(Self { recv })
    }

    /// Sends a transmit with one call: as a batch if it has several datagrams.
    pub(super) fn send(self, socket: &impl AsRawSocket, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, source, ecn, segment_size, contents } = *transmit;
        let mut ancillary = AncillaryBuffer::new();
        match source {
            // The address and no interface.
            Some(IpAddr::V4(source)) => {
                let info: [u8; 8] = [source.octets(), [0; 4]].concat().try_into().unwrap_or_default();
                ancillary.push(IPPROTO_IP, IP_PKTINFO, &info);
            }
            Some(IpAddr::V6(source)) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                ancillary.push(IPPROTO_IPV6, IPV6_PKTINFO, &info);
            }
            None => {}
        }
        if ecn != Ecn::NotEct {
            let (level, kind) =
                if destination.is_ipv6() { (IPPROTO_IPV6, IPV6_ECN) } else { (IPPROTO_IP, IP_ECN) };
            ancillary.push(level, kind, &i32::from(ecn as u8).to_ne_bytes());
        }
        if transmit.segments() > 1 {
            ancillary.push(IPPROTO_UDP, UDP_SEND_MSG_SIZE, &(segment_size as u32).to_ne_bytes());
        }
        let destination = SockAddr::from(destination);
        let mut data = WSABUF { len: contents.len() as u32, buf: contents.as_ptr().cast_mut() };
        let message = WSAMSG {
            name: destination.as_ptr().cast_mut().cast(),
            namelen: destination.len(),
            lpBuffers: &raw mut data,
            dwBufferCount: 1,
            Control: match ancillary.len() {
                0 => WSABUF { len: 0, buf: ptr::null_mut() },
                len => WSABUF { len: len as u32, buf: ancillary.as_mut_ptr() },
            },
            dwFlags: 0,
        };
        let mut sent = 0;
        // SAFETY: the message points to an address, a buffer and ancillary data that live until after the
        // call, which only reads them. Without OVERLAPPED the call has ended when it returns.
        let result =
            unsafe { WSASendMsg(raw(socket), &raw const message, 0, &raw mut sent, ptr::null_mut(), None) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Receives one message.
    pub(super) fn recv(self, socket: &impl AsRawSocket, buffer: &mut IoSliceMut<'_>) -> io::Result<RecvMeta> {
        let recv = self.recv.ok_or(io::ErrorKind::Unsupported)?;
        loop {
            let mut ancillary = AncillaryBuffer::new();
            let mut data = WSABUF { len: buffer.len() as u32, buf: buffer.as_mut_ptr() };
            let mut received = 0;
            let mut call = |name: *mut _, name_bytes: &mut i32| {
                let mut message = WSAMSG {
                    name,
                    namelen: *name_bytes,
                    lpBuffers: &raw mut data,
                    dwBufferCount: 1,
                    Control: WSABUF { len: AncillaryBuffer::capacity() as u32, buf: ancillary.as_mut_ptr() },
                    dwFlags: 0,
                };
                // The call has ended when it returns, since it is without OVERLAPPED.
                // SAFETY: the message points to room for an address, data and ancillary data, of the lengths
                // that it says, which live until after the call.
                let result =
                    unsafe { recv(raw(socket), &raw mut message, &raw mut received, ptr::null_mut(), None) };
                *name_bytes = message.namelen;
                if result == 0 { Ok(message.Control.len) } else { Err(io::Error::last_os_error()) }
            };
            // SAFETY: the call writes the address of a socket, and its length.
            let answer = unsafe { SockAddr::try_init(|name, bytes| call(name.cast(), &mut *bytes)) };
            let (ancillary_bytes, source) = match answer {
                // An earlier datagram was refused by its receiver, or this one is longer than any of weft's:
                // it is lost, and others may wait.
                Err(error) if is_of_one_datagram(&error) => continue,
                other => other?,
            };
            let Some(source) = source.as_socket() else { continue };
            return Ok(meta(source, received as usize, ancillary.entries(ancillary_bytes as usize)));
        }
    }
}

fn is_of_one_datagram(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(WSAECONNRESET | WSAENETRESET | WSAEMSGSIZE))
}

fn meta<'a>(
    source: SocketAddr,
    len: usize,
    ancillary: impl Iterator<Item = (i32, i32, &'a [u8])>,
) -> RecvMeta {
    // Without UDP_RECV_MAX_COALESCED_SIZE a message is one datagram.
    let mut meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len, stride: len.max(1) };
    for entry in ancillary {
        match entry {
            (IPPROTO_IP, IP_PKTINFO, value) => {
                meta.local = value.first_chunk::<4>().map(|octets| IpAddr::from(*octets));
            }
            (IPPROTO_IPV6, IPV6_PKTINFO, value) => {
                meta.local = value.first_chunk::<16>().map(|octets| IpAddr::from(*octets));
            }
            (IPPROTO_IP, IP_ECN, value) | (IPPROTO_IPV6, IPV6_ECN, value) => {
                // An int in the order of the machine, and Windows has little-endian machines alone.
                meta.ecn = Ecn::from_bits(value.first().copied().unwrap_or_default());
            }
            _ => {}
        }
    }
    meta
}

/// Switches a behaviour of a socket off.
pub(super) fn switch_off(socket: &impl AsRawSocket, code: u32) -> io::Result<()> {
    let off = 0_i32;
    // SAFETY: the requests of `SIO_UDP_…` read a BOOL.
    unsafe { control(socket, code, Some(&off), None::<&mut i32>) }
}

/// Makes a request of a socket.
///
/// # Safety
/// `input` and `output` are of the types that the request reads and writes.
unsafe fn control<I, O>(
    socket: &impl AsRawSocket,
    code: u32,
    input: Option<&I>,
    output: Option<&mut O>,
) -> io::Result<()> {
    let (input_bytes, output_bytes) = (size_of::<I>() as u32, size_of::<O>() as u32);
    let output_bytes = if output.is_some() { output_bytes } else { 0 };
    let mut returned = 0;
    // SAFETY: both pointers are to as many bytes as is said, which live until after the call.
    let result = unsafe {
        WSAIoctl(
            raw(socket),
            code,
            input.map_or(ptr::null(), |input| ptr::from_ref(input).cast()),
            input_bytes,
            output.map_or(ptr::null_mut(), |output| ptr::from_mut(output).cast()),
            output_bytes,
            &raw mut returned,
            ptr::null_mut(),
            None,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn raw(socket: &impl AsRawSocket) -> SOCKET {
    socket.as_raw_socket() as SOCKET
}
