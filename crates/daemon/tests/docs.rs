//! The pages that name files and functions tell the truth, and so does the source about its layers.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
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
    for name in quoted(&page).filter(|name| !name.contains('{')) {
        let Some((crate_, rest)) = name.split_once('/') else { continue };
        let base = root().join("crates").join(crate_);
        if !base.join("Cargo.toml").exists() {
            continue;
        }
        // A file of a crate is named without `src/` where that is clear.
        assert!(base.join(rest).exists() || base.join("src").join(rest).exists(), "{name} is not there");
        files += 1;
    }
    assert!(files > 10, "only {files} files were found");
}

#[test]
fn every_file_that_a_decision_names_is_there() {
    let mut files = 0;
    for page in std::fs::read_dir(root().join("docs/decisions")).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        for name in quoted(&text).filter(|name| name.starts_with("crates/") && !name.contains(['{', '*'])) {
            assert!(root().join(name).exists(), "{}: {name} is not there", page.display());
            files += 1;
        }
    }
    assert!(files > 60, "only {files} files were found");
}

#[test]
fn every_function_and_file_that_the_page_about_restarts_names_is_there() {
    let page = std::fs::read_to_string(root().join("docs/RESTART.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let (mut named, mut functions) = (0, 0);
    for name in quoted(&page) {
        if let Some(file) = name.strip_prefix("daemon/") {
            assert!(root().join("crates/daemon").join(file).exists(), "{name} is not there");
            named += 1;
        } else if let Some((_, function)) = name.split_once("::") {
            assert!(code.contains(&format!("fn {function}(")), "there is no function {name}");
            functions += 1;
        }
    }
    assert!(named >= 5 && functions >= 8, "only {named} files and {functions} functions were found");
}

/// Every Rust file below `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn nothing_below_the_configuration_reads_text() {
    let mut files = Vec::new();
    for folder in ["tunnel/src", "sched/src", "tun/src", "udp/src", "dataplane/src", "control/src"] {
        sources(&root().join("crates").join(folder), &mut files);
    }
    // The text of a key belongs to its type, and is read by the configuration alone; the kernel's release and
    // its counters are no configuration.
    files.retain(|file| {
        !["key.rs", "udp/src/kernel.rs", "tun/src/linux/dropped.rs"].iter().any(|it| file.ends_with(it))
    });
    files.retain(|file| {
        !file.ends_with("tests.rs")
            && !file.to_string_lossy().contains("src/tests/")
            && !file.to_string_lossy().contains("/linux/tests/")
    });
    assert!(files.len() > 40, "only {} files were found", files.len());
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for reading in [".parse()", ".parse::<", "from_str("] {
            assert!(!code.contains(reading), "{} reads text: {reading}", file.display());
        }
    }
}

#[test]
fn pure_crates_have_no_runtime_and_no_unsafe_code() {
    for name in ["tunnel", "sched", "endpoint", "config", "report"] {
        let folder = root().join("crates").join(name);
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(!manifest.contains("tokio"), "{name} depends on tokio");
        let library = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        assert!(library.contains("#![forbid(unsafe_code)]"), "{name} may have unsafe code");
    }
}

/// The modules of a folder, each with those of the same folder that its code names.
fn uses(source: &Path, folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    sources(folder, &mut files);
    let inside = folder.strip_prefix(source).unwrap();
    let from_the_crate: String = ["crate".to_owned()]
        .into_iter()
        .chain(inside.iter().map(|part| part.to_str().unwrap().to_owned()))
        .map(|part| part + "::")
        .collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in
        files.iter().filter(|file| !file.strip_prefix(source).unwrap().to_string_lossy().contains("test"))
    {
        let below = file.strip_prefix(folder).unwrap();
        let module = Path::new(below.iter().next().unwrap()).file_stem().unwrap().to_str().unwrap();
        let from_here = "super::".repeat(below.iter().count());
        let text = std::fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        for prefix in [&from_the_crate, &from_here] {
            let paths = code.match_indices(prefix.as_str()).filter(|(at, _)| {
                !code[..*at]
                    .ends_with(|letter: char| letter.is_alphanumeric() || [':', '_'].contains(&letter))
            });
            let names = paths.flat_map(|(at, _)| {
                let path = &code[at + prefix.len()..];
                // One module, or several between braces.
                let list = path.strip_prefix('{').map(|list| list.split('}').next().unwrap_or_default());
                let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                let names = list.unwrap_or(path).split(',').map(move |name| {
                    let name = name.trim_start();
                    name[..name.find(|letter| !is_name(letter)).unwrap_or(name.len())].to_owned()
                });
                names.take(if list.is_some() { usize::MAX } else { 1 }).collect::<Vec<_>>()
            });
            uses.entry(module.to_owned()).or_default().extend(names);
        }
    }
    // `unsupported` holds the parts of other modules that a system lacks.
    uses.retain(|module, _| !["lib", "unsupported"].contains(&module.as_str()));
    uses
}

