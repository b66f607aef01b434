//! Printing that survives a reader who went away.

use std::fmt::Display;
use std::io::{self, Write as _};

use weft_config::exit::{Code, Error};

/// Prints to standard output, all of it, or says why not. A closed pipe is no error: nobody reads on.
pub fn print(text: &[u8]) -> Result<(), Error> {
    write(text, io::stdout().lock())
}

fn write(text: &[u8], mut stdout: impl io::Write) -> Result<(), Error> {
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other
            .map_err(|error| Error::new(Code::Failure, format!("cannot write to standard output: {error}"))),
    }
}

/// Prints text with terminal colours in it to standard output, also where a terminal has to be told first.
pub fn print_coloured(text: &[u8]) -> Result<(), Error> {
    write(text, anstream::AutoStream::always(io::stdout().lock()))
}

/// Prints text with colours to standard output, without them where that is no terminal or NO_COLOR is set.
pub fn print_styled(text: &str) -> Result<(), Error> {
    write(text.as_bytes(), anstream::AutoStream::auto(io::stdout().lock()))
}

/// Prints `error: …` to standard error, each line of `error` as one.
pub fn error(error: &impl Display) {
    labelled("\x1b[1;31merror:\x1b[0m", error);
}

/// Prints `warning: …` to standard error, each line of `warning` as one.
pub fn warning(warning: &impl Display) {
    labelled("\x1b[1;33mwarning:\x1b[0m", warning);
}

/// anstream takes the colours away where there is no terminal, or where NO_COLOR is set.
fn labelled(label: &str, text: &impl Display) {
    let mut stderr = anstream::stderr().lock();
    for line in text.to_string().lines() {
        // There is nowhere left to tell it if this fails.
        let _ = writeln!(stderr, "{label} {line}");
    }
}
