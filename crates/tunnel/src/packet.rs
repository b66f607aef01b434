//! The two shapes of an inner IP packet: [`PacketMut`], outbound, as read from a TUN; and [`Plaintext`],
//! inbound, as decrypted into a [`PlainSlab`].

use crate::offload::Offload;

/// Bytes that a [`PacketMut`] needs behind the packet: the zero padding to a multiple of 16 that encryption
/// may write there (WireGuard whitepaper, section 5.4.6).
pub const TAILROOM: usize = 15;

/// Bytes of the longest IP packet and of the longest super-packet: the length is a 16-bit field.
pub const MAX_PACKET: usize = 65_535;

/// An outbound IP packet or super-packet, borrowed from the slab it was read into.
///
/// Splitting rewrites the buffer in place, so a packet can be consumed once only.
#[derive(Debug)]
pub struct PacketMut<'a> {
    buffer: &'a mut [u8],
    len: usize,
    offload: Offload,
}

impl<'a> PacketMut<'a> {
    /// Wraps the packet in the first `len` bytes of `buffer`. Returns `None` unless `buffer` has at least
    /// [`TAILROOM`] bytes behind the packet, whose content does not matter.
    pub fn new(buffer: &'a mut [u8], len: usize, offload: Offload) -> Option<Self> {
        (buffer.len() >= len + TAILROOM).then_some(Self { buffer, len, offload })
    }

    /// Returns the IP packet, from its first header byte to its last payload byte.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the work that remains on the packet.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// Returns the packet and the [`TAILROOM`] behind it, to split it in place.
    pub(crate) fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len + TAILROOM]
    }
}

/// An inbound IP packet: a range of the [`PlainSlab`] it was decrypted into. Its checksums are the sender's,
/// unverified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plaintext {
    /// Offset of the first header byte in the slab.
    pub start: u32,
    /// Bytes of the packet, as its IP header says.
    pub len: u16,
}

/// A buffer that a batch of inbound packets is decrypted into, one behind the other.
pub struct PlainSlab {
    buffer: Box<[u8]>,
    used: usize,
}

impl PlainSlab {
    /// Creates a slab of `bytes` bytes, which should be a multiple of [`MAX_PACKET`] to hold a whole receive
    /// batch.
    pub fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes].into_boxed_slice(), used: 0 }
    }

    /// Returns the number of free bytes.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// Discards all packets; the bytes stay as they are and are overwritten later.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the bytes of a packet in this slab.
    pub fn get(&self, packet: Plaintext) -> &[u8] {
        let start = packet.start as usize;
        &self.buffer[start..start + usize::from(packet.len)]
    }

    /// Returns the free bytes, to decrypt the next packet into.
    pub(crate) fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    /// Keeps the first `len` bytes of [`Self::spare_mut`] as a packet.
    pub(crate) fn commit(&mut self, len: u16) -> Plaintext {
        let start = self.used;
        self.used += usize::from(len);
        Plaintext { start: start as u32, len }
    }

    /// Copies a packet into the slab: for packets that do not come from decryption, and for tests. Returns
    /// `None` if there is no room.
    pub fn push(&mut self, packet: &[u8]) -> Option<Plaintext> {
        let len = u16::try_from(packet.len()).ok()?;
        self.spare_mut().get_mut(..packet.len())?.copy_from_slice(packet);
        Some(self.commit(len))
    }
}

impl std::fmt::Debug for PlainSlab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainSlab").field("bytes", &self.buffer.len()).field("used", &self.used).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_lie_one_behind_the_other_until_the_slab_is_full() {
        let mut slab = PlainSlab::new(100);
        let packets = [&[1; 60][..], &[2; 30]].map(|packet| (packet, slab.push(packet).unwrap()));
        assert_eq!((slab.room(), slab.push(&[3; 11])), (10, None));
        for (bytes, packet) in packets {
            assert_eq!(slab.get(packet), bytes);
        }
        slab.clear();
        assert_eq!(slab.room(), 100);
    }
}
