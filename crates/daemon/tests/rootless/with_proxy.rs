//! `weft exec --with-proxy`: a command in the host's network, with variables that name proxies into the
//! tunnel.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use weft_lab::{Process, mounts, until};

use crate::capture::Port;
use crate::names;
use crate::own_stack::forbid_namespaces;
use crate::support::{BEHIND, Ended, World, page, url};

const STACKS: [&str; 2] = ["kernel", "own"];
const ALL: [&str; 2] = ["ALL_PROXY", "all_proxy"];
const HTTP: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
const CURL: [&str; 5] = ["curl", "--silent", "--show-error", "--max-time", "60"];

impl World {
    /// `weft exec --with-proxy FILE -- COMMAND`, where all but the kernel's stack has to do without
    /// namespaces.
    fn exec_with_proxy(&self, stack: &str, file: &Path, command: &[&str]) -> Command {
        let mut weft = self.exec(file, &["--with-proxy", "--stack", stack], command);
        if stack != "kernel" {
            forbid_namespaces(&mut weft);
        }
        weft
    }

    fn run_with_proxy(&self, stack: &str, file: &Path, command: &[&str]) -> Ended {
        self.exec_with_proxy(stack, file, command).output().unwrap().into()
    }

    /// Starts a shell that tells its proxies and then runs a script. Returns both URLs.
    fn shell_with_proxy(&self, stack: &str, script: &str) -> (Process, [String; 2]) {
        let script = format!("echo \"proxies $ALL_PROXY $HTTP_PROXY\"; {script}");
        let file = self.file("DNS = 10.77.0.1");
        let command = self.in_session(self.exec_with_proxy(stack, &file, &["sh", "-c", &script]));
        let process = Process::start(&self.client, command).unwrap();
        let line = process.wait_for_line("proxies ");
        let urls = line.rsplit(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
        let [http, socks5] = urls.try_into().unwrap();
        (process, [socks5, http])
    }
}

/// The address in the URL of a proxy with a password.
fn address(proxy: &str) -> SocketAddr {
    proxy.rsplit_once('@').unwrap().1.parse().unwrap()
}

fn curl_uses_the_tunnel(world: &World, stack: &str) {
    let mut outside = [Port::open(&world.gateway, "wan"), Port::open(&world.client, "wan")];
    let mut seen = BTreeSet::new();
    let file = world.file("DNS = 10.77.0.1");
    let without_http: Vec<&str> =
        ["env"].into_iter().chain(HTTP.iter().flat_map(|name| ["-u", name])).collect();
    for (host, from) in [(BEHIND[0], "10.77.0.2"), (BEHIND[1], "fd77::2"), ("server.example", "10.77.0.2")] {
        let url = url(host);
        let (http, tunnel, socks5) =
            ([&CURL[..], &[&url]], [&CURL[..], &["--proxytunnel", &url]], [&CURL[..], &[&url]]);
        for command in [http.concat(), tunnel.concat(), [&without_http[..], &socks5.concat()].concat()] {
            let ended = world.run_with_proxy(stack, &file, &command);
            assert_eq!(
                (ended.code, ended.stdout.len()),
                (Some(0), page(from).len()),
                "{command:?}: {}",
                ended.stderr
            );
            assert!(ended.stdout == page(from), "{command:?}: the page of {from} differs");
            let [gateway, client] = &mut outside;
            seen.extend(gateway.take(client));
        }
    }
    // Type 3 is for a datagram that came after the command had ended.
    let is_allowed = |packet: &&String| {
        ["udp 192.0.2.2 51820", "icmp 192.0.2.2 type 3"].contains(&packet.as_str())
            || packet.starts_with("icmpv6 ff02::")
    };
    assert!(seen.iter().all(|packet| is_allowed(&packet)), "past the tunnel: {seen:?}");
    until("nothing of the user is left", || world.processes().is_empty());
}

#[test]
fn curl_uses_the_tunnel_by_the_variables_also_without_namespaces_and_tun() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    names::serve_as(&world, "10.77.0.1", BEHIND[0].parse().unwrap());
    curl_uses_the_tunnel(&world, "kernel");
    mounts::run_separate(|| mounts::empty("/dev/net"), || curl_uses_the_tunnel(&world, "auto"));
}

