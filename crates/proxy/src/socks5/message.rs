//! The messages of SOCKS5. They are read exactly, so that what follows the request stays in the socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use weft_ipc::Place;
use weft_network::Connection;
use zeroize::Zeroizing;

use crate::access::Users;
use crate::destination::Host;
use crate::proxy::Proxy;

const VERSION: u8 = 5;
/// The version of the messages about a password (RFC 1929).
const PASSWORD_VERSION: u8 = 1;
const NO_PASSWORD: u8 = 0;
const PASSWORD: u8 = 2;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
/// The first byte of a TLS handshake (RFC 8446, section 5.1).
const TLS: u8 = 22;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// The header of a datagram to the client, with the largest address that it has: reserved (2), fragment,
/// type, IPv6 address, port.
pub(super) const DATAGRAM_HEADER: usize = 3 + 1 + 16 + 2;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect,
    Associate,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TtlExpired = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// Why a handshake did not lead to a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it did not complete its request in time")]
    Late,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it speaks {}, and this port SOCKS5 alone{}", protocol(*.0), instead(*.0))]
    Version(u8),
    #[error("it offers none of the methods that this proxy takes; is its password set?")]
    Method,
    #[error("user or password is wrong")]
    Password,
    #[error("its command {0} is not supported")]
    Command(u8),
    #[error("its address type {0} is unknown")]
    AddressType(u8),
    #[error("it asks for a host that is neither an address nor a name")]
    Host,
}

/// Returns the protocol that begins with this byte.
fn protocol(first: u8) -> &'static str {
    match first {
        4 => "SOCKS4",
        TLS => "TLS",
        b'A'..=b'Z' => "HTTP",
        _ => "another protocol",
    }
}

/// Returns what a client of that protocol can do.
fn instead(first: u8) -> &'static str {
    match first {
        4 => ": set it to SOCKS5 (socks5h://, if it asks for a URL)",
        b'A'..=b'Z' => ": set it to SOCKS5, or give weft the option --http",
        _ => "",
    }
}

impl HandshakeError {
    /// The answer to the request; `None`: it has none, or was answered.
    pub(super) fn reply(&self) -> Option<Reply> {
        match self {
            Self::Command(_) => Some(Reply::CommandNotSupported),
            Self::AddressType(_) => Some(Reply::AddressTypeNotSupported),
            Self::Host => Some(Reply::HostUnreachable),
            Self::Late | Self::Io(_) | Self::Version(_) | Self::Method | Self::Password => None,
        }
    }
}

/// Agrees on a method, checks the password, and returns the request. The place is told how far the client is.
pub(super) async fn handshake(
    client: &mut dyn Connection,
    proxy: &Proxy,
    place: &Place,
) -> Result<(Command, Host, u16), HandshakeError> {
    version(client).await?;
    place.expect_progress();
    let mut methods = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut methods).await?;
    let wanted = if proxy.users.is_some() { PASSWORD } else { NO_PASSWORD };
    if !methods.contains(&wanted) {
        client.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(HandshakeError::Method);
    }
    client.write_all(&[VERSION, wanted]).await?;
    if let Some(users) = &proxy.users {
        check_password(client, users, proxy, place).await?;
        place.admit();
    }
    request(client).await
}

async fn version(client: &mut dyn Connection) -> Result<(), HandshakeError> {
    match client.read_u8().await? {
        VERSION => Ok(()),
        other => Err(HandshakeError::Version(other)),
    }
}

async fn check_password(
    client: &mut dyn Connection,
    users: &Users,
    proxy: &Proxy,
    place: &Place,
) -> Result<(), HandshakeError> {
    let version = client.read_u8().await?;
    if version != PASSWORD_VERSION {
        return Err(HandshakeError::Version(version));
    }
    let user = field(client).await?;
    let password = field(client).await?;
    proxy.guesses.turn(place.source()).await;
    let is_admitted = users.admit(&user, &password);
    if !is_admitted {
        proxy.guesses.wrong(place.source()).await;
    }
    client.write_all(&[PASSWORD_VERSION, u8::from(!is_admitted)]).await?;
    if is_admitted { Ok(()) } else { Err(HandshakeError::Password) }
}