#[test]
fn no_modules_form_a_circle() {
    let mut folders = 0;
    for crate_ in std::fs::read_dir(root().join("crates")).unwrap() {
        let source = crate_.unwrap().path().join("src");
        if !source.exists() {
            // It has benches alone.
            continue;
        }
        let mut files = Vec::new();
        sources(&source, &mut files);
        let all: BTreeSet<&Path> = files.iter().map(|file| file.parent().unwrap()).collect();
        for folder in all {
            let mut uses = uses(&source, folder);
            // Modules that use none of the rest go, until none is left, or the rest are in circles.
            loop {
                let rest: BTreeSet<String> = uses.keys().cloned().collect();
                let before = uses.len();
                uses.retain(|module, used| used.iter().any(|other| other != module && rest.contains(other)));
                if uses.len() == before {
                    break;
                }
            }
            let folder = folder.display();
            assert!(uses.is_empty(), "circles in {folder}, or what leads to them: {:?}", uses.keys());
            folders += 1;
        }
    }
    assert!(folders > 60, "only {folders} folders were found");
}

/// Whether a line of code has a block, a function, an implementation or an attribute that is unsafe.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let mut parts = code.split("unsafe").peekable();
    let mut before = parts.next().unwrap_or_default();
    parts.any(|after| {
        let begins = !before.ends_with(|letter: char| letter.is_alphanumeric() || "_`".contains(letter));
        before = after;
        begins && [" {", " fn", " impl", " extern", "("].iter().any(|what| after.starts_with(what))
    })
}

#[test]
fn every_file_with_unsafe_code_is_listed_with_its_reason() {
    let page = std::fs::read_to_string(root().join("docs/RELIABILITY.md")).unwrap();
    let section = page.split("\n## Unsafe code\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let listed: BTreeMap<&str, &str> =
        rows.flat_map(|(files, reason)| files.split("`, `").map(move |file| (file, reason))).collect();
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    // This file has the words that it looks for.
    files.retain(|file| !file.ends_with("daemon/tests/docs.rs"));
    let has_unsafe = |file: &&PathBuf| std::fs::read_to_string(file).unwrap().lines().any(is_unsafe);
    let found: BTreeSet<String> = files
        .iter()
        .filter(has_unsafe)
        .map(|file| file.strip_prefix(root().join("crates")).unwrap().to_str().unwrap().to_owned())
        .collect();
    for file in &found {
        let reason =
            listed.get(file.as_str()).unwrap_or_else(|| panic!("{file} has unsafe code and no reason"));
        assert!(reason.len() > 5, "{file} has no reason");
    }
    for file in listed.keys() {
        assert!(found.contains(*file), "{file} has no unsafe code");
    }
    assert!(found.len() > 60, "only {} files were found", found.len());
}

#[test]
fn every_test_that_holds_a_promise_is_there() {
    let page = std::fs::read_to_string(root().join("docs/RELIABILITY.md")).unwrap();
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let section =
        |name: &str| page.split(&format!("\n## {name}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
    let (mut named, mut functions) = (0, 0);
    for name in quoted(section("Promises")).filter(|name| name.contains('/')) {
        assert!(root().join("crates").join(name).exists(), "{name} is not there");
        named += 1;
    }
    let endpoint = std::fs::read_to_string(root().join("docs/ENDPOINT.md")).unwrap();
    let tests = quoted(section("Faults survived")).chain(quoted(&endpoint));
    for name in tests.filter(|name| name.len() > 20 && !name.contains('/')) {
        assert!(code.contains(&format!("fn {name}(")), "there is no test {name}");
        functions += 1;
    }
    assert!(named > 15 && functions > 60, "only {named} files and {functions} tests were found");
}

/// The pages for people.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    for folder in ["docs", "docs/decisions"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    found
}

#[test]
fn comments_and_pages_wrap_at_110_columns() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let mut long = Vec::new();
    for (file, is_page) in
        files.into_iter().map(|file| (file, false)).chain(pages().into_iter().map(|page| (page, true)))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            let words =
                line.trim_start_matches(|letter: char| letter.is_whitespace() || "/!".contains(letter));
            is_code ^= words.starts_with("```");
            // Tables, drawings and a single word, such as an address, cannot be wrapped.
            let may_be_long =
                is_code || words.starts_with('|') || !words.contains(' ') || !is_page && !is_comment(line);
            if !may_be_long && line.chars().count() > 110 {
                long.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "lines beyond 110 columns: {long:#?}");
}
