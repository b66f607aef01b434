//! A tunnel that ends in this process: its TCP/IP stack takes the place of a device. Nothing is made in the
//! system but the UDP sockets, and no other process takes part.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use weft_commands::signals::Signal;
use weft_config::exit::Error;
use weft_config::{Config, Dns, Source};
use weft_embed::Stack;
use weft_host::resolve::Cancel;
use weft_host::{Host, memory};

use super::Options;
use super::daemon::known;
use super::message::{MESSAGES, Message};
use super::rootless::{
    Claimed, Prepared, allowed_ips, bring_up_on, directory_of_user, options, prepare, with_one_queue,
};
use super::supervisor::Supervisor;
use crate::cli::RootlessArgs;
use crate::interface::Inherited;

/// What the device is called in reports.
const BACKING: &str = "own";
/// The share of the available memory that connections may reserve, and its bounds.
const MEMORY_SHARE: u64 = 16;
const MIN_MEMORY: u64 = 4 << 20;
const MAX_MEMORY: u64 = 1 << 30;

type Kept = (Vec<IpNet>, Option<u16>);

/// Ends a tunnel, also one that is not up yet: by a signal, or because what it was for has ended.
pub type End = Arc<dyn Fn(Option<Signal>) + Send + Sync>;

/// A tunnel that is up, and the network in it.
pub struct Tunnel {
    supervisor: Supervisor,
    messages: Receiver<Message>,
    file: PathBuf,
    /// What ends it, from any thread.
    pub end: End,
    /// The network in the tunnel, without names.
    pub stack: Stack,
    /// The name servers of the file.
    pub dns: Dns,
    /// The prefixes of each of the peers.
    pub allowed_ips: Vec<Vec<IpNet>>,
    /// Address and MTU of the file, which the stack keeps.
    kept: Kept,
    claim: Claimed,
}

/// Brings the tunnel of a file up in this process, and counts on at most `memory_limit` MiB. `hear` is called
/// first, and gets what ends the tunnel. Call it before the first thread is started.
///
/// # Errors
/// The configuration is wrong, or the tunnel could not be set up: nothing is left behind then. Another
/// process of this user runs it.
pub fn bring_up(
    args: &RootlessArgs,
    memory_limit: Option<u32>,
    hear: impl FnOnce(End) -> Result<(), Error>,
) -> Result<Tunnel, Error> {
    let memory_limit = memory_limit.map(|mib| u64::from(mib) << 20);
    weft_confine::enable();
    let source = Source::read(&args.target)?;
    let mut file = source.file.clone();
    if source.is_file {
        file = std::fs::canonicalize(&file).or_else(|_| std::path::absolute(&file)).unwrap_or(file);
    }
    let is_file = source.is_file;
    let (inbox, messages) = mpsc::sync_channel(MESSAGES);
    let cancel = Cancel::default();
    let (to_end, look_up) = (inbox.clone(), cancel.clone());
    let end: End = Arc::new(move |signal| {
        look_up.cancel();
        drop(to_end.send(signal.map_or(Message::Stop, Message::Signal)));
    });
    hear(Arc::clone(&end))?;
    let _ = directory_of_user();
    let Prepared { in_file, config, overrides, metrics, found, claim } = prepare(args, source, &cancel)?;
    let options = with_one_queue(&options(args.tun, &config));
    let options = Options { inline_queues: 1, memory_limit, ..options };
    let host = Host::detached(&config, &known(&found.endpoints))?;
    let (endpoint, stack) = weft_embed::open(weft_embed::Config {
        addresses: config.interface.addresses.iter().map(IpNet::addr).collect(),
        mtu: host.mtu(),
        memory: budget(options.memory(memory::available_bytes())),
    });
    let allowed_ips = allowed_ips(&in_file);
    stack.set_routes(&allowed_ips);
    let inherited = Inherited { endpoint: Some(endpoint), ..Inherited::default() };
    let mut supervisor =
        bring_up_on((host, inherited), config, overrides, &found, &options, &inbox, metrics)?;
    // The kernel counts nothing for it.
    supervisor.device_is_in(PathBuf::new(), BACKING, None);
    supervisor.ends_in(stack.clone());
    if is_file {
        supervisor.is_from(&file);
    }
    supervisor.is_used_by(Arc::new(Mutex::new(vec![std::process::id()])));
    supervisor.report(&options);
    supervisor.ready();
    let kept = kept(&in_file);
    let dns = in_file.interface.host.dns;
    Ok(Tunnel { supervisor, messages, file, end, stack, dns, allowed_ips, kept, claim })
}

/// Returns the bytes that connections may reserve, of those that there are.
fn budget(available: Option<u64>) -> u64 {
    (available.unwrap_or(0) / MEMORY_SHARE).clamp(MIN_MEMORY, MAX_MEMORY)
}

fn kept(config: &Config) -> Kept {
    (config.interface.addresses.clone(), config.interface.mtu)
}

impl Tunnel {
    /// Runs until something ends the tunnel. `changed` gets the prefixes of the peers after each reload.
    ///
    /// # Errors
    /// Packets have stopped.
    pub fn work(self, changed: impl Fn(Vec<Vec<IpNet>>) + 'static) -> Result<(), Error> {
        let Self { mut supervisor, messages, file, stack, kept: at_start, claim, .. } = self;
        let ending = stack.clone();
        supervisor.on_ending = Some(Box::new(move || ending.end()));
        supervisor.on_loaded = Some(Box::new(move |config, _| {
            let taken = claim.follow(config);
            let allowed_ips = allowed_ips(config);
            stack.set_routes(&allowed_ips);
            changed(allowed_ips);
            let message = "Address and MTU are those of the start until the tunnel starts again";
            let stays = (kept(config) != at_start).then(|| message.to_owned());
            taken.into_iter().chain(stays).collect()
        }));
        Ok(supervisor.work(messages, &file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_a_share_of_the_lower_limit() {
        let share = |limit: Option<u64>, available: Option<u64>| {
            budget(Options { memory_limit: limit, ..Options::default() }.memory(available))
        };
        assert_eq!(share(None, Some(1 << 30)), 64 << 20);
        assert_eq!(share(Some(256 << 20), Some(1 << 30)), 16 << 20);
        assert_eq!(share(Some(256 << 30), Some(1 << 40)), 1 << 30);
        assert_eq!((share(None, None), share(Some(16 << 20), Some(1 << 40))), (4 << 20, 4 << 20));
    }
}
