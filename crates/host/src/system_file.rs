//! Files of the system that other programs write, such as those of name servers: a device or a file without
//! end in their place fills no memory, and a FIFO keeps nothing waiting for long.

use std::io;
use std::path::Path;

use weft_config::{MAX_BYTES, read_named};

pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    Ok(read_named(path, MAX_BYTES)?.0.to_vec())
}

pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn files_about_names_are_read_with_a_bound() {
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut directories, mut files) = (vec![source.join("dns"), source.join("resolve")], Vec::new());
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path: PathBuf = entry.unwrap().path();
                if path.is_dir() { &mut directories } else { &mut files }.push(path);
            }
        }
        files.retain(|file| !file.to_str().unwrap().contains("tests"));
        assert!(files.len() > 20, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let is_unbound = |line: &&str| {
                // The kernel bounds what is in /proc.
                ["fs::read(", "fs::read_to_string("].iter().any(|read| line.contains(read))
                    && !line.contains("\"/proc/")
            };
            assert_eq!(code.lines().find(is_unbound), None, "{}", file.display());
        }
    }
}
