//! What `SaveConfig` could not write into the file of an interface: it is kept in the directory of the
//! interface, and written when the file can be written again. Until then it takes the place of the file.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weft_config::InterfaceName;
use weft_ipc::runtime_dir::{self, read_untrusted};
use zeroize::Zeroizing;

use super::platform;

/// A configuration has at most as many bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// What is known of a text that is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The file that was to have the text.
    file: PathBuf,
    /// The hash of the text that the file had then. Another version of weft may have another hash, and then
    /// takes the file for an edited one.
    before: u64,
}

/// What became of a text that was kept.
#[derive(Debug)]
pub enum Unsaved {
    /// There was none.
    Nothing,
    /// It is in its file now.
    Saved { file: PathBuf },
    /// The file still cannot be written.
    Kept { text: Zeroizing<String>, file: PathBuf, kept: PathBuf, error: io::Error },
    /// The file was edited since: the text stays where it is, for the user.
    Edited { file: PathBuf, kept: PathBuf },
}

/// Keeps the text that was to replace the text `before` of a file. Returns where it is.
pub(super) fn keep(
    directory: &Path,
    interface: &InterfaceName,
    file: &Path,
    before: &str,
    text: &str,
) -> io::Result<PathBuf> {
    runtime_dir::make(&runtime_dir::instance(directory, interface))?;
    let note = Note { file: file.to_owned(), before: text_hash(before) };
    let (kept, noted) = paths(directory, interface);
    let written = platform::write_private(&kept, text.as_bytes())
        .and_then(|_| platform::write_private(&noted, &serde_json::to_vec(&note)?));
    if let Err(error) = written {
        forget(directory, interface);
        return Err(error);
    }
    Ok(kept)
}

/// Writes a text that was kept into its file, unless the file was edited since. `only`: nothing is done for
/// another file. `now`: the text of the file, if the caller knows it better than this process can read it.
pub fn settle(
    directory: &Path,
    interface: &InterfaceName,
    only: Option<&Path>,
    now: Option<&str>,
) -> Unsaved {
    let Some((note, text)) = read(directory, interface) else { return Unsaved::Nothing };
    let Note { file, before } = note;
    if only.is_some_and(|only| only != file) {
        return Unsaved::Nothing;
    }
    let here = weft_config::read_regular_text(&file).ok();
    let now = now.or(here.as_ref().map(|text| text.as_str()));
    let kept = paths(directory, interface).0;
    if now.is_some_and(|now| now != *text && text_hash(now) != before) {
        return Unsaved::Edited { file, kept };
    }
    if now != Some(text.as_str()) {
        // What only the caller can read is compared above.
        let before = here.as_ref().map(|here| here.as_str());
        match platform::replace(&file, before, &text) {
            Ok(true) => {}
            Ok(false) => return Unsaved::Edited { file, kept },
            Err(error) => return Unsaved::Kept { text, file, kept, error },
        }
    }
    forget(directory, interface);
    Unsaved::Saved { file }
}

/// Reports whether a text is kept for this file, which has the text that it had then. What is saved from now
/// on contains it.
pub(super) fn is_kept_for(directory: &Path, interface: &InterfaceName, file: &Path) -> bool {
    let Some((note, _)) = read(directory, interface) else { return false };
    let now = weft_config::read_regular_text(file);
    note.file == file && now.is_ok_and(|now| text_hash(&now) == note.before)
}

/// Returns where a text for this file is kept.
pub(super) fn kept_for(directory: &Path, interface: &InterfaceName, file: &Path) -> Option<PathBuf> {
    read(directory, interface).filter(|(note, _)| note.file == file)?;
    Some(paths(directory, interface).0)
}

/// Removes what is kept.
pub(super) fn forget(directory: &Path, interface: &InterfaceName) {
    let (kept, noted) = paths(directory, interface);
    for path in [noted, kept] {
        let _missing = std::fs::remove_file(path);
    }
    runtime_dir::leave(&runtime_dir::instance(directory, interface));
}

/// Returns the paths of the text and of the note. The text has the name of a configuration file.
fn paths(directory: &Path, interface: &InterfaceName) -> (PathBuf, PathBuf) {
    let instance = runtime_dir::instance(directory, interface);
    (instance.join(format!("{interface}.conf")), instance.join("unsaved.json"))
}

/// Reads what this user has kept. What another user has written is not believed: it has commands, which would
/// run as this user.
fn read(directory: &Path, interface: &InterfaceName) -> Option<(Note, Zeroizing<String>)> {
    let (kept, noted) = paths(directory, interface);
    let own = |path: &Path, most| {
        let (content, file) = read_untrusted(path, most).ok().flatten()?;
        if platform::other_owner(&file).is_some() {
            tracing::warn!("{} is another user's, and is ignored", path.display());
            return None;
        }
        Some(content)
    };
    let note = serde_json::from_slice(&own(&noted, MAX_NOTE_BYTES)?).ok()?;
    let text = String::from_utf8(own(&kept, MAX_TEXT_BYTES)?).ok()?;
    Some((note, Zeroizing::new(text)))
}

/// Returns a number that differs between texts of a file. Another version of weft may have another one.
pub fn text_hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
