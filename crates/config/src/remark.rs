//! Comments that are nearly settings of weft: without a word they would be comments, and a kill switch would
//! be missing.

use super::keys::{InterfaceKey, InterfaceSetting, PeerKey, PeerSetting};
use super::lexer::Line;
use super::problem::{Notice, Problem};
use super::reports::Reports;
use super::suggest::closest;

/// Reports the comment of a line if it has a setting of weft and is none as it is written. If it names weft
/// too it can hardly mean anything else, and is an error, unless a second `#` switches it off.
pub(super) fn look_at(line: Line<'_>, reports: &mut Reports) {
    let Some((code, comment)) = line.whole().split_once('#').filter(|_| line.weft_setting().is_none()) else {
        return;
    };
    // The `#` of a command is the shell's.
    let key = line.key_value().and_then(|(key, _)| InterfaceKey::find(key));
    if let Some(InterfaceKey::PreUp | InterfaceKey::PostUp | InterfaceKey::PreDown | InterfaceKey::PostDown) =
        key
    {
        return;
    }
    let text = comment.trim_start_matches(|c: char| c == '#' || c.is_whitespace());
    let is_alone = code.trim().is_empty();
    let is_double = comment[..comment.len() - text.len()].contains('#');
    let behind_mark = text.split_at_checked(4).filter(|(mark, _)| mark.eq_ignore_ascii_case("weft"));
    let Some((written, _)) = behind_mark.map_or(text, |(_, rest)| rest).split_once('=') else { return };
    let settings = InterfaceSetting::ALL.iter().map(|key| key.text());
    let mut settings = settings.chain(PeerSetting::ALL.iter().map(|key| key.text()));
    if behind_mark.is_some() {
        let written = written.trim_matches(|c: char| !c.is_alphanumeric());
        match closest(written, settings) {
            Some(key) if is_alone && is_double => {
                reports.warning(line.number, key, Notice::SettingInComment { key });
            }
            Some(key) => reports.error(line.number, Some(key), Problem::SettingInComment { key }),
            None => {}
        }
    } else if let Some(key) = settings.find(|key| key.eq_ignore_ascii_case(written.trim()))
        && is_alone
        // A key of wg(8) that is switched off.
        && PeerKey::find(key).is_none()
    {
        reports.warning(line.number, key, Notice::SettingInComment { key });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn a_comment_that_is_nearly_a_setting_is_told() {
        let error = |key| format!("error wg0.conf:3: {key}: this comment is no setting");
        let warning = |key| format!("warning wg0.conf:3: {key}: this comment is no setting");
        for (line, expected) in [
            ("# weft: KillSwitch = on", String::new()),
            ("# weft : KillSwitch = on", error("KillSwitch")),
            ("# weft KillSwitch = on", error("KillSwitch")),
            ("#weft;killswich=on", error("KillSwitch")),
            ("MTU = 1400 # weft: KillSwitch = on", error("KillSwitch")),
            ("MTU = 1400 # weft RateToPeer = 5Mbit", error("RateToPeer")),
            ("## weft: KillSwitch = on", warning("KillSwitch")),
            ("# # weft: MssClamp = on", warning("MssClamp")),
            ("# KillSwitch = on", warning("KillSwitch")),
            ("#mssclamp=on", warning("MssClamp")),
            // What is prose, a command, or a key of wg(8) that is switched off.
            ("# weft is nice", String::new()),
            ("# weft serves this one = well", String::new()),
            ("# A KillSwitch = safety", String::new()),
            ("MTU = 1400 # KillSwitch = on", String::new()),
            ("PostUp = true # weft: KillSwitch = on", String::new()),
            ("# Endpoint = vpn.example.com:51820", String::new()),
            ("# w\u{e9}ft: KillSwitch = on", String::new()),
        ] {
            let text =
                format!("[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{line}\n");
            let said = match crate::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()) {
                Ok(parsed) => parsed.warnings.iter().map(|warning| format!("warning {warning}")).collect(),
                Err(errors) => format!("error {errors}"),
            };
            assert!(said.starts_with(&expected) && said.is_empty() == expected.is_empty(), "{line}: {said}");
        }
    }

    #[test]
    fn a_setting_without_its_mark_is_told_how_to_write_it() {
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        for (interface, peer, at, says) in [
            ("KillSwitch = on", "", "3: KillSwitch: ", "write `# weft: KillSwitch = on`"),
            ("metrics=127.0.0.1:9586", "", "3: metrics: ", "write `# weft: Metrics = 127.0.0.1:9586`"),
            ("MssClam = on", "", "3: MssClam: ", "write `# weft: MssClamp = on`"),
            ("PeerDNS =", "", "3: PeerDNS: ", "write `# weft: PeerDNS = …`"),
            ("Expires = never", "", "3: Expires: ", "write `# weft: Expires = never` in [Peer]"),
            ("", "RateToPeer = 5Mbit", "6: RateToPeer: ", "write `# weft: RateToPeer = 5Mbit`"),
            ("", "MssClamp = on", "6: MssClamp: ", "write `# weft: MssClamp = on` in [Interface]"),
            ("", "friendly_name = phone", "6: ", "write `# friendly_name = phone`"),
        ] {
            let text =
                format!("[Interface]\nPrivateKey = {key}\n{interface}\n[Peer]\nPublicKey = {key}\n{peer}\n");
            let errors = crate::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap_err();
            let error = errors.errors[0].to_string();
            assert!(error.starts_with(&format!("wg0.conf:{at}")) && error.ends_with(says), "{error}");
        }
    }
}
