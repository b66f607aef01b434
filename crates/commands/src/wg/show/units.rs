//! Formats durations and amounts as wg(8) does.

use super::style::{Colour, Style};

/// Formats a duration, such as `1 hour, 2 minutes, 3 seconds`; empty for 0.
pub(super) fn duration(seconds: u64, style: Style) -> String {
    const UNITS: [(&str, u64); 5] =
        [("year", 365 * 86_400), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        let count = left / length;
        left %= length;
        if count > 0 {
            let plural = if count == 1 { "" } else { "s" };
            parts.push(format!("{count} {}", style.colour(Colour::Cyan, format_args!("{unit}{plural}"))));
        }
    }
    parts.join(", ")
}

/// Formats an amount of bytes, such as `1.50 KiB`.
pub(super) fn bytes(bytes: u64, style: Style) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, bits) in UNITS {
        if bytes >> bits > 0 {
            let amount = bytes as f64 / (1u64 << bits) as f64;
            return format!("{amount:.2} {}", style.colour(Colour::Cyan, unit));
        }
    }
    format!("{bytes} {}", style.colour(Colour::Cyan, "B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_leave_out_what_is_zero() {
        for (seconds, text) in [
            (0, ""),
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (3661, "1 hour, 1 minute, 1 second"),
            (86_400 * 3 + 7201, "3 days, 2 hours, 1 second"),
            (86_400 * 400, "1 year, 35 days"),
        ] {
            assert_eq!(duration(seconds, Style::Plain), text);
        }
        assert_eq!(duration(2, Style::Coloured), "2 \x1b[36mseconds\x1b[0m");
    }

    #[test]
    fn amounts_have_two_digits_from_a_kibibyte_on() {
        for (amount, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_048_575, "1024.00 KiB"),
            (7_654_321, "7.30 MiB"),
            (1 << 30, "1.00 GiB"),
            (5 << 50, "5120.00 TiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(bytes(amount, Style::Plain), text);
        }
    }
}
