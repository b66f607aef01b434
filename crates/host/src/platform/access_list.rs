//! Access lists of Windows as text (SDDL, \[MS-DTYP\] 2.5.1).

/// Groups that every user is in, or every user of a kind: everyone, anonymous, authenticated users, users,
/// guests, interactive and network users.
const ALL: [&str; 7] = ["WD", "AN", "AU", "BU", "BG", "IU", "NU"];
/// The generic rights to everything and to read, and the right to a file's content.
const READ: u32 = 0x1000_0000 | 0x8000_0000 | 0x1;

/// Reports whether a list lets all users read a file. It does not look at entries that deny.
pub(super) fn lets_all_read(list: &str) -> bool {
    // A file without a list is open to everyone.
    if !list.starts_with("D:") || list.contains("NO_ACCESS_CONTROL") {
        return true;
    }
    list.split('(').skip(1).any(|entry| {
        let mut fields = entry.trim_end_matches(')').split(';');
        let mut next = || fields.next().unwrap_or_default();
        let (kind, flags, rights) = (next(), next(), next());
        let trustee = fields.nth(2).unwrap_or_default();
        kind == "A" && !has(flags, &["IO"]) && is_read(rights) && ALL.contains(&trustee)
    })
}

/// Reports whether the rights, names of two letters or a number, have that to read.
fn is_read(rights: &str) -> bool {
    match rights.strip_prefix("0x") {
        Some(number) => u32::from_str_radix(number, 16).is_ok_and(|number| number & READ != 0),
        None => has(rights, &["FA", "FR", "GA", "GR", "CC"]),
    }
}

/// Reports whether one of these names of two letters is among those of a text.
fn has(text: &str, names: &[&str]) -> bool {
    text.as_bytes().chunks(2).any(|name| names.iter().any(|one| one.as_bytes() == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_with_all_users_is_told_from_one_without() {
        // A file of a new folder in %ProgramData%, and one of a folder that has been restricted.
        assert!(lets_all_read("D:AI(A;ID;FA;;;SY)(A;ID;FA;;;BA)(A;ID;0x1200a9;;;BU)"));
        assert!(!lets_all_read("D:PAI(A;;FA;;;SY)(A;;FA;;;BA)"));
        for open in
            ["", "D:NO_ACCESS_CONTROL", "D:(A;;FR;;;WD)", "D:(A;;GRGX;;;AU)", "D:P(A;;SWCC;;;IU)(D;;FA;;;SY)"]
        {
            assert!(lets_all_read(open), "{open:?}");
        }
        for closed in [
            "D:",
            "D:P",
            "D:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;OW)",
            // One user, write alone, execute alone, what only new files inherit, and what is denied.
            "D:(A;;FA;;;S-1-5-21-1-2-3-1001)",
            "D:(A;;FW;;;WD)",
            "D:(A;;0x1200a0;;;BU)",
            "D:(A;OICIIO;GA;;;BU)",
            "D:(D;;FA;;;WD)",
        ] {
            assert!(!lets_all_read(closed), "{closed:?}");
        }
    }
}
