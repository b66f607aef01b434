//! The pages that name files and functions tell the truth.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The parts of `text` between single backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_step_of_the_packet_path_is_where_the_page_says() {
    let page = std::fs::read_to_string(root().join("docs/PACKET_PATH.md")).unwrap();
    let mut steps = 0;
    for step in quoted(&page).filter(|step| step.starts_with("crates/")) {
        let (file, function) =
            step.split_once("::").map_or((step, None), |(file, function)| (file, Some(function)));
        let source =
            std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        if let Some(function) = function {
            let defined =
                source.contains(&format!("fn {function}(")) || source.contains(&format!("fn {function}<"));
            assert!(defined, "{file} has no function {function}");
        }
        steps += 1;
    }
    assert!(steps > 30, "only {steps} steps were found");
}

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let page = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let mut files = 0;
    for name in quoted(&page).filter(|name| {
        ["tunnel/", "tun/", "daemon/"].iter().any(|crate_| name.starts_with(crate_)) && !name.contains('{')
    }) {
        // A file of a crate is named without `src/` where that is clear.
        let (crate_, rest) = name.split_once('/').unwrap();
        let base = root().join("crates").join(crate_);
        assert!(base.join(rest).exists() || base.join("src").join(rest).exists(), "{name} is not there");
        files += 1;
    }
    assert!(files > 10, "only {files} files were found");
}
