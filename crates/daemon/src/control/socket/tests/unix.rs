//! What only Unix sockets have: their files, and the users that listen.

use weft_report::control_socket::running_in;

use super::*;

#[test]
fn an_interface_that_does_not_run_is_told_from_one_that_may_not_be_asked() {
    let directory = tempfile::tempdir().unwrap();
    let name: InterfaceName = "wg0".parse().unwrap();
    let path = control_socket(directory.path(), &name);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let none = Client::connect_to(&name, path.clone()).unwrap_err();
    assert!(matches!(none, ClientError::NotRunning { .. }), "{none}");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // A shutdown closes it for certain: a child just forked by another test may hold the descriptor for a
    // moment.
    socket2::Socket::from(listener).shutdown(std::net::Shutdown::Both).unwrap();
    let dead = Client::connect_to(&name, path).unwrap_err();
    assert!(matches!(dead, ClientError::NotRunning { .. }), "{dead}");
}

#[test]
fn the_sockets_in_the_directory_are_the_interfaces_that_run() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["wg1", "wg0", "stopped", "not a name"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    for file in
        ["wg1/control.sock", "wg0/control.sock", "stopped/record.json", "not a name/control.sock", "wg2"]
    {
        std::fs::write(directory.path().join(file), "").unwrap();
    }
    let names: Vec<String> = running_in(directory.path()).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["wg0", "wg1"]);
    assert!(running_in(&directory.path().join("missing")).unwrap().is_empty());
}

/// Returns the first bytes of all clients until the listener is shut down; the clients get no answer.
#[cfg(target_os = "linux")]
fn hear(listener: &socket2::Socket) -> Vec<u8> {
    let mut heard = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        let _ = std::io::BufRead::read_until(&mut std::io::BufReader::new(client), b'\n', &mut heard);
    }
    heard
}

#[test]
#[cfg(target_os = "linux")]
fn another_user_that_listens_gets_nothing_unless_the_interface_is_that_users() {
    use std::os::unix::fs::chown;

    const ANOTHER: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    let name: InterfaceName = "wg0".parse().unwrap();
    let path = control_socket(directory.path(), &name);
    weft_ipc::runtime_dir::make(path.parent().unwrap()).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    // The client trusts the listening user as the kernel reports it, and not the owner of the file.
    if !weft_lab::run_as(ANOTHER, || socket.listen(8)).is_ok_and(|listens| listens.is_ok()) {
        return weft_lab::here::not_run("needs root");
    }
    let reload = || Reload {
        within_command: false,
        is_saved: false,
        text: Zeroizing::new("PrivateKey = secret".to_owned()),
        file: "/etc/wireguard/wg0.conf".into(),
        dry_run: false,
    };
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| hear(&socket));
        let refused = Client::connect_to(&name, path.clone()).and_then(|mut client| client.reload(&reload()));
        socket.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(heard.join().unwrap(), b"");
        let error = refused.unwrap_err();
        assert!(matches!(error, ClientError::Stranger { user: ANOTHER, .. }), "{error}");
        let told = error.to_string();
        let begin = format!("user 65534 listens on {}, and not root: nothing was sent; ", path.display());
        assert!(told.starts_with(&begin) && told.contains("ss -xlp"), "{told}");
        assert_eq!(error.exit_code(), exit::Code::Permission);
    });
    // root gave the directory to this user, as for a service that runs as that user.
    chown(path.parent().unwrap(), Some(ANOTHER), None).unwrap();
    std::fs::remove_file(&path).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    weft_lab::run_as(ANOTHER, || socket.listen(8)).unwrap().unwrap();
    Client::connect_to(&name, path.clone()).unwrap();
    // A directory that the user could have created itself proves nothing.
    chown(directory.path(), Some(ANOTHER), None).unwrap();
    let error = Client::connect_to(&name, path).unwrap_err();
    assert!(matches!(error, ClientError::Untrusted(_)), "{error}");
}

/// Answers with these words, and then with one byte at a time, without an end.
fn drip(listener: &std::os::unix::net::UnixListener, words: &str) {
    use std::io::{BufRead as _, BufReader, Write as _};

    let (mut client, _) = listener.accept().unwrap();
    BufReader::new(&client).read_until(b'\n', &mut Vec::new()).unwrap();
    let mut said = client.write_all(words.as_bytes());
    while said.is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        said = client.write_all(b" ");
    }
}

#[test]
fn an_answer_that_comes_byte_by_byte_without_an_end_holds_no_command_up() {
    type Ask = fn(Client) -> Result<(), ClientError>;
    let asked: [(&str, Ask); 2] = [
        ("", |mut client| client.status().map(drop)),
        ("{\"version\":1,\"ok\":{}}\n", |client| {
            client.stop(false, |passed| passed < Duration::from_secs(5)).map(drop)
        }),
    ];
    std::thread::scope(|scope| {
        for (words, ask) in asked {
            scope.spawn(move || {
                let directory = tempfile::tempdir().unwrap();
                let name: InterfaceName = "wg0".parse().unwrap();
                let path = control_socket(directory.path(), &name);
                weft_ipc::runtime_dir::make(path.parent().unwrap()).unwrap();
                let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
                let (ended, has_ended) = mpsc::channel();
                std::thread::spawn(move || ended.send(ask(Client::connect_to(&name, path).unwrap())));
                std::thread::spawn(move || drip(&listener, words));
                let result = has_ended.recv_timeout(PATIENCE).expect("the command is held up");
                let error = result.unwrap_err();
                assert!(matches!(&error, ClientError::Timeout { .. }), "{words:?}: {error}");
            });
        }
    });
}

#[test]
fn what_follows_the_outcome_of_an_end_is_not_kept() {
    use std::io::{BufRead as _, BufReader, Write as _};

    use weft_report::control_socket::line::MAX_ANSWER;

    let directory = tempfile::tempdir().unwrap();
    let name: InterfaceName = "wg0".parse().unwrap();
    let path = control_socket(directory.path(), &name);
    weft_ipc::runtime_dir::make(path.parent().unwrap()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            drop(listener);
            BufReader::new(&client).read_until(b'\n', &mut Vec::new()).unwrap();
            let answers = "{\"version\":1,\"ok\":{}}\n{\"version\":1,\"ok\":{\"failures\":[\"firewall\"]}}\n";
            client.write_all(answers.as_bytes()).unwrap();
            let more = vec![b'x'; 1 << 20];
            // Fails if the client hangs up.
            let _ = (0..=MAX_ANSWER >> 20).try_for_each(|_| client.write_all(&more));
        });
        let failures = Client::connect_to(&name, path).unwrap().stop(false, |_| true).unwrap();
        assert_eq!(failures, ["firewall"]);
    });
}