/// Reads a length and as many bytes.
async fn field(client: &mut dyn Connection) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; usize::from(client.read_u8().await?)]);
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn request(client: &mut dyn Connection) -> Result<(Command, Host, u16), HandshakeError> {
    version(client).await?;
    let mut head = [0; 3];
    client.read_exact(&mut head).await?;
    let [command, _, kind] = head;
    // The whole request is read before it is refused: a client that still sends would miss the answer.
    let host = match kind {
        IPV4 => {
            let mut address = [0; 4];
            client.read_exact(&mut address).await?;
            Ok(Host::Address(address.into()))
        }
        IPV6 => {
            let mut address = [0; 16];
            client.read_exact(&mut address).await?;
            Ok(Host::Address(IpAddr::from(address).to_canonical()))
        }
        NAME => named(&field(client).await?).ok_or(HandshakeError::Host),
        other => return Err(HandshakeError::AddressType(other)),
    };
    let port = client.read_u16().await?;
    let command = match command {
        1 => Command::Connect,
        3 => Command::Associate,
        other => return Err(HandshakeError::Command(other)),
    };
    Ok((command, host?, port))
}

fn named(bytes: &[u8]) -> Option<Host> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

impl Reply {
    /// Makes the message, with the address of the proxy's socket.
    pub(super) fn with(self, address: Option<SocketAddr>) -> Vec<u8> {
        let address = address.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        let mut message = vec![VERSION, self as u8, 0];
        append_address(&mut message, address);
        message
    }
}

fn append_address(message: &mut Vec<u8>, address: SocketAddr) {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            message.push(IPV4);
            message.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            message.push(IPV6);
            message.extend(ip.octets());
        }
    }
    message.extend(address.port().to_be_bytes());
}

/// Reads the header of a datagram from the client: where it goes, and where its payload begins. `None`: the
/// datagram is malformed, or a fragment, which this proxy does not put together.
pub(super) fn parse_datagram(datagram: &[u8]) -> Option<(Host, u16, usize)> {
    let (&[_, _, 0, kind], rest) = datagram.split_first_chunk()? else { return None };
    let (host, rest) = match kind {
        IPV4 => {
            let (address, rest) = rest.split_first_chunk::<4>()?;
            (Host::Address(Ipv4Addr::from(*address).into()), rest)
        }
        IPV6 => {
            let (address, rest) = rest.split_first_chunk::<16>()?;
            (Host::Address(IpAddr::from(Ipv6Addr::from(*address)).to_canonical()), rest)
        }
        NAME => {
            let (len, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*len))?;
            (named(name)?, rest)
        }
        _ => return None,
    };
    let (port, payload) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    (port != 0).then_some((host, port, datagram.len() - payload.len()))
}

/// Writes the header of a datagram to the client into the [`DATAGRAM_HEADER`] bytes in front of its payload.
/// Returns where the datagram begins.
pub(super) fn prepend_header(datagram: &mut [u8], from: SocketAddr) -> usize {
    let mut header = vec![0, 0, 0];
    append_address(&mut header, from);
    let start = DATAGRAM_HEADER - header.len();
    datagram[start..DATAGRAM_HEADER].copy_from_slice(&header);
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_to_the_client_is_read_back() {
        for from in ["192.0.2.1:53", "[2001:db8::1]:65535"] {
            let mut datagram = vec![0; DATAGRAM_HEADER];
            datagram.extend(b"payload");
            let start = prepend_header(&mut datagram, from.parse().unwrap());
            let (host, port, payload) = parse_datagram(&datagram[start..]).unwrap();
            assert_eq!(format!("{host}:{port}"), from);
            assert_eq!(&datagram[start..][payload..], b"payload");
        }
    }

    #[test]
    fn a_datagram_of_the_client_has_an_address_or_a_name() {
        let datagram = b"\0\0\0\x03\x0bExample.com\0\x35hello";
        let (host, port, payload) = parse_datagram(datagram).unwrap();
        assert_eq!((host, port), (Host::Name("example.com".to_owned()), 53));
        assert_eq!(&datagram[payload..], b"hello");
        for len in 0..payload {
            assert_eq!(parse_datagram(&datagram[..len]), None, "{len}");
        }
        let mut fragment = *datagram;
        fragment[2] = 1;
        assert_eq!(parse_datagram(&fragment), None);
        assert_eq!(parse_datagram(b"\0\0\0\x01\xc0\0\x02\x01\0\0"), None, "port 0");
        assert_eq!(parse_datagram(b"\0\0\0\x02\xc0\0\x02\x01\0\x35"), None, "unknown type");
        assert_eq!(parse_datagram(b"\0\0\0\x03\x01/\0\x35"), None, "no name");
    }

    #[test]
    fn a_reply_has_the_address_of_the_socket() {
        assert_eq!(Reply::ConnectionRefused.with(None), [5, 5, 0, 1, 0, 0, 0, 0, 0, 0]);
        let message = Reply::Succeeded.with(Some("[::ffff:192.0.2.1]:258".parse().unwrap()));
        assert_eq!(message, [5, 0, 0, 1, 192, 0, 2, 1, 1, 2]);
        assert_eq!(Reply::Succeeded.with(Some("[::1]:1".parse().unwrap())).len(), DATAGRAM_HEADER);
    }
}
