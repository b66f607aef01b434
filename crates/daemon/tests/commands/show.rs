//! `weft show` and `weft showconf` beside those of wg(8), on what a daemon of the test tells.

use std::time::SystemTime;

use weft_lab::here;

use crate::fake_daemon::FakeDaemon;
use crate::programs::{WEFT, command, weft, wg};
use crate::sandbox;

const FIELDS: [&str; 12] = [
    "public-key",
    "private-key",
    "listen-port",
    "fwmark",
    "peers",
    "preshared-keys",
    "endpoints",
    "allowed-ips",
    "latest-handshakes",
    "transfer",
    "persistent-keepalive",
    "dump",
];

fn key(number: u8) -> String {
    format!("{number:02x}").repeat(32)
}

/// An interface with peers that show every wording.
fn rich() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let private_key = "e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a";
    let mut state = format!("private_key={private_key}\nlisten_port=12912\nfwmark=51820\n");
    let handshakes =
        [0, now - 1, now - 59, now - 60, now - 3661, now - 86_400 * 3 - 7201, now - 86_400 * 400, now + 1000];
    let endpoints = ["192.0.2.1:51820", "[2001:db8::1]:80", "[fe80::1%lo]:5", "[::ffff:192.0.2.9]:5"];
    let keepalives = [0, 1, 25, 60, 61, 3600, 65_535, 120];
    for (index, handshake) in handshakes.into_iter().enumerate() {
        let number = index as u8;
        state += &format!("public_key={}\n", key(number + 1));
        state +=
            &format!("preshared_key={}\nprotocol_version=1\n", key(if index % 2 == 0 { 0x63 } else { 0 }));
        if let Some(endpoint) = endpoints.get(index) {
            state += &format!("endpoint={endpoint}\n");
        }
        state += &format!("last_handshake_time_sec={handshake}\nlast_handshake_time_nsec={index}\n");
        let bytes = 1023u64 << (10 * (index % 6));
        state += &format!(
            "tx_bytes={}\nrx_bytes={}\n",
            bytes * (index as u64 % 3),
            (bytes + 1) * (index as u64 % 2)
        );
        state += &format!("persistent_keepalive_interval={}\nunknown_key=5\n", keepalives[index]);
        for prefix in ["10.0.0.0/8", "fd00::5/128", "0.0.0.0/0", "::/0"].iter().take(index % 5) {
            state += &format!("allowed_ip={prefix}\n");
        }
    }
    state
}

#[test]
fn a_file_stands_for_the_interface_of_its_name() {
    sandbox::run(|| {
        let rich = FakeDaemon::start("rich", &rich());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rich.conf");
        std::fs::write(&file, format!("[Interface]\nPrivateKey = {}\n", weft(&["genkey"]).output())).unwrap();
        let file = file.to_str().unwrap();
        for (words, code) in [
            (&["show", "", "dump"][..], 0),
            (&["show", "", "peers"], 0),
            (&["showconf", ""], 0),
            // These ask another socket, on which none answers for this interface.
            (&["status", ""], 1),
            (&["capture", "", "-w", "-"], 1),
            (&["speedtest", "", "10.0.0.1"], 1),
        ] {
            let of = |interface: &str| {
                let words: Vec<&str> =
                    words.iter().map(|word| if word.is_empty() { interface } else { *word }).collect();
                let ended = weft(&words);
                (ended.code, ended.stdout, ended.stderr)
            };
            assert_eq!(of(file), of("rich"), "{words:?}");
            assert_eq!(of(file).0, code, "{words:?}");
        }
        weft(&["set", file, "fwmark", "7"]).output();
        assert_eq!(rich.sets(), ["set=1\nfwmark=7\n\n"]);
    });
}

#[test]
fn scripts_read_the_same_bytes_as_from_wg() {
    if !here::installed(&["wg"]) {
        return;
    }
    sandbox::run(|| {
        let rich = FakeDaemon::start("rich", &rich());
        for field in FIELDS {
            for what in ["rich", "all"] {
                let words = ["show", what, field];
                let (ours, theirs) = (weft(&words).output(), wg(&words).output());
                // wg(8) writes the name but once in this form, so that a line of its output is none.
                if words[1..] != ["all", "endpoints"] {
                    assert_eq!(ours, theirs, "{words:?}");
                }
                assert!(!ours.is_empty(), "{words:?}");
            }
        }
        let endpoints = weft(&["show", "all", "endpoints"]).output();
        assert_eq!(endpoints.lines().filter(|line| line.starts_with("rich\t")).count(), 8, "{endpoints}");
        assert_eq!(weft(&["showconf", "rich"]).output(), wg(&["showconf", "rich"]).output());
        assert_eq!(weft(&["show", "interfaces"]).output(), wg(&["show", "interfaces"]).output());
        drop(rich);
        let _empty = FakeDaemon::start("empty", "");
        for field in FIELDS {
            let words = ["show", "empty", field];
            assert_eq!(weft(&words).output(), wg(&words).output(), "{words:?}");
        }
        assert_eq!(weft(&["showconf", "empty"]).output(), wg(&["showconf", "empty"]).output());
    });
}

