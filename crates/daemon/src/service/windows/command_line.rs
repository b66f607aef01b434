//! Command lines of Windows, as its programs split them (CommandLineToArgvW).

/// Returns the command line with these words, each in quotes.
pub(super) fn of(words: &[impl AsRef<str>]) -> String {
    words.iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// A backslash is special before a quote only, and the last one stands before the quote that ends the word.
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    let mut backslashes = 0;
    for c in word.chars() {
        if c == '"' {
            text.extend(std::iter::repeat_n('\\', backslashes + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        text.push(c);
    }
    text.extend(std::iter::repeat_n('\\', backslashes));
    text + "\""
}

/// Returns the words of a command line.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let (mut is_quoted, mut backslashes) = (false, 0);
    // The program's path ends with its quote, whatever stands before it.
    let mut is_program = true;
    for c in line.trim_start().chars() {
        if c == '\\' && !is_program {
            backslashes += 1;
            continue;
        }
        let is_escaped = c == '"' && backslashes % 2 == 1;
        let kept = if c == '"' { backslashes / 2 } else { backslashes };
        if kept > 0 || is_escaped || c == '"' || is_quoted || !matches!(c, ' ' | '\t') {
            word.get_or_insert_default().extend(std::iter::repeat_n('\\', kept));
        }
        backslashes = 0;
        match c {
            '"' if is_escaped => word.get_or_insert_default().push('"'),
            '"' => is_quoted = !is_quoted,
            ' ' | '\t' if !is_quoted => {
                if let Some(word) = word.take() {
                    words.push(word);
                    is_program = false;
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    if backslashes > 0 {
        word.get_or_insert_default().extend(std::iter::repeat_n('\\', backslashes));
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for words_ in [
            vec![r"C:\Program Files\weft\weft.exe", "--service", "wg0", "up", r"C:\a b\wg0.conf"],
            vec![
                "weft.exe",
                "",
                r"C:\ends with\",
                r#"a "quoted" word"#,
                r#"\\"x\\\"#,
                "\t",
                r"\\server\share\f",
            ],
        ] {
            assert_eq!(words(&of(&words_)), words_);
        }
    }

    #[test]
    fn lines_of_others_are_read_as_windows_reads_them() {
        for (line, expected) in [
            (r"C:\weft\weft.exe  --service	wg0", vec![r"C:\weft\weft.exe", "--service", "wg0"]),
            (r#""C:\a b\weft.exe" -x "c d"e"#, vec![r"C:\a b\weft.exe", "-x", "c de"]),
            (r#""C:\a\" b"#, vec![r"C:\a\", "b"]),
            (r#"p a\\b d"e f"g h"#, vec!["p", r"a\\b", "de fg", "h"]),
            (r#"p a\\\"b c d"#, vec!["p", r#"a\"b"#, "c", "d"]),
            (r#"p a\\\\"b c" d e"#, vec!["p", r"a\\b c", "d", "e"]),
            (r#"p "" \"#, vec!["p", "", r"\"]),
            ("", vec![]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }
}
