//! The settings of an interface and of a peer: their names for people, and how they are compared and changed.
//! `PeerSettings` itself is a type of the tunnel, which needs all of them.

use std::num::NonZeroU16;

use crate::Expiry;
use serde::{Deserialize, Serialize};
use weft_tunnel::{PeerLimits, PeerSettings, PresharedKey, PrivateKey};

/// Declares the change of a struct of settings: one line per setting, with its name for people. A setting
/// without a line does not compile.
macro_rules! change {
    ($(#[$doc:meta])* $change:ident of $settings:ident { $($setting:ident: $value:ty = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $change {
            $(#[doc = concat!("The new ", $name, ".")] pub $setting: Option<$value>,)+
        }

        impl From<$settings> for $change {
            /// Returns the change that sets every setting.
            fn from($settings { $($setting,)+ }: $settings) -> Self {
                Self { $($setting: Some($setting),)+ }
            }
        }

        impl $change {
            /// Returns the change without the settings that have the new value already.
            #[must_use]
            pub fn without(self, present: &$settings) -> Self {
                Self { $($setting: self.$setting.filter(|new| *new != present.$setting),)+ }
            }

            /// Returns the settings with nothing set but this change.
            #[must_use]
            pub fn applied(&self) -> $settings {
                let mut settings = $settings::default();
                self.apply(&mut settings);
                settings
            }

            /// Changes the settings.
            pub fn apply(&self, settings: &mut $settings) {
                $(if let Some(new) = &self.$setting {
                    settings.$setting.clone_from(new);
                })+
            }

            /// Returns the names of the settings that change.
            pub fn names(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$setting.as_ref().map(|_| $name),)+].into_iter().flatten()
            }
        }
    };
}

change! {
    /// A change of the settings of a peer. A field that is `None` changes nothing.
    PeerSettingsChange of PeerSettings {
        preshared_key: Option<PresharedKey> = "preshared key",
        persistent_keepalive: Option<NonZeroU16> = "keepalive",
        limits: PeerLimits = "rate limits",
    }
}

/// The settings of an interface that wg(8) knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// The private key, which is the identity of this end; without one, the interface does nothing.
    pub private_key: Option<PrivateKey>,
    /// The UDP port; 0: the system chooses it.
    pub listen_port: u16,
    /// The mark of outgoing packets (SO_MARK); 0: none.
    pub fw_mark: u32,
}

change! {
    /// A change of the settings of an interface. A field that is `None` changes nothing.
    InterfaceSettingsChange of InterfaceSettings {
        private_key: Option<PrivateKey> = "private key",
        listen_port: u16 = "port",
        fw_mark: u32 = "mark",
    }
}

impl PeerSettingsChange {
    /// Returns the change for a client of wg(8) that replaces a peer: settings that it does not give are
    /// removed, except those that it cannot express.
    #[must_use]
    pub fn replacing(self) -> Self {
        Self {
            preshared_key: Some(self.preshared_key.flatten()),
            persistent_keepalive: Some(self.persistent_keepalive.flatten()),
            limits: self.limits,
        }
    }
}

/// The settings of a peer that matter to reports, and not to the tunnel. No client can change them at run
/// time: they are those of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportSettings {
    /// The display name, from the comment `# friendly_name = …`, which dashboards read.
    pub friendly_name: Option<String>,
    /// Whether the peer is missed when it is silent, from `# weft: Expected`; `None`: it depends on its other
    /// settings.
    pub expected: Option<bool>,
    /// When the peer ends, from `# weft: Expires`.
    pub expires: Option<Expiry>,
}

impl ReportSettings {
    /// Returns the settings of a peer that has this name and nothing else.
    pub fn named(name: &str) -> Self {
        Self { friendly_name: Some(name.to_owned()), ..Self::default() }
    }
}

change! {
    /// A change of what reports say of a peer. A field that is `None` changes nothing.
    ReportSettingsChange of ReportSettings {
        friendly_name: Option<String> = "friendly name",
        expected: Option<bool> = "expectation",
        expires: Option<Expiry> = "expiry",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Config, ConfigErrors, parse};

    fn read(peer: &str) -> Result<Config, ConfigErrors> {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n[Peer]\n\
             PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n{peer}\n"
        );
        parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).map(|parsed| parsed.config)
    }

    #[test]
    fn a_peer_is_expected_as_the_file_says() {
        for (line, expected) in [
            ("", None),
            ("# weft: Expected = on", Some(true)),
            ("#weft: expected=OFF", Some(false)),
            ("# weft: Expected = on\n# weft: Expected = off", Some(false)),
        ] {
            assert_eq!(read(line).unwrap().peers[0].report.expected, expected, "{line}");
        }
        for wrong in ["# weft: Expected = yes", "# weft: Expected =", "# weft: Expect = on", "Expected = on"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
