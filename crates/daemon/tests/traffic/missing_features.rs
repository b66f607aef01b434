//! Kernels before those that brought a feature, and filters of containers that take one away: everything
//! works without each of them.

use std::thread;

use weft_dataplane::Snapshot;
use weft_lab::refusal::{Argument, Refusal};

use crate::accounts::{Bed, Setting};
use crate::content::{datagrams_arrive, streams_arrive};
use crate::support::{Conf, End, Ends, Family, NAME, Running, Traces, alone, answers, weft_up};

/// Refuses getsockopt(2) of an option.
fn of_reading(level: libc::c_int, option: libc::c_int) -> Refusal {
    let arguments = [(1, Argument::Is(level)), (2, Argument::Is(option))];
    Refusal::new(libc::SYS_getsockopt, &arguments, libc::ENOPROTOOPT)
}

/// What is missing, and what shows that it is: counters after datagrams, and after all.
type Case = (&'static str, Refusal, fn(&Snapshot, &Snapshot) -> bool);

#[test]
fn everything_arrives_where_the_kernel_lacks_a_feature_of_the_packet_path() {
    let _alone = alone();
    let of_socket = |option| Refusal::of_option(libc::SOL_SOCKET, option, libc::EPERM);
    let of_uso = [(1, Argument::Is(libc::TUNSETOFFLOAD as i32)), (2, Argument::AtLeast(libc::TUN_F_USO4))];
    let uso = Refusal::new(libc::SYS_ioctl, &of_uso, libc::EINVAL);
    let cases: [Case; 7] = [
        ("batches out (Linux 4.18)", of_reading(libc::SOL_UDP, libc::UDP_SEGMENT), |_, weft| {
            !weft.udp_features.gso && weft.udp_features.gro
        }),
        (
            "joined datagrams (Linux 5.0)",
            Refusal::of_option(libc::SOL_UDP, libc::UDP_GRO, libc::ENOPROTOOPT),
            |_, weft| !weft.udp_features.gro && weft.udp_features.gso,
        ),
        ("super-packets of UDP (Linux 6.2)", uso, |datagrams, weft| {
            datagrams.tun.segments_read == datagrams.tun.packets_read
                && weft.tun.segments_read > weft.tun.packets_read
        }),
        ("a program for the socket group (Linux 4.5)", of_socket(libc::SO_ATTACH_REUSEPORT_CBPF), |_, _| {
            true
        }),
        ("a filter of a socket", of_socket(libc::SO_ATTACH_FILTER), |_, _| true),
        ("receive buffers above the limit", of_socket(libc::SO_RCVBUFFORCE), |_, weft| {
            weft.udp_features.receive_buffer_bytes < weft.udp_features.wanted_receive_buffer_bytes
        }),
        ("drops of a socket (Linux 4.12)", of_reading(libc::SOL_SOCKET, libc::SO_MEMINFO), |_, _| true),
    ];
    for (missing, mut refusal, is_missing) in cases {
        let run = || {
            refusal.apply().unwrap();
            let Some(bed) = Bed::new(Setting::inline(1)) else { return };
            datagrams_arrive(&bed);
            let datagrams = bed.read(End::A);
            streams_arrive(&bed);
            for end in bed.assert_balanced() {
                assert!(is_missing(&datagrams.weft, &end.weft), "{missing} is there: {:#?}", end.weft);
            }
            bed.stop();
        };
        // The refusal ends with the thread, and with those that it starts.
        thread::scope(|scope| drop(scope.spawn(run)));
    }
}

#[test]
fn a_daemon_starts_answers_and_ends_where_the_kernel_lacks_a_feature() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let b = Running::up(&ends.b, &conf_b, &[]);
    let of_netlink = [(1, Argument::Is(libc::SOL_NETLINK))];
    let cases = [
        (libc::SYS_landlock_create_ruleset, &[][..], libc::ENOSYS, "the kernel has no landlock"),
        (libc::SYS_seccomp, &[], libc::ENOSYS, "cannot filter system calls"),
        (libc::SYS_capset, &[], libc::EPERM, "cannot give up capabilities"),
        (libc::SYS_setsockopt, &of_netlink, libc::ENOPROTOOPT, ""),
        (libc::SYS_pidfd_open, &[], libc::ENOSYS, ""),
        (libc::SYS_sched_setattr, &[], libc::ENOSYS, ""),
        (libc::SYS_inotify_init1, &[], libc::ENOSYS, ""),
    ];
    for (call, arguments, error, says) in cases {
        let directory = tempfile::tempdir().unwrap();
        let mut command = weft_up(&ends.a, &conf_a.write(directory.path(), NAME));
        command.args(["--log", "debug"]);
        Refusal::new(call, arguments, error).apply_to(&mut command);
        let weft = Running::start(&ends.a, command, directory);
        for family in [Family::V4, Family::V6] {
            assert!(answers(&ends.a, End::B.inner(family)), "system call {call}: {}", weft.log());
        }
        assert!(weft.log().contains(says), "{says} is missing: {}", weft.log());
        weft.stop();
        before.assert_restored(&ends.a);
    }
    b.stop();
}
