//! `weft strip` beside `wg-quick strip`.

use std::os::unix::fs::PermissionsExt as _;

use nix::unistd::geteuid;
use weft_lab::here;

use crate::programs::{command, weft};

const TEXT: &str = "  # ours \n[Interface] # c\n  Address = 10.0.0.1/24\nPrivateKey = x # mine\n\tListenPort=5  \n\
                    address=1.2.3.4\n#Address = 5\nPostUp = echo \"#x\" [Peer]\nDNS=1.1.1.1\nBogus = 5\n\nMTU=1400\n\
                    PreUp=a\nPreDown=b\nPostDown=c\n# weft: MssClamp = on\nSaveConfig = true\nTable=off\nFwMark = 5\n\
                    [peer]\nPublicKey = y\nAddress = 3\n  AllowedIPs = 10.0.0.1   \n[INTERFACE]\nMTU = 5\nlast";

#[test]
fn what_is_left_is_what_wg_quick_leaves() {
    if !here::installed(&["wg-quick"]) {
        return;
    }
    if !geteuid().is_root() {
        return here::not_run("wg-quick needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wgx.conf");
    std::fs::write(&file, TEXT).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let words = ["strip", file.to_str().unwrap()];
    let theirs = command("wg-quick", &words).output().unwrap();
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    assert_eq!(weft(&words).output(), String::from_utf8(theirs.stdout).unwrap());
}
