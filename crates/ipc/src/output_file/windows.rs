//! Files where access is inherited from the folder.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::End;
use crate::holder::unfinished_at_random;

pub(super) fn open(path: &Path, _mode: u32) -> io::Result<(File, End)> {
    if let Ok(file) = File::create_new(path) {
        return Ok((file, End::New(path.to_owned())));
    }
    // A device, or what cannot be written, which opening it tells.
    if !fs::metadata(path).is_ok_and(|entry| entry.is_file()) {
        return Ok((File::create(path)?, End::InPlace));
    }
    let unfinished = unfinished_at_random(path);
    match File::create_new(&unfinished) {
        Ok(file) => Ok((file, End::Beside { unfinished, earlier: path.to_owned() })),
        Err(_) => Ok((File::options().write(true).open(path)?, End::ToEmpty)),
    }
}
