//! Replays the inputs that cargo-fuzz kept, and those that found a fault: `corpus/NAME` of each target.
#![cfg(target_os = "linux")]

use std::path::Path;

use weft_fuzz::TARGETS;

#[test]
fn every_property_holds_for_every_input_that_was_kept() {
    for (name, check) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        check(&[]);
        let mut inputs = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            // The name of an input that panics stands above the panic.
            println!("{}", path.display());
            check(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no inputs");
    }
}
