//! When a peer ends: a date in a file (RFC 3339, UTC), or for a command a time from now.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const DAY: u64 = 86_400;

/// The moment at which a peer ends, by the wall clock, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expiry {
    unix_seconds: u64,
}

/// The text is no date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpiry {
    /// It is not written as one.
    #[error(
        "write a day like 2030-12-31, which counts to its end, or a time like 2030-12-31T18:00:00Z (both UTC)"
    )]
    Form,
    /// No calendar has the day.
    #[error("there is no such day")]
    Day,
}

impl Expiry {
    /// Parses what a command takes: a date as in a file, or a time from now, such as `12h`, `30d` or `2w`.
    ///
    /// # Errors
    /// It is neither, or is not in the future.
    pub fn of_command(text: &str, now: SystemTime) -> Result<Self, String> {
        if text.strip_prefix('-').is_some_and(|after| Self::of_command(after, now).is_ok()) {
            return Err(format!("{text} is not in the future; {} is", &text[1..]));
        }
        let wrong = || format!("write 12h, 30d or 2w from now; or {}", &InvalidExpiry::Form.to_string()[6..]);
        let from_now = |number: &str, unit: u64| {
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            let ahead = number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit)?;
            let unix_seconds = seconds(now).checked_add(ahead)?;
            (unix_seconds <= Self::LATEST).then_some(Self { unix_seconds })
        };
        let unit = |suffix: char| match suffix {
            'h' => Some(3600),
            'd' => Some(DAY),
            'w' => Some(7 * DAY),
            _ => None,
        };
        let expiry = match text.char_indices().next_back().map(|(last, suffix)| (&text[..last], unit(suffix)))
        {
            Some((number, Some(unit))) => from_now(number, unit).ok_or_else(wrong)?,
            _ => text.parse().map_err(|error| match error {
                InvalidExpiry::Form => wrong(),
                InvalidExpiry::Day => error.to_string(),
            })?,
        };
        if expiry.is_over(now) { Err(format!("{expiry} is not in the future")) } else { Ok(expiry) }
    }

    /// Reports whether the moment has come.
    pub fn is_over(self, now: SystemTime) -> bool {
        seconds(now) >= self.unix_seconds
    }

    /// Returns the time until then.
    pub fn until(self, now: SystemTime) -> Duration {
        (UNIX_EPOCH + Duration::from_secs(self.unix_seconds)).duration_since(now).unwrap_or_default()
    }

    /// Returns the moment in seconds since 1970.
    pub fn unix_seconds(self) -> u64 {
        self.unix_seconds
    }

    /// The last second of the year 9999.
    const LATEST: u64 = 253_402_300_799;
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl FromStr for Expiry {
    type Err = InvalidExpiry;

    fn from_str(text: &str) -> Result<Self, InvalidExpiry> {
        let is_day = text.len() == "2030-12-31".len();
        let text = if is_day { format!("{text}T23:59:59Z") } else { text.to_owned() };
        let time = OffsetDateTime::parse(&text, &Rfc3339).ok().filter(|time| time.offset().is_utc());
        let time = time.ok_or(if names_no_day(&text) { InvalidExpiry::Day } else { InvalidExpiry::Form })?;
        let unix_seconds = u64::try_from(time.unix_timestamp()).map_err(|_| InvalidExpiry::Form)?;
        Ok(Self { unix_seconds })
    }
}

/// Reports whether a text begins as a date does, and no month or no year has this day.
fn names_no_day(text: &str) -> bool {
    let number = |range| text.get(range).filter(|part: &&str| part.bytes().all(|byte| byte.is_ascii_digit()));
    let (Some(month), Some(day)) = (number(5..7), number(8..10)) else { return false };
    number(0..4).is_some()
        && [4, 7].iter().all(|place| text.as_bytes()[*place] == b'-')
        && OffsetDateTime::parse(&format!("{}-{month}-{day}T00:00:00Z", &text[..4]), &Rfc3339).is_err()
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = i64::try_from(self.unix_seconds).ok();
        let time = time.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        f.write_str(&time.and_then(|time| time.format(&Rfc3339).ok()).ok_or(fmt::Error)?)
    }
}

impl TryFrom<String> for Expiry {
    type Error = InvalidExpiry;

    fn try_from(text: String) -> Result<Self, InvalidExpiry> {
        text.parse()
    }
}

impl From<Expiry> for String {
    fn from(expiry: Expiry) -> Self {
        expiry.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_counts_to_its_end_and_a_time_is_utc() {
        for (text, seconds, shown) in [
            ("1970-01-01", 86_399, "1970-01-01T23:59:59Z"),
            ("2000-02-29T00:00:00Z", 951_782_400, "2000-02-29T00:00:00Z"),
            ("2026-12-31T18:00:00z", 1_798_740_000, "2026-12-31T18:00:00Z"),
            ("2028-12-31 23:59:59Z", 1_861_919_999, "2028-12-31T23:59:59Z"),
            ("2100-03-01t00:00:00Z", 4_107_542_400, "2100-03-01T00:00:00Z"),
            ("9999-12-31", 253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            let expiry: Expiry = text.parse().unwrap();
            assert_eq!((expiry.unix_seconds(), expiry.to_string().as_str()), (seconds, shown), "{text}");
            assert_eq!(expiry.to_string().parse(), Ok(expiry), "{text}");
        }
        for text in [
            "",
            "2026",
            "2026-1-1",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2100-02-29",
            "2026-04-31",
            "1969-12-31",
            "+026-01-01",
            "1970-01-00",
            "0000-00-00",
            "2026-01-01T",
            "2026-01-01T10:00:00",
            "2026-01-01T24:00:00Z",
            "2026-01-01T10:60:00Z",
            "2026-01-01T10:00:60Z",
            "2026-01-01T10:00Z",
            "2026-01-01T10:00:00+01:00",
            "2026-01-01-01",
            "31.12.2026",
            "30d",
        ] {
            assert!(text.parse::<Expiry>().is_err(), "{text}");
        }
        for text in ["2026-02-31", "2027-02-29T10:00:00Z", "2026-13-01", "2026-01-00"] {
            let said = Expiry::of_command(text, UNIX_EPOCH).unwrap_err();
            assert_eq!((text.parse::<Expiry>(), &*said), (Err(InvalidExpiry::Day), "there is no such day"));
        }
        for text in ["2026-1-1", "2026-01-01T24:00:00Z", "31.12.2026", "ä026-02-31", "2026-02-3"] {
            assert_eq!(text.parse::<Expiry>(), Err(InvalidExpiry::Form), "{text}");
        }
    }

    #[test]
    fn a_command_takes_a_time_from_now_that_is_in_the_future() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let after =
            |text: &str| Expiry::of_command(text, now).map(|expiry| expiry.unix_seconds() - 1_000_000_000);
        assert_eq!((after("1h"), after("30d"), after("2w")), (Ok(3600), Ok(2_592_000), Ok(1_209_600)));
        assert_eq!(after("2001-09-09T01:46:41Z"), Ok(1));
        for text in [
            "",
            "d",
            "0d",
            "-1d",
            "+1d",
            "1.5d",
            "30",
            "30m",
            "99999999999d",
            "18446744073709551615w",
            "ä",
            "2001-09-09T01:46:40Z",
            "2001-09-08",
        ] {
            assert!(after(text).is_err(), "{text}");
        }
    }
}
