//! Printing that tolerates a closed pipe.

use std::fmt::Display;
use std::io::{self, Write as _};

use serde::Serialize;
use weft_config::exit::{Code, Error};

/// Prints all of `text` to standard output. A closed pipe is not an error: its reader wants no more.
pub fn print(text: &[u8]) -> Result<(), Error> {
    write(text, io::stdout().lock())
}

/// Prints `value` as indented JSON and a line break.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::new(Code::Failure, error))?;
    text.push(b'\n');
    print(&text)
}

fn write(text: &[u8], mut stdout: impl io::Write) -> Result<(), Error> {
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other
            .map_err(|error| Error::new(Code::Failure, format!("cannot write to standard output: {error}"))),
    }
}

/// Prints text with terminal colours to standard output, also if it is not a terminal. Enables colours on a
/// terminal that needs it.
pub fn print_coloured(text: &[u8]) -> Result<(), Error> {
    write(text, anstream::AutoStream::always(io::stdout().lock()))
}

/// Prints text with colours to standard output. Removes the colours if it is not a terminal, or if NO_COLOR
/// is set.
pub fn print_styled(text: &str) -> Result<(), Error> {
    write(text.as_bytes(), anstream::AutoStream::auto(io::stdout().lock()))
}

/// Prints each line of `error` to standard error, as `error: …`.
pub fn error(error: &impl Display) {
    labelled("\x1b[1;31merror:\x1b[0m", error);
}

/// Prints each line of `warning` to standard error, as `warning: …`.
pub fn warning(warning: &impl Display) {
    labelled("\x1b[1;33mwarning:\x1b[0m", warning);
}

/// Prints each line of `note` to standard error, as `note: …`.
pub fn note(note: &impl Display) {
    labelled("\x1b[36mnote:\x1b[0m", note);
}

/// anstream removes the colours if standard error is not a terminal, or if NO_COLOR is set.
fn labelled(label: &str, text: &impl Display) {
    let mut stderr = anstream::stderr().lock();
    for line in text.to_string().lines() {
        // If this fails, there is no other place to report it.
        let _ = writeln!(stderr, "{label} {line}");
    }
}
