//! Adds up and formats numbers for people.

/// Returns the sum of numbers of a report: a daemon may send any.
pub fn total(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// Formats a number of bytes, such as `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats bytes per second in bits, such as `12.5 Mbit/s`.
pub fn rate(bytes_per_second: u64) -> String {
    const UNITS: [&str; 4] = ["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
    let bits = bytes_per_second.saturating_mul(8);
    if bits < 1000 {
        return format!("{bits} bit/s");
    }
    let mut value = bits as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats milliseconds as at most two units, such as `2 min 5 s`.
pub fn age(milliseconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let seconds = milliseconds / 1000;
    let first = UNITS.iter().position(|&(length, _)| seconds >= length).unwrap_or(UNITS.len() - 1);
    let (length, name) = UNITS[first];
    let mut text = format!("{} {name}", seconds / length);
    if let Some(&(shorter, name)) = UNITS.get(first + 1)
        && seconds % length >= shorter
    {
        text += &format!(" {} {name}", seconds % length / shorter);
    }
    text
}

/// The number of characters by which a peer without a name is shown.
pub(crate) const SHORT_KEY: usize = 10;

/// Returns the first 10 characters of a key, enough to tell peers apart.
pub fn short_key(key: &str) -> String {
    match key.char_indices().nth(SHORT_KEY) {
        Some((end, _)) => format!("{}…", &key[..end]),
        None => key.to_owned(),
    }
}

/// Returns the range of sizes that a bucket of `batch_segments` counts, such as `3–4`.
pub fn bucket_label(bucket: usize) -> String {
    match bucket {
        0 => "1".to_owned(),
        1 => "2".to_owned(),
        _ => format!("{}–{}", (1 << (bucket - 1)) + 1, 1 << bucket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(7 << 20), "7.0 MiB");
        assert!(bytes(u64::MAX).ends_with("PiB"));
        assert_eq!(rate(0), "0 bit/s");
        assert_eq!(rate(125), "1.0 kbit/s");
        assert_eq!(rate(125_000_000), "1.0 Gbit/s");
        assert_eq!(rate(124_999_999), "1.0 Gbit/s");
    }

    #[test]
    fn ages_have_at_most_two_units() {
        for (milliseconds, text) in [
            (0, "0 s"),
            (999, "0 s"),
            (59_000, "59 s"),
            (60_000, "1 min"),
            (125_000, "2 min 5 s"),
            (3_600_000, "1 h"),
            (3_605_000, "1 h"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(age(milliseconds), text);
        }
    }

    #[test]
    fn a_key_is_cut_between_characters() {
        assert_eq!(short_key("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="), "xTIBA5rboU…");
        assert_eq!(short_key("ää"), "ää");
    }

    #[test]
    fn buckets_have_the_sizes_that_they_count() {
        let labels: Vec<_> = (0..7).map(bucket_label).collect();
        assert_eq!(labels, ["1", "2", "3–4", "5–8", "9–16", "17–32", "33–64"]);
    }
}
