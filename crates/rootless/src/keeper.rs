//! A child in the namespaces. That of the tunnel makes them, stays in them, and does there what weft asks
//! for; it was forked before weft had read a key. A command that uses the tunnel has another one, which
//! enters them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getegid, geteuid, getppid, setsid};
use weft_tun::OpenError;

use crate::channel::{Channel, Reply, Request};
use crate::look_ups::LookUps;
use crate::probe::Step;
use crate::sysctl;

/// An error of the kernel, and where it occurred.
type Refusal = (Step, Errno);

/// Makes the namespaces and serves weft until its end of the channel is closed.
pub(crate) fn make_and_serve(channel: &Channel, parent: Pid) -> io::Result<()> {
    serve(channel, parent, make)
}

/// Enters a user and a network namespace, and serves weft until its end of the channel is closed.
pub(crate) fn enter_and_serve(channel: &Channel, parent: Pid, namespaces: &[OwnedFd; 2]) -> io::Result<()> {
    let enter = || {
        let at = |step| move |errno| (step, errno);
        let [user, network] = namespaces;
        setns(user.as_fd(), CloneFlags::CLONE_NEWUSER).map_err(at(Step::Enter))?;
        setns(network.as_fd(), CloneFlags::CLONE_NEWNET).map_err(at(Step::Enter))?;
        Ok(Vec::new())
    };
    serve(channel, parent, enter)
}

fn serve(
    channel: &Channel,
    parent: Pid,
    begin: impl FnOnce() -> Result<Vec<OwnedFd>, Refusal>,
) -> io::Result<()> {
    // Not in the group of the terminal: its signals are for the command.
    setsid()?;
    prctl::set_name(c"weft-namespace")?;
    prctl::set_no_new_privs()?;
    match begin() {
        Ok(namespaces) => send(channel, &Reply::Inside, &namespaces)?,
        Err((step, errno)) => {
            return channel.send(&Reply::Refused { step, errno: errno as i32 }, &[]);
        }
    }
    // After everything that changes the rights of the process, which resets it.
    prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
    if getppid() != parent {
        return Ok(());
    }
    let mut look_ups = None;
    loop {
        wait(channel, look_ups.as_mut())?;
        let (request, _) = match channel.receive() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        answer(channel, request, &mut look_ups)?;
    }
}

