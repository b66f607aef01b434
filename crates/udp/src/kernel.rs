//! Properties of the running kernel that depend on its release and cannot be probed.

/// Version, patch level and sublevel of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32, u32, u32);

impl Release {
    /// Returns the release of the running kernel, from uname(2), because /proc may show processes only. If it
    /// cannot be read, returns a release without known peculiarities.
    pub fn running() -> Self {
        let name = nix::sys::utsname::uname();
        let release = name.as_ref().ok().and_then(|name| name.release().to_str());
        release.map_or(Self(6, 12, 0), Self::parse)
    }

    pub(crate) fn parse(release: &str) -> Self {
        let mut numbers = release.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next(), next())
    }

    /// Reports whether the kernel writes wrong UDP headers for the last segment of a GSO batch if it is as
    /// long as the others: Linux 7.0 to 7.1.4.
    pub fn mangles_equal_segments(self) -> bool {
        (Self(7, 0, 0)..=Self(7, 1, 4)).contains(&self)
    }

    /// Reports whether the stride of joined datagrams is reliable: since 5.12. UDP_GRO exists since 5.0.
    pub fn reports_gro_stride(self) -> bool {
        self >= Self(5, 12, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_whatever_follows_the_numbers() {
        for (text, release) in [
            ("6.18.44-fc-v657\n", Release(6, 18, 44)),
            ("7.1-rc3", Release(7, 1, 0)),
            ("5.15.0-119-generic", Release(5, 15, 0)),
            ("7.2.0+", Release(7, 2, 0)),
            ("", Release(0, 0, 0)),
        ] {
            assert_eq!(Release::parse(text), release, "{text}");
        }
    }

    #[test]
    fn only_the_releases_with_the_bug_are_avoided() {
        for (text, mangles) in [
            ("6.18.44", false),
            ("7.0.0", true),
            ("7.0.19", true),
            ("7.1.4", true),
            ("7.1.5", false),
            ("7.2", false),
        ] {
            assert_eq!(Release::parse(text).mangles_equal_segments(), mangles, "{text}");
        }
    }
}
