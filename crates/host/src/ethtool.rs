//! Features of an interface (ethtool -k and -K), by the SIOCETHTOOL ioctl of netdevice(7).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

/// From linux/ethtool.h.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// Words of a block of 32 features: available, requested, active, never changed.
const BLOCK: usize = 4;
const ACTIVE: usize = 2;
/// Words of a block of 32 features to change: which, and what they become.
const CHANGE_BLOCK: usize = 2;
/// More features than any kernel has.
const MAX_FEATURES: usize = 1024;

/// The features of an interface in the network namespace of a socket.
#[derive(Debug)]
pub struct Features<'a> {
    socket: BorrowedFd<'a>,
    interface: &'a str,
    /// Those that the kernel knows, in its order.
    names: Vec<String>,
}

impl<'a> Features<'a> {
    /// Asks the kernel for the features that it knows.
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not tell.
    pub fn of(socket: &'a impl AsFd, interface: &'a str) -> io::Result<Self> {
        let mut this = Self { socket: socket.as_fd(), interface, names: Vec::new() };
        // The mask of wanted sets takes 64 bits; the answer is the number of features.
        let mut counts = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        this.ask(&mut counts)?;
        let count = usize::try_from(counts[4]).unwrap_or(MAX_FEATURES).min(MAX_FEATURES);
        let mut strings = vec![0; 3 + count * ETH_GSTRING_LEN / size_of::<u32>()];
        strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        this.ask(&mut strings)?;
        let names: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name =
            |bytes| CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned();
        this.names = names.chunks_exact(ETH_GSTRING_LEN).map(name).collect();
        Ok(this)
    }

    /// Returns the features that are in force.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn active(&self) -> io::Result<Vec<(&str, bool)>> {
        let mut features = vec![0; 2 + self.blocks() * BLOCK];
        features[..2].copy_from_slice(&[ETHTOOL_GFEATURES, self.blocks() as u32]);
        self.ask(&mut features)?;
        let is_active = |number: usize| features[2 + number / 32 * BLOCK + ACTIVE] >> (number % 32) & 1 == 1;
        Ok(self.names.iter().enumerate().map(|(number, name)| (name.as_str(), is_active(number))).collect())
    }

    /// Switches features off. What an interface cannot change stays as it is.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn switch_off(&self, is_wanted: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut change = vec![0; 2 + self.blocks() * CHANGE_BLOCK];
        change[..2].copy_from_slice(&[ETHTOOL_SFEATURES, self.blocks() as u32]);
        for (number, _) in self.names.iter().enumerate().filter(|(_, name)| is_wanted(name)) {
            change[2 + number / 32 * CHANGE_BLOCK] |= 1 << (number % 32);
        }
        self.ask(&mut change)
    }

    fn blocks(&self) -> usize {
        self.names.len().div_ceil(u32::BITS as usize)
    }

    /// Makes one request. The answer replaces the request.
    fn ask(&self, request: &mut [u32]) -> io::Result<()> {
        // SAFETY: a zeroed ifreq is valid.
        let mut parameters: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = self.interface.as_bytes();
        if name.len() >= parameters.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in parameters.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        parameters.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: the ioctl reads an ifreq, which points to a request. The kernel writes no more than the
        // lengths in the request allow, which are those of the slice.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut parameters) };
        // A change that was only possible in part is a positive result.
        if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
