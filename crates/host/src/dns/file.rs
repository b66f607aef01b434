//! Writes the file /etc/resolv.conf, where there is no other way to set DNS.
//!
//! What weft writes there begins with a mark. It is derived from what was there before and from the layers of
//! all interfaces, the latest on top, so that interfaces may be removed in any order. Both are kept in
//! separate files, which are written before /etc/resolv.conf: after a crash at any point the next call finds
//! out what is left to be done. They belong to one file: another mount namespace may have another one.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};
use weft_config::{Dns, as_root};
use weft_ipc::holder::{Held, Holder};
use weft_ipc::runtime_dir::{Access, open_untrusted};

use super::super::{DnsError, Places, list};
use layers::{Layer, Layers};
use place::ResolvConf;
pub(super) use place::shares_directory;
use state::FileState;

mod layers;
mod owner;
mod place;
mod state;
mod text;

/// Other processes of weft hold the lock for a few file operations.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// The time between two looks at a file that another program may be writing, and the number of looks at one
/// that stays empty.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
const SETTLE_LOOKS: usize = 25;
/// What was there before the first layer of a file that has one of this process, by the path where it is
/// kept: another program may remove that.
static FORMER: Mutex<BTreeMap<PathBuf, FileState>> = Mutex::new(BTreeMap::new());

/// The lock file is empty.
const LOCK_BYTES: u64 = 0;

/// Puts the settings of an interface on top of the others, or in place of its earlier settings.
pub(super) fn add(places: &Places, interface: &str, settings: &Dns) -> Result<(), DnsError> {
    let file = ResolvConf::find(places)?;
    refuse_elsewhere(&file)?;
    if let Some(surplus) = settings.servers.get(text::MAX_SERVERS..).filter(|surplus| !surplus.is_empty()) {
        tracing::warn!(
            interface,
            "the C library asks the first {} DNS servers only, not {}",
            text::MAX_SERVERS,
            list(surplus)
        );
    }
    let layer = Layer::ours(interface, settings);
    update(&file, places, |layers| {
        layers.put(layer);
        true
    })
    .map(drop)
}

/// Removes the settings of an interface. With the last settings, removes everything that weft wrote. Another
/// file may have been mounted over that file since.
pub(super) fn remove(places: &Places, interface: &str) -> Result<(), DnsError> {
    let file = ResolvConf::find(places)?;
    if !is_untouched(&file)? {
        refuse_elsewhere(&file)?;
        update(&file, places, |layers| layers.remove(interface))?;
    }
    for other in file.others()? {
        let is_ours = Layers::load(&other)?.is_some_and(|layers| layers.has_ours(interface));
        if !is_ours || other.reader_elsewhere().is_some() {
            continue;
        }
        if other.is_covered() {
            return Err(DnsError::File {
                action: "restore",
                path: places.resolv_conf.clone(),
                error: Errno::EBUSY.into(),
                advice: "; something is mounted over it: unmount that, and `weft down` restores the file",
            });
        }
        update(&other, places, |layers| layers.remove(interface))?;
    }
    Ok(())
}

/// Replaces a file that names these servers, which resolvconf wrote before it was removed itself, by lines of
/// its other entries.
pub(super) fn replace(places: &Places, servers: &[IpAddr], others: &str) -> Result<(), DnsError> {
    let file = ResolvConf::find(places)?;
    let present = file.read()?;
    let text = String::from_utf8_lossy(present.content()).into_owned();
    let is_theirs = |server: &IpAddr| super::names_a_server(&text, |named| named == *server);
    if present.is_marked() || servers.is_empty() || !servers.iter().all(is_theirs) {
        return Ok(());
    }
    refuse_elsewhere(&file)?;
    if !super::names_a_server(others, |_| true) {
        let why = "what it said before the tunnel was known to resolvconf, which was removed";
        return Err(DnsError::Lost {
            path: file.written().to_owned(),
            servers: text::servers(&present),
            why,
        });
    }
    file.put(&present.with_content(others.as_bytes().to_vec()))
}

