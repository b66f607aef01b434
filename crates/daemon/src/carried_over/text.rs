//! Keys as text. A secret key is copied only into the output and out of the input.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weft_tunnel::{PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// A key that is written as base64 text.
pub(super) trait Key: FromStr {
    fn text(&self) -> Zeroizing<String>;
}

impl Key for PublicKey {
    fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(self.to_string())
    }
}

impl Key for PrivateKey {
    fn text(&self) -> Zeroizing<String> {
        self.to_base64()
    }
}

impl Key for PresharedKey {
    fn text(&self) -> Zeroizing<String> {
        self.to_base64()
    }
}

/// For `#[serde(with = "text")]`.
pub(super) fn serialize<K: Key, S: Serializer>(key: &K, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&key.text())
}

pub(super) fn deserialize<'de, K: Key, D: Deserializer<'de>>(deserializer: D) -> Result<K, D::Error> {
    deserializer.deserialize_str(Text(PhantomData))
}

struct Text<K>(PhantomData<K>);

impl<K: Key> Visitor<'_> for Text<K> {
    type Value = K;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<K, E> {
        text.parse().map_err(|_| E::custom("not a key"))
    }
}

/// For `#[serde(with = "text::option")]`.
pub(super) mod option {
    use super::{Deserialize, Deserializer, Key, Serialize, Serializer};

    struct Written<'a, K>(&'a K);

    impl<K: Key> Serialize for Written<'_, K> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            super::serialize(self.0, serializer)
        }
    }

    struct Read<K>(K);

    impl<'de, K: Key> Deserialize<'de> for Read<K> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            super::deserialize(deserializer).map(Self)
        }
    }

    pub(in crate::carried_over) fn serialize<K: Key, S: Serializer>(
        key: &Option<K>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        key.as_ref().map(Written).serialize(serializer)
    }

    pub(in crate::carried_over) fn deserialize<'de, K: Key, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<K>, D::Error> {
        Ok(Option::<Read<K>>::deserialize(deserializer)?.map(|read| read.0))
    }
}
