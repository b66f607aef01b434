//! A log that is not read: a pipe that is full, as when the reader hangs or a terminal was stopped.

use std::fs::File;
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::Mode;
use weft_ipc::runtime_dir::control_socket;
use weft_lab::mounts::separate_sockets;
use weft_lab::{Process, until, wait_until};

use crate::support::{Conf, End, Ends, Family, NAME, Running, answers, weft_beside};

#[test]
fn a_log_that_is_not_read_stops_neither_packets_nor_commands() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let directory = tempfile::tempdir().unwrap();
    let file = conf_a.write(directory.path(), NAME);
    let log = directory.path().join("log");
    nix::unistd::mkfifo(&log, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let unread = File::options().read(true).write(true).open(&log).unwrap();
    fcntl(&unread, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();

    let mut command = ends.a.command("sh");
    command.args(["-c", "exec 2>\"$0\" && exec \"$@\""]).arg(&log).arg(env!("CARGO_BIN_EXE_weft")).arg("up");
    // A lot is said at the start, and for each handshake and packet.
    command.arg(&file).args(["--log", "trace,boringtun=trace"]).env("WEFT_RUNTIME_DIR", directory.path());
    separate_sockets(&mut command);
    let mut a = Process::start(&ends.a, command).unwrap();
    let socket = control_socket(directory.path(), &NAME.parse().unwrap());
    wait_until("the control socket", || UnixStream::connect(&socket).ok());
    until("the tunnel is up", || answers(&ends.a, End::B.inner(Family::V4)));
    for arguments in [&["status", NAME][..], &["reload", file.to_str().unwrap()], &["down", NAME]] {
        let output = weft_beside(a.pid().as_raw().cast_unsigned(), directory.path(), arguments);
        assert!(output.status.success(), "{output:?}");
    }
    assert!(a.wait().success());
    b.stop();
}
