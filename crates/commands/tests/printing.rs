//! Texts reach a terminal through `output.rs` and through the log alone, which escape what others sent.

use std::path::{Path, PathBuf};

/// Tools of this repository, which print what they measured themselves.
const TOOLS: [&str; 6] = ["bench", "fake-wintun", "fuzz", "lab", "micro", "ffi"];
/// Files that write to standard output or standard error, and why that is not another way for texts.
const WRITERS: [(&str, &str); 6] = [
    ("commands/src/output.rs", "the way"),
    ("daemon/src/logging.rs", "the log: its layer escapes"),
    ("commands/src/capture/unix.rs", "packets of a capture, never to a terminal"),
    ("commands/src/capture/windows.rs", "packets of a capture, never to a terminal"),
    ("proxy/src/stdio.rs", "the bytes of a connection"),
    ("confine/src/thread_guard.rs", "the name of a thread of this process"),
];
const WAYS: [&str; 6] = ["println!(", "print!(", "stdout()", "stderr()", "Stdout", "dbg!("];
/// What only asks what the stream is, or calls a writer.
const QUESTIONS: [&str; 7] = [
    "Output::stdout()",
    "is_terminal()",
    "is_hung_up(",
    "fstat(",
    ".as_fd()",
    "leaves(&io::",
    "use_stderr()",
];

#[test]
fn there_is_no_other_way_to_a_terminal() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let (mut found, mut seen) = (Vec::new(), 0);
    for entry in crates.read_dir().unwrap() {
        let folder = entry.unwrap();
        if TOOLS.iter().all(|tool| folder.file_name() != *tool) {
            for file in sources(&folder.path().join("src")) {
                let name = file.strip_prefix(&crates).unwrap().to_str().unwrap().replace('\\', "/");
                let text = std::fs::read_to_string(&file).unwrap();
                seen += 1;
                let is_known = WRITERS.iter().any(|(writer, _)| *writer == name);
                // Tests stand at the end, unless they are in another file.
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                let ways = lines.filter(|line| {
                    WAYS.iter().any(|way| line.contains(way))
                        && !QUESTIONS.iter().any(|ask| line.contains(ask))
                });
                found.extend(ways.filter(|_| !is_known).map(|line| format!("{name}: {}", line.trim())));
            }
        }
    }
    assert!(seen > 300, "{seen}");
    assert!(found.is_empty(), "print by `weft_commands::output`, or log: {found:#?}");
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let files = paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files
        .filter(|file| file.extension().is_some_and(|it| it == "rs") && !file.ends_with("tests.rs"))
        .collect()
}
