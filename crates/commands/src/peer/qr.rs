//! A text as a QR code of half blocks. Its colours are the same on every terminal; without colours it is for
//! light letters on a dark ground.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use weft_config::exit::{Code, Error};
use zeroize::Zeroizing;

use crate::output;

/// Draws the code, two rows in a line, with the margin that readers need.
///
/// # Errors
/// The text is longer than a code can hold (2,953 bytes), or the terminal is smaller than the code.
pub(super) fn draw(text: &str) -> Result<Zeroizing<String>, Error> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).map_err(|error| {
        let reason = format!("the peer's file does not fit a QR code ({error}); write it with --out FILE");
        Error::new(Code::Failure, reason)
    })?;
    // What is dark in the code is the ground of the terminal.
    let drawn = code.render().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    let drawn = Zeroizing::new(drawn);
    let (width, height) = (drawn.lines().next().unwrap_or_default().chars().count(), drawn.lines().count());
    let (columns, rows) = output::terminal_size().unwrap_or((usize::MAX, usize::MAX));
    if columns < width {
        let reason = format!(
            "the QR code needs {width} columns, and this terminal has {columns}: make the window wider or its letters \
             smaller, or write the peer's file with --out FILE; no peer was added"
        );
        return Err(Error::new(Code::Failure, reason));
    }
    if rows <= height {
        let reason = format!(
            "the QR code needs {} rows, and this terminal has {rows}: make the window higher or its \
             letters smaller, or write the peer's file with --out FILE; no peer was added",
            height + 1
        );
        return Err(Error::new(Code::Failure, reason));
    }
    // Bold is bright on many terminals.
    let line_bytes = drawn.len() / height.max(1) + 16;
    let mut text = Zeroizing::new(String::with_capacity(line_bytes * height));
    for line in drawn.lines() {
        text.extend(["\x1b[1;37;40m", line, "\x1b[0m\n"]);
    }
    Ok(text)
}
