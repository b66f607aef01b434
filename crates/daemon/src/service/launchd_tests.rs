//! The property list, read back.

use super::*;

fn service(name: &str) -> Result<Launchd, ServiceError> {
    let [daemons, logs] = ["/Library/LaunchDaemons", "/var/log/weft"].map(Path::new);
    Launchd::new("/bin/launchctl".into(), daemons, logs, &name.parse().unwrap())
}

/// Returns the texts of the elements, after checking that elements are nested and characters are escaped.
fn read(xml: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut texts = Vec::new();
    for part in xml.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        if let Some(comment) = tag.strip_prefix("!--") {
            assert!(comment.ends_with("--") && !comment[..comment.len() - 2].contains("--"), "{comment}");
        } else if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
        } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
            open.push(tag.split(' ').next().unwrap().to_owned());
        }
        let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "\u{1}");
        assert!(!plain.contains('&'), "{text}");
        if !plain.trim().is_empty() {
            texts.push(plain.replace('\u{1}', "&"));
        }
    }
    assert!(open.is_empty(), "{open:?} are open");
    texts
}

#[test]
fn the_list_says_what_launchd_has_to_run() {
    let text = service("utun7").unwrap().text("/usr/local/bin/weft", "/etc/wireguard/utun7.conf");
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Made by `weft service install`. `weft service remove` removes it. -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>weft.utun7</string>
	<key>ProgramArguments</key>
	<array>
		<string>/usr/local/bin/weft</string>
		<string>up</string>
		<string>--launchd</string>
		<string>/etc/wireguard/utun7.conf</string>
	</array>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ThrottleInterval</key>
	<integer>10</integer>
	<key>ExitTimeOut</key>
	<integer>90</integer>
	<key>ProcessType</key>
	<string>Interactive</string>
	<key>Umask</key>
	<integer>63</integer>
	<key>StandardOutPath</key>
	<string>/var/log/weft/utun7.log</string>
	<key>StandardErrorPath</key>
	<string>/var/log/weft/utun7.log</string>
</dict>
</plist>
"#;
    assert_eq!(text, expected);
    read(&text);
}

#[test]
fn paths_arrive_as_they_are() {
    let [weft, configuration] = ["/Applications/R&D <\"1\">/it's/weft", "/etc/&amp; --> é/utun7.conf"];
    let text = service("utun7").unwrap().text(weft, configuration);
    let texts = read(&text);
    assert!(
        texts.iter().any(|text| text == weft) && texts.iter().any(|text| text == configuration),
        "{texts:?}"
    );
}

#[test]
fn the_arguments_are_those_of_weft_up() {
    use clap::Parser as _;
    let text = service("utun7").unwrap().text("/usr/local/bin/weft", "/etc/wireguard/utun7.conf");
    let texts = read(&text);
    let first = texts.iter().position(|text| text == "ProgramArguments").unwrap() + 1;
    let cli = crate::cli::Cli::try_parse_from(&texts[first..first + 4]).unwrap();
    let crate::cli::Command::Up(up) = cli.command else { panic!("not up") };
    assert_eq!((up.launchd, up.target.as_str()), (true, "/etc/wireguard/utun7.conf"));
}

#[test]
fn a_name_that_macos_does_not_allow_makes_no_service() {
    for name in ["wg0", "utun", "utun7a", "utun-1", "Utun7"] {
        let error = service(name).err().unwrap();
        assert!(error.to_string().contains("utun7.conf"), "{error}");
        assert_eq!(weft_config::exit::Error::from(error).code(), weft_config::exit::Code::Usage);
    }
}
