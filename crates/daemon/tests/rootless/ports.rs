//! Ports between the host and the command.

use std::io::{BufRead as _, BufReader, PipeWriter, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use weft_lab::{Process, wait_until_ok};

use crate::support::{Ended, PAGE, World, page};

/// Sends a page to an address of the client, and returns what comes back.
fn exchange(world: &World, at: (&str, u16), sent: &[u8]) -> Vec<u8> {
    let mut stream = world.client.run(|| TcpStream::connect(at)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    })
}

/// Serves at an address of the client: sends back what it gets, and its end after that of the other.
fn serve_echo(world: &World, at: &str) {
    let listener = world.client.run(|| TcpListener::bind(at)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut other, _)) = listener.accept() {
            std::thread::spawn(move || std::io::copy(&mut other.try_clone().unwrap(), &mut other));
        }
    });
}

/// Starts a command. Returns it, its standard input, and the lines that it prints.
fn start(mut command: Command) -> (Child, PipeWriter, impl Iterator<Item = String>) {
    let (input, writer) = std::io::pipe().unwrap();
    let mut child = command.stdin(input).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, writer, lines)
}

#[test]
fn a_port_of_the_command_is_on_the_host_and_one_of_the_host_is_at_the_command() {
    let Some(world) = World::new() else { return };
    serve_echo(&world, "127.0.0.1:9000");
    // The namespace's port 9000 is the host's, and is published: a connection crosses both ways.
    let options = ["--publish", "8080:9000", "--host-port", "9000"];
    let command = world.exec(&world.file(""), &options, &["sh", "-c", "echo ready; read line"]);
    let (mut weft, writer, mut said) = start(command);
    assert_eq!(said.next().unwrap(), "ready");
    let sent = page("10.77.0.2");
    let received = exchange(&world, ("127.0.0.1", 8080), &sent);
    assert_eq!(received.len(), sent.len());
    assert!(received == sent && sent.len() == PAGE, "the content differs");
    drop(writer);
    assert_eq!(weft.wait().unwrap().code(), Some(1));
    wait_until_ok(|| match world.client.run(|| TcpStream::connect("127.0.0.1:8080")) {
        Ok(_) => Err("the port is still there".to_owned()),
        Err(_) => Ok(()),
    });
}

#[test]
fn ports_are_those_of_ipv6_loopback_too() {
    let Some(world) = World::new() else { return };
    serve_echo(&world, "[::1]:9000");
    // The host's service is at ::1 only. It has both addresses inside, and so the published ports lead to it
    // through 127.0.0.1; the command asks ::1.
    let options = ["--publish", "[::1]:8080:9000", "--host-port", "9000"];
    let script = "exec 3<>/dev/tcp/::1/9000; printf hello >&3; head -c 5 <&3; echo; echo ready; read line";
    let command = world.exec(&world.file(""), &options, &["bash", "-c", script]);
    let (mut weft, writer, mut said) = start(command);
    assert_eq!([said.next().unwrap(), said.next().unwrap()], ["hello", "ready"]);
    let sent = page("fd77::2");
    assert!(exchange(&world, ("::1", 8080), &sent) == sent);
    drop(writer);
    assert_eq!(weft.wait().unwrap().code(), Some(1));
}

#[test]
fn a_published_port_leads_to_a_command_that_listens_at_ipv6_loopback_only() {
    let Some(world) = World::with(&["python3"]) else { return };
    let script = "import socket; s = socket.create_server(('::1', 3000), family=socket.AF_INET6); \
                  print('ready', flush=True); c, _ = s.accept(); c.sendall(c.recv(100)); c.close(); s.accept()";
    let command = world.exec(&world.file(""), &["--publish", "8080:3000"], &["python3", "-c", script]);
    let weft = Process::start(&world.client, command).unwrap();
    weft.wait_for_line("ready");
    assert_eq!(exchange(&world, ("127.0.0.1", 8080), b"hello"), b"hello");
}

#[test]
fn without_an_option_the_command_does_not_reach_the_hosts_loopback() {
    let Some(world) = World::new() else { return };
    let listener = world.client.run(|| TcpListener::bind("127.0.0.1:9000")).unwrap();
    let url = "http://127.0.0.1:9000/";
    let ended = world.run(&["curl", "-sS", "--max-time", "60", url]);
    // curl(1): failed to connect.
    assert_eq!(ended.code, Some(7), "{ended:?}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn a_busy_port_is_an_error_before_the_command_starts() {
    let Some(world) = World::new() else { return };
    let _busy = world.client.run(|| TcpListener::bind("127.0.0.1:8080")).unwrap();
    let options = ["--publish", "8080:3000"];
    let mut weft =
        Process::start(&world.client, world.exec(&world.file(""), &options, &["echo", "started"])).unwrap();
    assert_eq!(weft.wait().code(), Some(125), "{}", weft.log());
    let log = weft.log();
    assert!(log.contains("--publish: cannot listen on 127.0.0.1:8080") && !log.contains("started"), "{log}");
    let wrong: Ended =
        world.exec(&world.file(""), &["--publish", "8080"], &["true"]).output().unwrap().into();
    assert!(wrong.code == Some(2) && wrong.stderr.contains("8080:3000"), "{wrong:?}");
}
