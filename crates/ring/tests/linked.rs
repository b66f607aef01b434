//! The patch, by the lock file: one that does not fit is dropped by Cargo with a warning alone.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The packages of the lock file: name, and where they come from. Those of the workspace come from nowhere.
fn packages() -> Vec<(String, Option<String>)> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let field = |package: &str, name: &str| {
        let value = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        Some(value.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]\n").skip(1);
    packages.map(|package| (field(package, "name").unwrap(), field(package, "source"))).collect()
}

#[test]
fn the_real_ring_is_not_linked() {
    let packages = packages();
    assert!(packages.len() > 200, "only {} packages", packages.len());
    let rings: Vec<_> = packages.iter().filter(|(name, _)| name == "ring").collect();
    assert_eq!(rings, [&("ring".to_owned(), None)], "cargo update -p ring");
}

/// The other workspaces of the repository have boringtun too, and their own patches.
#[test]
fn each_workspace_with_boringtun_has_the_patch() {
    for file in ["Cargo.toml", "fuzz/Cargo.toml", "scripts/test"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains("[patch.crates-io]\nring = { path = \""), "{file}");
    }
}
