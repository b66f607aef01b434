//! Lines of a configuration file, as wg(8), wg-quick(8) and weft read them: headers of sections, keys with
//! values, and the comments that are settings of weft.

use std::borrow::Cow;

use ipnet::IpNet;

use crate::printable::is_unprintable;

/// What stands before each line of a peer that is disabled. To every program that is a comment.
pub const DISABLED: &str = "#[disabled] ";

/// A section that the format knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `[Interface]`
    Interface,
    /// `[Peer]`
    Peer,
}

/// The header of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header<'a> {
    /// A known section.
    Known(Section),
    /// Another name in brackets.
    Unknown(&'a str),
    /// The closing bracket is missing.
    Unclosed,
}

/// A line of a file.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The number of the line, from 1.
    pub number: usize,
    whole: &'a str,
}

/// Iterates over the lines of a file. A byte order mark is ignored.
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().enumerate().map(|(index, line)| Line::new(index + 1, line))
}

/// Iterates over the items of a list that wg-quick(8) reads: it treats commas as white space.
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ', '\t']).filter(|item| !item.is_empty())
}

/// Returns a key or a value of wg(8) without white space, which it ignores wherever it stands.
pub fn compact(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_whitespace) {
        true => text.split_whitespace().collect::<String>().into(),
        false => text.into(),
    }
}

impl<'a> Line<'a> {
    /// Wraps the text of a line.
    pub fn new(number: usize, whole: &'a str) -> Self {
        Self { number, whole }
    }

    /// Returns the whole line, comment included.
    pub fn whole(self) -> &'a str {
        self.whole
    }

    /// Returns the line without its comment and without the white space around it.
    pub fn text(self) -> &'a str {
        self.whole.split('#').next().unwrap_or_default().trim()
    }

    /// Returns the header, if the line is one.
    pub fn header(self) -> Option<Header<'a>> {
        let name = self.text().strip_prefix('[')?;
        Some(match name.strip_suffix(']').map(str::trim) {
            Some(name) if compact(name).eq_ignore_ascii_case("interface") => {
                Header::Known(Section::Interface)
            }
            Some(name) if compact(name).eq_ignore_ascii_case("peer") => Header::Known(Section::Peer),
            Some(name) => Header::Unknown(name),
            None => Header::Unclosed,
        })
    }

    /// Returns key and value. A `#` ends the value.
    pub fn key_value(self) -> Option<(&'a str, &'a str)> {
        let (key, value) = self.text().split_once('=')?;
        Some((key.trim(), value.trim()))
    }

    /// Returns the value with its comment: a `#` in a command is left to the shell.
    pub fn command(self) -> Option<&'a str> {
        self.whole.split_once('=').map(|(_, command)| command.trim())
    }

    /// Returns the text behind `# weft:` if the line is such a comment.
    pub fn weft_setting(self) -> Option<&'a str> {
        const MARK: &str = "weft:";
        let comment = self.comment()?;
        let is_setting = comment.get(..MARK.len()).is_some_and(|start| start.eq_ignore_ascii_case(MARK));
        is_setting.then(|| comment[MARK.len()..].trim())
    }

    /// Returns the text behind `# friendly_name =` if the line is such a comment. The text is only displayed:
    /// what is not printable is removed, and at most 64 characters are kept.
    pub fn friendly_name(self) -> Option<String> {
        const LONGEST: usize = 64;
        let shown = self.written_name()?.chars().filter(|c| !is_unprintable(*c)).take(LONGEST);
        Some(shown.collect::<String>()).filter(|shown| !shown.is_empty())
    }

    /// Reports whether the name of a peer in this line has characters that are not displayed.
    pub(super) fn hides_in_name(self) -> bool {
        self.written_name().is_some_and(|name| name.contains(is_unprintable))
    }

    fn written_name(self) -> Option<&'a str> {
        let (key, name) = self.comment()?.split_once('=')?;
        key.trim().eq_ignore_ascii_case("friendly_name").then(|| name.trim())
    }

    /// Returns the line without the mark of a line that `weft peer disable` has switched off.
    pub fn disabled(self) -> Option<&'a str> {
        self.whole.strip_prefix(DISABLED)
    }

    /// Returns the comment, if there is nothing else in the line.
    fn comment(self) -> Option<&'a str> {
        self.whole.trim_start().strip_prefix('#').map(str::trim_start)
    }
}

/// Returns the number of the first line in which a key has this network, or an address in it with its prefix.
pub fn line_with_network(text: &str, key: &str, network: IpNet) -> Option<usize> {
    let has_it = |item: &str| compact(item).parse().is_ok_and(|net: IpNet| net.trunc() == network);
    let is_it = |line: &Line<'_>| {
        line.key_value().is_some_and(|(written, value)| {
            compact(written).eq_ignore_ascii_case(key) && value.split(',').any(has_it)
        })
    };
    lines(text).find(is_it).map(|line| line.number)
}

/// Returns the comment that gives a peer this name.
pub(super) fn line_of_name(name: &str) -> String {
    format!("# friendly_name = {name}")
}

/// Reports whether a file gives this name of a peer back as it is.
pub(super) fn keeps_name(name: &str) -> bool {
    let read = Line::new(0, &line_of_name(name)).friendly_name();
    read.as_deref() == Some(name) && !name.chars().any(is_unprintable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(whole: &str) -> Line<'_> {
        Line::new(1, whole)
    }

    #[test]
    fn headers_are_known_whatever_their_case() {
        for (text, header) in [
            ("[Interface]", Some(Header::Known(Section::Interface))),
            (" [ PEER ] # office", Some(Header::Known(Section::Peer))),
            ("[Bogus]", Some(Header::Unknown("Bogus"))),
            ("[Peer", Some(Header::Unclosed)),
            ("# [Peer]", None),
            ("Address = [Peer]", None),
        ] {
            assert_eq!(line(text).header(), header, "{text}");
        }
    }

    #[test]
    fn a_comment_ends_a_value_and_is_a_part_of_a_command() {
        let line = line("\tPostUp = echo = 1 # two\r");
        assert_eq!(line.key_value(), Some(("PostUp", "echo = 1")));
        assert_eq!(line.command(), Some("echo = 1 # two"));
        assert_eq!((line.weft_setting(), line.friendly_name()), (None, None));
    }

    #[test]
    fn some_comments_are_settings() {
        assert_eq!(line(" #WEFT:  MssClamp = on ").weft_setting(), Some("MssClamp = on"));
        assert_eq!(line("# friendly_name = of\u{7}fice ").friendly_name().as_deref(), Some("office"));
        assert_eq!(line("MTU = 1 # weft: MssClamp = on").weft_setting(), None);
    }

    #[test]
    fn lines_are_numbered_from_one_behind_a_byte_order_mark() {
        let all: Vec<_> =
            lines("\u{feff}[Peer]\r\n\nMTU = 1").map(|line| (line.number, line.text())).collect();
        assert_eq!(all, [(1, "[Peer]"), (2, ""), (3, "MTU = 1")]);
        assert_eq!(items("a, b\tc,,").collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn the_line_with_a_network_is_found_by_its_key() {
        let text =
            "[Interface]\nAddress = fd00::1/64, 10.8.0.2/24\n[Peer]\nallowedips=10.9.0.0/16, 10.8.0.0/24\n";
        let net = "10.8.0.0/24".parse().unwrap();
        assert_eq!(line_with_network(text, "Address", net), Some(2));
        assert_eq!(line_with_network(text, "AllowedIPs", net), Some(4));
        assert_eq!(line_with_network(text, "DNS", net), None);
    }
}
