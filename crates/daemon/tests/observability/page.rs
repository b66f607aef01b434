//! The page in a real browser without a screen.

use std::net::UdpSocket;
use std::process::Stdio;

use weft_lab::{Process, here, until};

use crate::support::{ADDRESS, End, two_ends};

#[test]
fn a_browser_shows_peers_and_rates() {
    if !here::installed(&["chromium"]) {
        return;
    }
    let Some((a, b)) = two_ends() else { return };
    let settings = "# friendly_name = <b>Büro</b>\nPersistentKeepalive = 25\n# weft: RateToPeer = 2500Mbit\n# weft: RateFromPeer = 8kbit";
    let peers = End::peer(&b, settings) + &End::silent_peers(300);
    let _running = a.up(&(a.conf("Table = off") + &peers), &["--metrics", ADDRESS]);
    let _other = b.up(&(b.conf("") + &End::peer(&a, "PersistentKeepalive = 1")), &[]);
    // More than the 64 KiB that may come at once.
    b.namespace.run(|| {
        let socket = UdpSocket::bind((b.inner(), 0)).unwrap();
        for _ in 0..100 {
            socket.send_to(&[0; 1200], (a.inner(), 9)).unwrap();
        }
    });
    // Rates are told from two looks.
    until("rates, and drops for a limit", || {
        let status = a.get("/status.json?peers=1").json();
        let has_dropped = status["peers"][0]["limit_from_peer"]["dropped_packets"].as_u64() > Some(0);
        status["recent"].is_object() && has_dropped
    });
    let profile = a.directory.path().join("browser");
    let mut command = a.namespace.command("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.args(["--disable-background-networking", "--virtual-time-budget=3000", "--dump-dom"]);
    command.args(["--enable-logging=stderr", "--v=0"]);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(format!("http://{ADDRESS}/"));
    command.env("HOME", a.directory.path()).stdin(Stdio::null());
    // Both, the page and what the browser has to say about it, go into one file.
    let mut browser = Process::start(&a.namespace, command).unwrap();
    assert!(browser.wait().success(), "{}", browser.log());
    let page = browser.log();
    for part in [
        "id=\"interface\">weft0<",
        "&lt;b&gt;Büro&lt;/b&gt;",
        "Peers (301)",
        "The 100 busiest of 301.",
        "10.77.0.2/32",
        "bit/s",
    ] {
        assert!(page.contains(part), "{part} in:\n{page}");
    }
    assert!(!page.contains("<b>Büro"), "a name became an element");
    let rows =
        page.split("<table id=\"peers\"").nth(1).and_then(|rest| rest.split("</table>").next()).unwrap();
    assert_eq!(rows.matches("<tr").count(), 1 + 100, "{rows}");
    let numbers: Vec<&str> =
        rows.split("<td class=\"n\" ").map(|cell| cell.split("</td>").next().unwrap()).collect();
    let limited = numbers.iter().position(|cell| cell.contains("limit ")).expect("a limit");
    for (cell, part) in numbers[limited..].iter().zip([
        "<small>limit 2.5 Gbit/s</small>",
        "<small>limit 8.0 kbit/s</small>",
        "<small></small>",
        " dropped</small>",
    ]) {
        assert!(cell.contains(part), "{part} in {:?}", &numbers[limited..limited + 4]);
    }
    assert_eq!((rows.matches("limit ").count(), rows.matches(" dropped").count()), (2, 1), "of one peer");
    assert!(page.contains("<polyline class=\"out\" points=\""), "no plot");
    // What the page's script or its policy got wrong.
    let console: Vec<&str> = page.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    assert!(page.contains("<section id=\"alarm\" class=\"alarm\" role=\"alert\" hidden=\"\">"), "no answer");
}
