//! Limits of the kernel in the network namespace.

use std::fs;
use std::io;
use std::path::Path;

/// The smallest and largest limit of a TCP buffer. The window is half of it, or more where packets are large:
/// 16 MiB in flight are 1.3 Gbit/s over 100 ms. A client of `weft proxy` that does not read can have as much
/// as this in the kernel, for each connection.
const TCP_BUFFER: std::ops::RangeInclusive<u64> = (4 << 20)..=(32 << 20);

/// Returns the limit of a TCP buffer: the throughput of a connection is at most a buffer for each round trip,
/// and a machine has room for some of them.
pub(crate) fn tcp_buffer_bytes(memory: Option<u64>) -> u64 {
    memory.map_or(*TCP_BUFFER.start(), |bytes| (bytes / 64).clamp(*TCP_BUFFER.start(), *TCP_BUFFER.end()))
}

/// Sets the limits, and returns what could not be set. In a container /proc/sys is often read-only.
pub(crate) fn set(group: u32, tcp_buffer_bytes: u64) -> Vec<String> {
    let set = |name: &str, value: String, loss: &str| {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        let error = fs::write(path, &value).err()?;
        Some(format!("cannot set the sysctl net.ipv4.{name} to {value:?} in the namespace: {error}; {loss}"))
    };
    let buffers = |name: &str| {
        let loss = "TCP over long distances is slower than it could be";
        match fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)) {
            Ok(text) => set(name, raised(&text, tcp_buffer_bytes)?, loss),
            Err(error) => Some(format!("cannot read the sysctl net.ipv4.{name}: {error}; {loss}")),
        }
    };
    let ping = set("ping_group_range", format!("{group} {group}"), "ping(8) does not work");
    [ping, buffers("tcp_rmem"), buffers("tcp_wmem")].into_iter().flatten().collect()
}

/// Sets the congestion control of new sockets in the namespace.
pub(crate) fn set_congestion(name: &str, may_change: bool) -> io::Result<()> {
    const PATH: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    let present = fs::read_to_string(PATH)?;
    match present.trim() {
        present if present == name => Ok(()),
        present if !may_change => Err(io::Error::other(format!(
            "the tunnel has {present}, and its other commands keep that: --congestion is for the command that starts it"
        ))),
        _ => fs::write(PATH, name),
    }
}

/// Returns the three values of tcp_rmem or tcp_wmem with a higher limit; `None` if it is as high already.
fn raised(text: &str, limit: u64) -> Option<String> {
    let values: Vec<u64> = text.split_whitespace().filter_map(|value| value.parse().ok()).collect();
    let &[least, default, most] = values.as_slice() else { return None };
    (most < limit).then(|| format!("{least} {default} {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_takes_a_sixty_fourth_of_the_memory() {
        let bytes = |memory: u64| tcp_buffer_bytes(Some(memory));
        assert_eq!([bytes(64 << 20), bytes(1 << 30), bytes(64 << 30)], [4 << 20, 16 << 20, 32 << 20]);
        assert_eq!(tcp_buffer_bytes(None), 4 << 20);
    }

    #[test]
    fn a_limit_is_raised_and_never_lowered() {
        assert_eq!(raised("4096\t131072\t6291456\n", 16 << 20).as_deref(), Some("4096 131072 16777216"));
        assert_eq!(raised("4096\t131072\t33554432\n", 16 << 20), None);
        assert_eq!(raised("", 16 << 20), None);
    }
}