#[test]
fn other_users_are_refused_without_the_password_and_the_ports_go_with_the_command() {
    let Some(world) = World::new() else { return };
    world.serve_page(80);
    let stranger = |proxy: &str| -> Ended {
        let mut command = world.client.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(CURL);
        command.args(["--fail", "--noproxy", "", "--proxy", proxy, &url(BEHIND[0])]).output().unwrap().into()
    };
    for stack in STACKS {
        let (mut process, proxies) =
            world.shell_with_proxy(stack, "trap 'exit 6' TERM; while :; do sleep 0.05; done");
        let mut passwords = BTreeSet::new();
        for proxy in &proxies {
            let (scheme, rest) = proxy.split_once("://").unwrap();
            let (login, at) = rest.split_once('@').unwrap();
            passwords.insert(login.to_owned());
            assert!(address(proxy).ip().is_loopback() && login.len() > 30, "{proxy}");
            for login in ["", "weft:@", "weft:00000000000000000000000000000000@", ":@"] {
                let ended = stranger(&format!("{scheme}://{login}{at}"));
                assert!(ended.code != Some(0) && ended.stdout.is_empty(), "{scheme} {login}: {ended:?}");
            }
            let ended = stranger(proxy);
            assert!(ended.code == Some(0) && ended.stdout == page("10.77.0.2"), "{scheme}: {}", ended.stderr);
        }
        process.signal(Signal::SIGTERM);
        assert_eq!(process.wait().code(), Some(6), "{}", process.log());
        for proxy in &proxies {
            let refused = world.client.run(|| TcpStream::connect(address(proxy))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{proxy}");
        }
        until("nothing of the user is left", || world.processes().is_empty());
        let (mut process, again) = world.shell_with_proxy(stack, "exit 4");
        assert!(
            !passwords.iter().any(|login| again[0].contains(login)),
            "the password is that of the last one"
        );
        assert_eq!(process.wait().code(), Some(4), "{}", process.log());
    }
}

#[test]
fn the_command_has_what_it_has_without_weft_and_ends_as_it_does() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    for stack in STACKS {
        for (command, code, told) in [
            (&["true"][..], 0, ""),
            (&["sh", "-c", "exit 3"], 3, ""),
            (&["sh", "-c", "kill -KILL $$"], 128 + 9, ""),
            (&["no-such-command"], 127, "error: cannot run no-such-command: No such file or directory"),
        ] {
            let ended = world.run_with_proxy(stack, &file, command);
            assert_eq!(ended.code, Some(code), "{stack} {command:?}: {ended:?}");
            assert!(
                if told.is_empty() { ended.stderr.is_empty() } else { ended.stderr.contains(told) },
                "{ended:?}"
            );
        }
        for (signal, name) in [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT"), (Signal::SIGUSR1, "USR1")]
        {
            let script = format!("trap 'exit 5' {name}; echo ready; while :; do sleep 0.05; done");
            let (mut process, _) = world.shell_with_proxy(stack, &script);
            process.wait_for_line("ready");
            process.signal(signal);
            assert_eq!(process.wait().code(), Some(5), "{stack} {name}: {}", process.log());
        }
        let script = "ulimit -n; grep -E '^(SigBlk|SigIgn|Cap|Seccomp|NoNew)' /proc/self/status
            env | sort | grep -i proxy; for fd in /proc/$$/fd/*; do readlink $fd; done";
        // Lower than what a proxy needs.
        let run = |program: &[&str]| -> Ended {
            let limited = ["-c", "ulimit -Sn 64; exec \"$@\"", "sh"];
            let mut command = world.as_user("sh", &[&limited, program, &["sh", "-c", script]].concat());
            if stack != "kernel" {
                forbid_namespaces(&mut command);
            }
            command.env("NO_PROXY", "kept.example").output().unwrap().into()
        };
        let weft = ["./weft", "exec", file.to_str().unwrap(), "--with-proxy", "--stack", stack, "--"];
        let (plain, text) = (run(&[]).text(), run(&weft).text());
        let (before, _) = plain.split_once("NO_PROXY=kept.example\n").unwrap();
        assert!(before.starts_with("64\nSigBlk") && text.starts_with(before), "{plain}{text}");
        assert!(!text.contains("socket:") && !text.contains("anon_inode:"), "{text}");
        let variables = text[before.len()..].lines().filter_map(|line| Some(line.split_once('=')?.0));
        let expected = ALL.into_iter().chain(HTTP).chain(["NO_PROXY"]).collect();
        assert_eq!(variables.collect::<BTreeSet<_>>(), expected, "{text}");
        assert!(text.contains("NO_PROXY=kept.example\n"), "{text}");
        let ended = world.run_with_proxy(stack, &file, &["sh", "-c", "echo $NO_PROXY $no_proxy"]);
        assert_eq!(ended.text(), "localhost,127.0.0.1,::1 localhost,127.0.0.1,::1\n");
    }
}

#[test]
fn a_command_hears_that_the_tunnel_was_taken_down() {
    let Some(world) = World::new() else { return };
    for stack in STACKS {
        let (mut process, _) = world.shell_with_proxy(stack, "while :; do sleep 0.05; done");
        assert_eq!(world.weft_in_session(&["down", "office"]).code, Some(0));
        assert_eq!(process.wait().code(), Some(128 + 1), "{stack}: {}", process.log());
        until("nothing of the user is left", || world.processes().is_empty());
    }
}

#[test]
fn a_signal_ends_a_tunnel_that_is_not_up_yet() {
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(world.file("")).unwrap();
    let file = world.write("home.conf", &text.replace("192.0.2.2:", "no-such.invalid:"));
    for stack in STACKS {
        let mut command = world.in_session(world.exec_with_proxy(stack, &file, &["true"]));
        command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
        let mut process = Process::start(&world.client, command).unwrap();
        process.wait_for_line("trying again in");
        process.signal(Signal::SIGTERM);
        let ended = process.wait();
        if stack == "own" {
            assert_eq!(ended.code(), Some(128 + 15), "{}", process.log());
        }
        until("nothing of the user is left", || world.processes().is_empty());
        until("no file is left", || world.left_in_session().iter().all(|name| !name.contains("home")));
    }
}

#[test]
fn what_makes_no_sense_beside_proxies_or_without_them_is_refused() {
    let Some(world) = World::new() else { return };
    let file = world.file("");
    for (options, told) in [
        (&["--with-proxy", "--publish", "8080:80"][..], "cannot be used with"),
        (&["--with-proxy", "--host-port", "80"], "cannot be used with"),
        (&["--stack", "own"], "--with-proxy"),
        (&["--memory-limit", "64"], "--with-proxy"),
        (&["--with-proxy", "--stack", "own", "--congestion", "cubic"], "needs --stack kernel"),
        (&["--with-proxy", "--memory-limit", "64"], "needs --stack own"),
    ] {
        let ended = Ended::from(world.exec(&file, options, &["true"]).output().unwrap());
        assert!(ended.code == Some(2) && ended.stderr.contains(told), "{options:?}: {ended:?}");
    }
}