/// Waits for a request, and follows changes of the host's files meanwhile.
fn wait(channel: &Channel, look_ups: Option<&mut LookUps>) -> io::Result<()> {
    let Some(look_ups) = look_ups else { return Ok(()) };
    while let Some(changes) = look_ups.changes() {
        let of = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut polled = [of(channel.as_fd()), of(changes)];
        match poll(&mut polled, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let [has_request, has_changed] = polled.map(|polled| polled.any().unwrap_or(true));
        if has_request {
            return Ok(());
        }
        if has_changed {
            look_ups.follow();
        }
    }
    Ok(())
}

fn send(channel: &Channel, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
    let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
    channel.send(reply, &descriptors)
}

/// Makes the namespaces, and returns descriptors of the user and the network namespace.
fn make() -> Result<Vec<OwnedFd>, Refusal> {
    let (user, group) = (geteuid(), getegid());
    let at = |step| move |errno| (step, errno);
    unshare(CloneFlags::CLONE_NEWUSER).map_err(at(Step::User))?;
    let map = |file: &str, text: &str| {
        let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
        std::fs::write(Path::new("/proc/self").join(file), text).map_err(|error| (Step::Map, errno(error)))
    };
    // The kernel accepts a gid map from an ordinary user only after setgroups was denied
    // (user_namespaces(7)).
    map("setgroups", "deny")?;
    map("uid_map", &format!("{user} {user} 1"))?;
    map("gid_map", &format!("{group} {group} 1"))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(at(Step::Network))?;
    Ok(vec![open("user")?, open("net")?])
}

/// Makes a mount namespace in which names are looked up at these name servers, and returns its descriptor.
fn make_names(resolv_conf: &str, has_servers: bool) -> Result<(OwnedFd, LookUps), Reply> {
    let refused = |(step, errno): Refusal| Reply::Refused { step, errno: errno as i32 };
    let at_mounts = |errno| refused((Step::Mounts, errno));
    unshare(CloneFlags::CLONE_NEWNS).map_err(at_mounts)?;
    let none = None::<&Path>;
    // What is mounted here stays here; what the host mounts later appears here too.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).map_err(at_mounts)?;
    let look_ups = LookUps::set(resolv_conf, has_servers)
        .map_err(|message| failed(&message, io::ErrorKind::Other, 0))?;
    Ok((open("mnt").map_err(refused)?, look_ups))
}

fn open(kind: &str) -> Result<OwnedFd, Refusal> {
    let file = File::open(Path::new("/proc/self/ns").join(kind));
    file.map(OwnedFd::from)
        .map_err(|error| (Step::Open, Errno::from_raw(error.raw_os_error().unwrap_or_default())))
}

fn answer(channel: &Channel, request: Request, look_ups: &mut Option<LookUps>) -> io::Result<()> {
    let (reply, descriptors) = match request {
        Request::Tun { name, queues } => match weft_tun::open_queues(&name, Vec::new(), queues) {
            // Where the driver is missing or closed, something else can take its place.
            Err(error) => (failed(&error, error.kind(), errno_of(&error)), Vec::new()),
            // One for each message: a message has a limited number of descriptors.
            Ok(queues) => {
                for queue in queues {
                    channel.send(&Reply::Done { warnings: Vec::new() }, &[queue.as_fd()])?;
                }
                return Ok(());
            }
        },
        Request::FarNamespace => match far_namespace() {
            Ok(descriptors) => (Reply::Done { warnings: Vec::new() }, descriptors),
            Err((action, error)) => {
                let message = format!("cannot {action} ({error})");
                (failed(&message, error.kind(), 0), Vec::new())
            }
        },
        Request::Names { resolv_conf, has_servers } => match make_names(&resolv_conf, has_servers) {
            Ok((mounts, made)) => {
                let warnings = made.warning().into_iter().collect();
                *look_ups = Some(made);
                (Reply::Done { warnings }, vec![mounts])
            }
            Err(reply) => (reply, Vec::new()),
        },
        Request::Sysctls { group, tcp_buffer_bytes } => {
            (Reply::Done { warnings: sysctl::set(group, tcp_buffer_bytes) }, Vec::new())
        }
        Request::Congestion { name, may_change } => match sysctl::set_congestion(&name, may_change) {
            Ok(()) => (Reply::Done { warnings: Vec::new() }, Vec::new()),
            Err(error) => (failed(&error, error.kind(), 0), Vec::new()),
        },
        Request::Socket { domain, kind, protocol } => match socket(domain, kind, protocol) {
            Ok(socket) => (Reply::Done { warnings: Vec::new() }, vec![socket]),
            Err(errno) => (failed(&errno.desc(), io::ErrorKind::Other, errno as i32), Vec::new()),
        },
    };
    send(channel, &reply, &descriptors)
}

/// Returns ENODEV if there is no driver that this user may open.
fn errno_of(error: &OpenError) -> i32 {
    match error {
        OpenError::NoTunDriver
        | OpenError::NotTheDriver
        | OpenError::DriverForbidden { .. }
        | OpenError::PermissionDenied { .. } => libc::ENODEV,
        _ => 0,
    }
}

/// Makes a network namespace, and returns a netlink socket and a packet socket of it, and its counters.
fn far_namespace() -> Result<Vec<OwnedFd>, (&'static str, io::Error)> {
    let at = |action| move |error| (action, error);
    let own = File::open("/proc/self/ns/net").map_err(at("open the network namespace"))?;
    let errno = |action| move |errno: Errno| (action, errno.into());
    unshare(CloneFlags::CLONE_NEWNET).map_err(errno("make a second network namespace"))?;
    let open = || {
        let netlink = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)
            .map_err(errno("open a netlink socket"))?;
        let packets = socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(errno("open a packet socket"))?;
        let counters = File::open("/proc/self/net/dev").map_err(at("open /proc/self/net/dev"))?;
        Ok(vec![netlink, packets, counters.into()])
    };
    let opened = open();
    setns(own, CloneFlags::CLONE_NEWNET).map_err(errno("return to the network namespace"))?;
    opened
}

fn failed(error: &dyn std::fmt::Display, kind: io::ErrorKind, errno: i32) -> Reply {
    let is_permission = kind == io::ErrorKind::PermissionDenied;
    Reply::Failed { message: error.to_string(), is_permission, errno }
}

fn socket(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes three numbers.
    let descriptor = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    let descriptor = Errno::result(descriptor)?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
