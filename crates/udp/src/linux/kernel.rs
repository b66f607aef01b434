//! What depends on the release of the running kernel and cannot be probed.

/// Version, patch level and sublevel of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32, u32, u32);

impl Release {
    /// The running kernel's (uname(2): /proc may show processes only); one with no known peculiarities when it does not
    /// tell.
    pub fn running() -> Self {
        let name = nix::sys::utsname::uname();
        let release = name.as_ref().ok().and_then(|name| name.release().to_str());
        release.map_or(Self(6, 12, 0), Self::parse)
    }

    pub(super) fn parse(release: &str) -> Self {
        let mut numbers = release.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next(), next())
    }

    /// Linux 7.0 to 7.1.4 gives the last segment of a GSO batch wrong UDP headers when it is as long as the
    /// others.
    pub fn mangles_equal_segments(self) -> bool {
        (Self(7, 0, 0)..=Self(7, 1, 4)).contains(&self)
    }

    /// UDP_GRO is there since 5.0, but the stride of what it joined can be relied on since 5.12 only.
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
