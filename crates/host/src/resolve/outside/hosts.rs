//! The file /etc/hosts (hosts(5)).

use std::net::IpAddr;

/// Returns the addresses that the text has for a name.
pub(super) fn find(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let address = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_addresses_of_all_its_lines() {
        let text = "127.0.0.1 localhost\n192.0.2.1\tvpn.example gw # other.example\n# 192.0.2.2 gw\n\
                    2001:db8::1 GW\nfe80::1%eth0 gw\nwrong gw\n";
        assert_eq!(
            find(text, "gw."),
            ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]
        );
        assert_eq!(find(text, "other.example"), [] as [IpAddr; 0]);
        assert_eq!(find(text, "vpn"), [] as [IpAddr; 0]);
    }
}