/// Finds out whether the file could be written, without a change. What only another user may do is not
/// found.
pub(super) fn foresee(places: &Places) -> Result<(), DnsError> {
    let file = ResolvConf::find(places)?;
    file.read()?;
    refuse_elsewhere(&file)?;
    let is_closed = |path: &Path| match access(path, AccessFlags::W_OK) {
        Err(error @ (Errno::EROFS | Errno::EPERM)) => Err(failure("write", path, error.into())),
        _ => Ok(()),
    };
    is_closed(file.written())?;
    places.state.ancestors().find(|path| path.exists()).map_or(Ok(()), is_closed)
}

/// Reports whether a directory, or where it would be created, is in a read-only file system.
pub(super) fn is_read_only(directory: &Path) -> bool {
    let nearest = directory.ancestors().find(|path| path.exists());
    // access(2) tells only what may be written otherwise: not if the user namespace does not know the owner.
    nearest
        .and_then(|path| statvfs(path).ok())
        .is_some_and(|system| system.flags().contains(FsFlags::ST_RDONLY))
}

/// Returns the beginning of the file, if it is not what weft has written for the interface.
pub(super) fn replaced(places: &Places, interface: &str) -> Result<Option<String>, DnsError> {
    let file = ResolvConf::find(places)?;
    // Programs read another file than the one that is written.
    if file.has_lost_its_mount() {
        return Ok(Some(beginning(&places.resolv_conf)));
    }
    if is_as_written(&file, interface)? {
        return Ok(None);
    }
    // Another process of weft may be about to write it.
    let _lock = lock(places)?;
    if is_as_written(&file, interface)? {
        return Ok(None);
    }
    let present = file.read()?;
    let is_stateless = present.is_marked() && Layers::load(&file)?.is_none();
    let by = || format!("weft's own file without its state in {}", places.state.display());
    Ok(Some(if is_stateless { by() } else { present.beginning() }))
}

fn former() -> MutexGuard<'static, BTreeMap<PathBuf, FileState>> {
    FORMER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_as_written(file: &ResolvConf<'_>, interface: &str) -> Result<bool, DnsError> {
    let Some(layers) = Layers::load(file)?.filter(|layers| layers.has(interface)) else { return Ok(false) };
    let (backup, original) = (file.backup(), file.read_backup()?);
    let composed = text::compose(&backup, &original, &layers);
    let is_same = file.read()?.content() == composed.content();
    let is_whole = !layers.is_original_lost && layers.had_original == (original != FileState::Missing);
    if is_same && is_whole {
        // Another process may have kept another content.
        former().insert(backup, original);
    }
    Ok(is_same)
}

/// Returns the first line of a file, by which programs say who wrote it.
pub(super) fn beginning(path: &Path) -> String {
    FileState::read(path).map_or_else(|error| error.to_string(), |state| state.beginning())
}

/// Removes the settings of processes that have ended. Returns the names of their interfaces. A file of
/// another network namespace is repaired there.
pub(super) fn repair(places: &Places) -> Result<Vec<String>, DnsError> {
    let file = ResolvConf::find(places)?;
    if is_untouched(&file)? || file.reader_elsewhere().is_some() {
        return Ok(Vec::new());
    }
    update(&file, places, |_| false)
}

/// Returns what the file says without the settings of an interface: the servers of the layers below its
/// layer, and what was there before the first layer. If another program has rewritten the file, that is what
/// it says. Takes no lock: the file may change at any time.
pub(super) fn beneath(places: &Places, interface: &str) -> Result<String, DnsError> {
    let file = ResolvConf::find(places)?;
    let text = |state: &FileState| String::from_utf8_lossy(state.content()).into_owned();
    let present = file.read()?;
    let saved = Layers::load(&file)?;
    if !has_ours(&file, &present, saved.as_ref())? {
        return Ok(text(&present));
    }
    let Some(layers) = saved else { return Ok(text(&present.without_mark())) };
    let servers = layers.below(interface).flat_map(|layer| &layer.settings.servers);
    let servers: String = servers.map(|server| format!("nameserver {server}\n")).collect();
    Ok(servers + &text(&file.read_backup()?))
}

/// Reports whether the file has what weft wrote.
pub(super) fn is_ours(places: &Places) -> bool {
    let find = || {
        let file = ResolvConf::find(places)?;
        has_ours(&file, &file.read()?, Layers::load(&file)?.as_ref())
    };
    find().unwrap_or(false)
}