#[test]
fn people_read_the_same_as_from_wg_in_the_same_colours() {
    if !here::installed(&["wg"]) {
        return;
    }
    sandbox::run(|| {
        let _rich = FakeDaemon::start("rich", &rich());
        for (colours, keys) in
            [("always", "always"), ("never", "never"), ("auto", "bogus"), ("always", "never")]
        {
            for words in [&["show"][..], &["show", "all"], &["show", "rich"]] {
                let of = |program: &str| {
                    let mut command = command(program, words);
                    command.env("WG_COLOR_MODE", colours).env("WG_HIDE_KEYS", keys);
                    String::from_utf8(command.output().unwrap().stdout).unwrap()
                };
                // A second may pass between the two, which the times of handshakes tell.
                let same = (0..50).any(|_| of(WEFT) == of("wg"));
                assert!(same, "{words:?} {colours} {keys}:\n{}\n{}", of(WEFT), of("wg"));
            }
        }
        let coloured =
            command(WEFT, &["show"]).env("WG_COLOR_MODE", "always").env("NO_COLOR", "1").output().unwrap();
        assert!(coloured.stdout.contains(&0x1b), "WG_COLOR_MODE goes before NO_COLOR");
    });
}

#[test]
fn interfaces_come_in_the_order_of_their_names() {
    sandbox::run(|| {
        assert_eq!(weft(&["show", "interfaces"]).output(), "");
        assert_eq!(weft(&["show"]).output(), "");
        assert_eq!(weft(&["show", "--json"]).output(), "[]\n");
        let _daemons = ["wg1", "wg0", "a"].map(|name| FakeDaemon::start(name, "listen_port=7\n"));
        // Neither of these is an interface.
        std::fs::write(format!("{}/file.sock", sandbox::SOCKETS), "").unwrap();
        std::os::unix::net::UnixListener::bind(format!("{}/stale.sock", sandbox::SOCKETS)).unwrap();
        assert_eq!(weft(&["show", "interfaces"]).output(), "a wg0 wg1\n");
        assert_eq!(weft(&["show", "all", "listen-port"]).output(), "a\t7\nwg0\t7\nwg1\t7\n");
        let pretty = weft(&["show"]).output();
        let blocks: Vec<_> = pretty.split("\n\n").map(|block| block.lines().next().unwrap()).collect();
        assert_eq!(blocks, ["interface: a", "interface: wg0", "interface: wg1"]);
        let names: serde_json::Value =
            serde_json::from_str(&weft(&["show", "interfaces", "--json"]).output()).unwrap();
        assert_eq!(names, serde_json::json!(["a", "wg0", "wg1"]));
    });
}

#[test]
fn json_tells_everything_and_keys_only_if_asked_to() {
    sandbox::run(|| {
        let _rich = FakeDaemon::start("rich", &rich());
        let text = weft(&["show", "--json"]).output();
        let devices: serde_json::Value = serde_json::from_str(&text).unwrap();
        let device = &devices[0];
        assert_eq!(device["interface"], "rich");
        assert_eq!(device["public_key"], "wVMuGz01CPx+vDVPpnliDzPyhxSVQuaExnt7DYE2Kyk=");
        assert_eq!((&device["listen_port"], &device["fw_mark"]), (&12912.into(), &51820.into()));
        let peer = &device["peers"][2];
        assert_eq!(peer["endpoint"], "[fe80::1%lo]:5");
        assert_eq!(peer["allowed_ips"], serde_json::json!(["10.0.0.0/8", "fd00::5/128"]));
        assert_eq!(peer["persistent_keepalive"], 25);
        assert_eq!(peer["has_preshared_key"], true);
        assert!(device["peers"][0]["latest_handshake"].is_null());
        for secret in ["6EtabScXwQA6E7QxVwNT26ypFGzxUMX4V1aA/rpSAno=", "Y2NjY2Nj"] {
            assert!(!text.contains(secret), "{secret}");
            let mut command = command(WEFT, &["show", "rich", "--json"]);
            let shown = command.env("WG_HIDE_KEYS", "never").output().unwrap().stdout;
            assert!(String::from_utf8(shown).unwrap().contains(secret), "{secret}");
        }
    });
}
