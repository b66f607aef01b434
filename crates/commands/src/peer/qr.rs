//! A text as a QR code of half blocks, for a terminal with light letters on a dark ground.

use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use weft_config::exit::{Code, Error};
use zeroize::Zeroizing;

/// Draws the code, two rows in a line, with the margin that readers need.
///
/// # Errors
/// The text is longer than a code can hold (2,953 bytes).
pub(super) fn draw(text: &str) -> Result<Zeroizing<String>, Error> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).map_err(|error| {
        let reason = format!("the peer's file does not fit a QR code ({error}); write it with --out FILE");
        Error::new(Code::Failure, reason)
    })?;
    // What is dark in the code is the ground of the terminal.
    let drawn = code.render().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    Ok(Zeroizing::new(drawn + "\n"))
}
