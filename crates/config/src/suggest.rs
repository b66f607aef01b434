//! Suggestions for mistyped keys.

/// Returns the name of a key if it is safe to print: too short to be a WireGuard key that was pasted in its
/// place.
pub fn shown_key(written: &str) -> Option<&str> {
    let valid = (1..=32).contains(&written.len()) && written.bytes().all(|byte| byte.is_ascii_alphanumeric());
    valid.then_some(written)
}

/// Returns the closest candidate that is at most two edits away, ignoring case.
pub fn closest<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    candidates
        .map(|key| (edit_distance(&written, &key.to_ascii_lowercase()), key))
        .filter(|&(distance, key)| distance <= 2.min(key.len() / 2))
        .min()
        .map(|(_, key)| key)
}

/// Returns the candidates that are at most two edits away, or that contain what is written or are within it,
/// ignoring case.
pub fn near<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let written = written.to_ascii_lowercase();
    let is_near = |candidate: &&str| {
        let candidate = candidate.to_ascii_lowercase();
        let (shorter, longer) =
            if written.len() < candidate.len() { (&written, &candidate) } else { (&candidate, &written) };
        edit_distance(&written, &candidate) <= 2.min(candidate.len() / 2)
            || (shorter.len() > 1 && longer.contains(&**shorter))
    };
    candidates.filter(is_near).collect()
}

/// Returns the Levenshtein distance in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_word_is_at_most_two_edits_away_and_half_of_its_length() {
        let closest = |written: &str| closest(written, ["KillSwitch", "MssClamp", "MTU", "DNS"].into_iter());
        for (written, expected) in [
            ("killswitch", Some("KillSwitch")),
            ("KilSwich", Some("KillSwitch")),
            ("KiSwich", None),
            ("MTO", Some("MTU")),
            ("MOO", None),
            ("DTU", Some("MTU")),
            ("", None),
        ] {
            assert_eq!(closest(written), expected, "{written}");
        }
    }
}
