//! The settings of every interface that has settings in /etc/resolv.conf, and the file that keeps them.

use std::io;

use serde::{Deserialize, Serialize};
use weft_config::Dns;
use weft_ipc::runtime_dir::read_untrusted;

use super::super::super::DnsError;
use super::owner::Owner;
use super::place::ResolvConf;
use super::state::FileState;

/// The largest file that is read: room for a thousand interfaces with a kilobyte of name servers and domains
/// each.
const MAX_BYTES: u64 = 1 << 20;

/// The settings of one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layer {
    pub(super) interface: String,
    pub(super) settings: Dns,
    owner: Owner,
}

impl Layer {
    /// Makes a layer of this process, which lasts until the process ends.
    pub(super) fn ours(interface: &str, settings: &Dns) -> Self {
        Self { interface: interface.to_owned(), settings: settings.clone(), owner: Owner::ours() }
    }
}

/// All layers, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layers {
    layers: Vec<Layer>,
    /// Whether there was something in the place of the file before the first layer.
    #[serde(default)]
    pub(super) had_original: bool,
    /// Whether the content from before the first layer was not found any more.
    #[serde(default)]
    pub(super) is_original_lost: bool,
}

impl Layers {
    /// Reads the saved layers; `None` if none were saved.
    pub(super) fn load(of: &ResolvConf<'_>) -> Result<Option<Self>, DnsError> {
        let path = of.layers();
        let read =
            read_untrusted(&path, MAX_BYTES).map_err(|error| super::failure("read", &path, error.into()))?;
        let Some((text, _)) = read else { return Ok(None) };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| DnsError::State { path, reason: error.to_string() })
    }

    pub(super) fn save(&self, of: &ResolvConf<'_>) -> Result<(), DnsError> {
        let path = of.layers();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| super::failure("write", &path, io::Error::other(error)))?;
        FileState::file(text).put(&path).map_err(|error| super::failure("write", &path, error))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    pub(super) fn has(&self, interface: &str) -> bool {
        self.layers.iter().any(|layer| layer.interface == interface)
    }

    /// Reports whether an interface has a layer of this process, or of one that has ended.
    pub(super) fn has_ours(&self, interface: &str) -> bool {
        self.layers.iter().any(|layer| layer.interface == interface && layer.owner.is_ours_or_ended())
    }

    /// Returns the layers from the latest to the first.
    pub(super) fn top_down(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().rev()
    }

    /// Returns the layers below that of an interface, from the latest to the first; all if it has none. Those
    /// of processes that have ended do not count.
    pub(super) fn below(&self, interface: &str) -> impl Iterator<Item = &Layer> {
        let own = self.layers.iter().position(|layer| layer.interface == interface);
        let below = &self.layers[..own.unwrap_or(self.layers.len())];
        below.iter().rev().filter(|layer| layer.owner.is_alive())
    }

    /// Replaces the layer of the same interface at its position, or adds a layer on top.
    pub(super) fn put(&mut self, layer: Layer) {
        match self.layers.iter_mut().find(|other| other.interface == layer.interface) {
            Some(place) => *place = layer,
            None => self.layers.push(layer),
        }
    }

    /// Removes the layer of an interface. Returns whether there was one.
    pub(super) fn remove(&mut self, interface: &str) -> bool {
        self.layers.extract_if(.., |layer| layer.interface == interface).count() > 0
    }

    /// Removes the layers of processes that have ended, and returns the names of their interfaces.
    pub(super) fn drop_dead(&mut self) -> Vec<String> {
        let dead = self.layers.extract_if(.., |layer| !layer.owner.is_alive());
        dead.map(|layer| layer.interface).collect()
    }
}