/// Reports whether the file has what weft wrote, also as another program or a person has edited it, or has
/// nothing any more. That is no content of another, which would come back at the end.
fn has_ours(file: &ResolvConf<'_>, present: &FileState, saved: Option<&Layers>) -> Result<bool, DnsError> {
    if present.is_marked() {
        return Ok(true);
    }
    let Some(layers) = saved.filter(|layers| !layers.is_empty()) else { return Ok(false) };
    let composed = text::compose(&file.backup(), &file.read_backup()?, layers);
    Ok(present.is_blank() || text::has_servers_of(present, &composed))
}

fn is_untouched(file: &ResolvConf<'_>) -> Result<bool, DnsError> {
    Ok(Layers::load(file)?.is_none() && !file.read()?.is_marked())
}

fn refuse_elsewhere(file: &ResolvConf<'_>) -> Result<(), DnsError> {
    file.reader_elsewhere().map_or(Ok(()), |process| Err(DnsError::OtherNamespacesFile { process }))
}

/// Drops the layers of processes that have ended, makes a change (which returns whether it changed anything),
/// and writes the resulting file. Returns the interfaces of the dropped layers.
fn update(
    file: &ResolvConf<'_>,
    places: &Places,
    change: impl FnOnce(&mut Layers) -> bool,
) -> Result<Vec<String>, DnsError> {
    let _lock = lock(places)?;
    let mut present = file.read()?;
    file.adopt_state(&present)?;
    let saved = Layers::load(file)?;
    if saved.as_ref().is_some_and(|before| !before.is_empty()) {
        present = settled(present, || file.read())?;
    }
    let has_ours = has_ours(file, &present, saved.as_ref())?;
    let had_state = saved.is_some();
    let had_original = saved.as_ref().is_none_or(|saved| saved.had_original);
    let is_lost = !had_state || (had_original && file.read_backup()? == FileState::Missing);
    let before = saved.unwrap_or_default();
    let mut layers = before.clone();
    let dropped = layers.drop_dead();
    if !change(&mut layers) && dropped.is_empty() && !is_lost {
        return Ok(dropped);
    }
    file.make_state()?;
    let backup = file.backup();
    let kept = former().get(&backup).cloned().filter(|_| is_lost);
    if has_ours && let Some(original) = kept {
        put(&backup, &original)?;
        layers.had_original = original != FileState::Missing;
        layers.is_original_lost = false;
    } else if has_ours && is_lost {
        tracing::warn!(
            "{} is weft's, but the content before it is not in {}: keeping its DNS servers",
            places.resolv_conf.display(),
            places.state.display()
        );
        let present = present.without_mark();
        put(&backup, &present)?;
        layers.had_original = present != FileState::Missing;
        layers.is_original_lost = true;
    } else if !has_ours && !layers.is_empty() {
        // This is the first layer, or another program rewrote the file: the present content is restored
        // later.
        put(&backup, &present)?;
        layers.had_original = present != FileState::Missing;
        layers.is_original_lost = false;
    } else if !has_ours {
        file.clear_state()?;
        return Ok(dropped);
    }
    let original = file.read_backup()?;
    if layers.is_empty() {
        file.put(&original)?;
        file.clear_state()?;
        former().remove(&backup);
        if layers.is_original_lost {
            return Err(DnsError::Lost {
                path: places.resolv_conf.clone(),
                servers: text::servers(&original),
                why: "what it said before the tunnel was removed from weft's directory",
            });
        }
        return Ok(dropped);
    }
    layers.save(file)?;
    let written = file.put(&text::compose(&backup, &original, &layers));
    if written.is_err() {
        // The layers are restored. If that fails too, the next call finds an unmarked file and clears up.
        let _ = if had_state { before.save(file) } else { file.clear_state() };
    }
    written?;
    if !layers.is_original_lost {
        former().insert(backup, original);
    }
    Ok(dropped)
}

/// Returns what another program has written, once it has written all of it: one that writes in place empties
/// the file first. What is taken for its content comes back at the end.
fn settled(
    mut present: FileState,
    mut read: impl FnMut() -> Result<FileState, DnsError>,
) -> Result<FileState, DnsError> {
    for _ in 0..SETTLE_LOOKS {
        if present.is_marked() {
            break;
        }
        thread::sleep(SETTLE_PAUSE);
        let again = read()?;
        let is_same = again == present;
        present = again;
        if is_same && !present.content().is_empty() {
            break;
        }
    }
    Ok(present)
}

