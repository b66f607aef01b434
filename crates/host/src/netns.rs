//! Which network namespace this is, and which processes are in another one: /run, where interfaces are found
//! by their names, is often common to several network namespaces.

use std::fs;
use std::path::PathBuf;

/// Returns the processes among the ancestors of this process that are in another network namespace than this
/// thread, the nearest first.
pub(crate) fn ancestors_elsewhere() -> impl Iterator<Item = u32> {
    let parent = |process: &u32| parent_of(*process).filter(|parent| *parent != 0);
    std::iter::successors(parent_of(std::process::id()), parent).filter(|process| is_elsewhere(*process))
}

/// Reports whether a process is seen to be in another network namespace than this thread.
pub(crate) fn is_elsewhere(process: u32) -> bool {
    match (link_of(&process.to_string()), link_of("thread-self")) {
        (Some(theirs), Some(ours)) => theirs != ours,
        _ => false,
    }
}

fn link_of(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Returns the parent of a process (proc_pid_stat(5), field 4).
fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use weft_lab::{Namespace, here};

    use super::*;

    #[test]
    fn only_what_is_seen_to_be_elsewhere_is_elsewhere() {
        assert!(!is_elsewhere(std::process::id()));
        assert_eq!(ancestors_elsewhere().next(), None);
        // The namespace of this process cannot be read.
        assert!(!is_elsewhere(u32::MAX));
        if !here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("netns").unwrap();
        let mut child = namespace.command("sleep").arg("60").spawn().unwrap();
        namespace.run(|| {
            assert!(!is_elsewhere(child.id()));
            assert!(is_elsewhere(std::process::id()), "the process is where its first thread is");
            let parent = std::os::unix::process::parent_id();
            assert_eq!(ancestors_elsewhere().next(), Some(parent));
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
