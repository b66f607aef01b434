//! Printing that tolerates a closed pipe. All texts of commands go through here, and none of them makes a
//! terminal do anything: names, answers and files of others are among them.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _};

use ratatui::crossterm::terminal;
use serde::Serialize;
use weft_config::exit::{Code, Error};
use weft_config::{Notation, printable, printable_bytes};
use weft_report::finding::wrapped;

#[cfg(unix)]
mod stdout;

#[cfg(not(unix))]
use crate::unsupported as stdout;

pub(crate) use stdout::{is_lost, open_to_all};

/// The version of what `--json` prints: docs/JSON.md. New fields do not change it.
pub const JSON_VERSION: u32 = 1;

/// Prints all of `text` to standard output, [escaped](printable). A closed pipe is not an error: its reader
/// wants no more.
pub fn print(text: &[u8]) -> Result<(), Error> {
    write(&printable_bytes(text, Notation::Text), io::stdout().lock())
}

/// Prints `value` as indented JSON and a line break.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::new(Code::Failure, error))?;
    text.push(b'\n');
    write(&printable_bytes(&text, Notation::Json), io::stdout().lock())
}

fn write(text: &[u8], mut stdout: impl io::Write) -> Result<(), Error> {
    if let Some(error) = stdout::closed() {
        return Err(failed(&error));
    }
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| failed(&error)),
    }
}

fn failed(error: &io::Error) -> Error {
    Error::new(Code::Failure, format!("cannot write to standard output: {error}"))
}

/// Prints what exists nowhere else, in its colours if it has some: here a reader that went away is an error,
/// and what went into a file is on its disk.
pub(crate) fn print_once(text: &str) -> Result<(), Error> {
    let mut stdout = anstream::AutoStream::auto(io::stdout().lock());
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.and_then(|()| stdout::settle()).map_err(|error| failed(&error))
}

/// Prints text with terminal colours to standard output, also if it is not a terminal. Enables colours on a
/// terminal that needs it.
pub fn print_coloured(text: &[u8]) -> Result<(), Error> {
    write(&printable_bytes(text, Notation::Coloured), anstream::AutoStream::always(io::stdout().lock()))
}

/// Prints text with colours to standard output. Removes the colours if it is not a terminal, or if NO_COLOR
/// is set.
pub fn print_styled(text: &str) -> Result<(), Error> {
    write(printable(text, Notation::Coloured).as_bytes(), anstream::AutoStream::auto(io::stdout().lock()))
}

/// Returns the columns and the rows of the terminal that standard output is, if it is one and has a size.
pub(crate) fn terminal_size() -> Option<(usize, usize)> {
    size_of_terminal(&io::stdout())
}

/// Returns the columns of the terminal that standard output is; 80 if it does not tell.
pub(crate) fn columns() -> Option<usize> {
    io::stdout().is_terminal().then(|| terminal_size().map_or(80, |(columns, _)| columns))
}

fn size_of_terminal(stream: &impl IsTerminal) -> Option<(usize, usize)> {
    let (columns, rows) = stream.is_terminal().then(|| terminal::size().ok())??;
    (columns > 0 && rows > 0).then_some((columns.into(), rows.into()))
}

/// Prints each line of `error` to standard error, as `error: …`.
pub fn error(error: &impl Display) {
    labelled("1;31", "error", error);
}

/// Prints each line of `warning` to standard error, as `warning: …`.
pub fn warning(warning: &impl Display) {
    labelled("1;33", "warning", warning);
}

/// Prints each line of `note` to standard error, as `note: …`.
pub fn note(note: &impl Display) {
    labelled("36", "note", note);
}

/// Prints text with colours to standard error: what happens while the result goes to standard output.
pub fn progress(text: &str) {
    // If this fails, there is no other place to report it.
    let _ = anstream::stderr().write_all(printable(text, Notation::Coloured).as_bytes());
}

/// anstream removes the colours if standard error is not a terminal, or if NO_COLOR is set.
fn labelled(colour: &str, label: &str, text: &impl Display) {
    let columns = size_of_terminal(&io::stderr()).map(|(columns, _)| columns);
    let mut stderr = anstream::stderr().lock();
    let text = text.to_string();
    for line in printable(&text, Notation::Text).lines() {
        let line = wrapped(line, label.len() + 2, columns);
        // If this fails, there is no other place to report it.
        let _ = writeln!(stderr, "\x1b[{colour}m{label}:\x1b[0m {line}");
    }
}