fn put(path: &Path, state: &FileState) -> Result<(), DnsError> {
    state.put(path).map_err(|error| failure("write", path, error))
}

/// What a unit without root can do.
const IN_UNIT: &str =
    "; start the unit weft-client@NAME in place of weft@NAME: it may set name servers (or ReadWritePaths=)";

fn failure(action: &'static str, path: &Path, error: io::Error) -> DnsError {
    let advice = match error.raw_os_error() {
        Some(libc::EROFS) => as_root(
            "; make it writable (in a systemd unit with ReadWritePaths=, in a container with a writable mount), \
             or leave DNS out of the configuration",
            IN_UNIT,
        ),
        Some(libc::EPERM) => "; it may be immutable: see `lsattr`, and unlock it with `chattr -i`",
        Some(libc::EISDIR) => "; a directory is in its place: remove it",
        Some(libc::EACCES) => as_root("; run weft as root", IN_UNIT),
        _ => "",
    };
    DnsError::File { action, path: path.to_owned(), error, advice }
}

/// Locks the state against other processes of weft, until the returned file is dropped.
fn lock(places: &Places) -> Result<File, DnsError> {
    let path = places.state.join("lock");
    let io_failure = |error| failure("write", &path, error);
    DirBuilder::new().recursive(true).mode(0o755).create(&places.state).map_err(io_failure)?;
    let opened =
        open_untrusted(&path, Access::Create, LOCK_BYTES).map_err(|error| io_failure(error.into()))?;
    // The directory was removed in between.
    let file = opened.ok_or_else(|| io_failure(io::ErrorKind::NotFound.into()))?;
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => {
                let holder = Holder::of(Held::Lock(&path));
                let action = format!("lock {}, which another process{holder} holds", path.display());
                return Err(DnsError::Timeout { action, after: LOCK_TIMEOUT });
            }
            Err(TryLockError::Error(error)) => return Err(failure("lock", &path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_removes_is_made_again_while_this_process_lives() {
        let directory = tempfile::tempdir().unwrap();
        let (resolv_conf, state) = (directory.path().join("resolv.conf"), directory.path().join("state"));
        let before = "nameserver 192.0.2.1\nsearch lan.example\n";
        std::fs::write(&resolv_conf, before).unwrap();
        let places = Places { resolv_conf, state, ..Places::default() };
        let settings = Dns { servers: vec!["10.9.0.1".parse().unwrap()], ..Dns::default() };
        for is_set_again in [false, true] {
            add(&places, "wg0", &settings).unwrap();
            assert_eq!(replaced(&places, "wg0").unwrap(), None);
            std::fs::remove_dir_all(&places.state).unwrap();
            let by = replaced(&places, "wg0").unwrap().unwrap();
            assert!(by.starts_with("weft's own file without its state"), "{by}");
            if is_set_again {
                add(&places, "wg0", &settings).unwrap();
                assert_eq!(replaced(&places, "wg0").unwrap(), None);
            }
            remove(&places, "wg0").unwrap();
            assert_eq!(std::fs::read_to_string(&places.resolv_conf).unwrap(), before);
        }
    }

    #[test]
    fn a_file_that_is_being_written_is_read_when_it_is_whole() {
        let mark = format!("{}wg0.\n", state::MARK);
        let empty = [""; SETTLE_LOOKS + 1];
        for (texts, content) in [
            (
                &["", "", "name", "nameserver 192.0.2.1\n", "nameserver 192.0.2.1\n"][..],
                "nameserver 192.0.2.1\n",
            ),
            (&["nameserver 192.0.2.1\n", "nameserver 192.0.2.1\n"], "nameserver 192.0.2.1\n"),
            (&["", &mark], &mark),
            // It is meant to be empty.
            (&empty, ""),
        ] {
            let mut states = texts.iter().map(|text| FileState::file(text.as_bytes().to_vec()));
            let first = states.next().unwrap();
            let settled = settled(first, || Ok(states.next().unwrap())).unwrap();
            assert_eq!((settled.content(), states.next()), (content.as_bytes(), None), "{texts:?}");
        }
    }
}
