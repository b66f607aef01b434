//! Which code for ChaCha20-Poly1305 the linked program has, by its symbols.

use std::process::Command;

/// Crates that have it or call it: boringtun encrypts cookies with RustCrypto's, which has XChaCha20.
const CRATES: [&str; 8] =
    ["aws_lc_rs", "boringtun", "chacha20", "chacha20poly1305", "core", "poly1305", "ring", "weft_aead"];

/// Functions and tables of aws-lc that do not begin with its prefix.
const PRIVATE: [&str; 3] = ["aead_chacha20_poly1305", "chacha20_poly1305_", "poly1305_"];

#[test]
fn one_foreign_cipher_is_linked_and_the_real_ring_is_not() {
    let Ok(output) = Command::new("nm").args(["--demangle", env!("CARGO_BIN_EXE_weft")]).output() else {
        return weft_lab::here::not_run("there is no nm (binutils)");
    };
    let symbols = String::from_utf8_lossy(&output.stdout);
    let mut named: Vec<_> = symbols.lines().filter_map(|line| Some(line.get(19..)?.trim_start())).collect();
    assert!(named.len() > 1000, "{output:?}");
    let ring: Vec<_> = named.iter().filter(|symbol| symbol.starts_with("ring_core_")).collect();
    assert_eq!(ring, [&""; 0], "the real ring");

    named.retain(|symbol| {
        ["chacha", "poly1305"].iter().any(|part| symbol.to_ascii_lowercase().contains(part))
    });
    // Those of C and assembly have no path.
    let (of_crates, mut foreign): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|symbol| symbol.contains("::"));
    let crate_of = |symbol: &str| symbol.trim_start_matches(['<', '&']).split("::").next().map(str::to_owned);
    let others: Vec<_> = of_crates
        .into_iter()
        .filter(|symbol| !crate_of(symbol).is_some_and(|name| CRATES.contains(&name.as_str())))
        .collect();
    assert_eq!(others, [""; 0], "another crate");

    let is_of_aws_lc = |symbol: &str| {
        symbol.starts_with("aws_lc_") || PRIVATE.iter().any(|private| symbol.starts_with(private))
    };
    let others: Vec<_> = foreign.iter().filter(|symbol| !is_of_aws_lc(symbol)).collect();
    assert_eq!(others, [&""; 0], "another library");
    assert!(foreign.iter().any(|symbol| symbol.ends_with("EVP_aead_chacha20_poly1305")), "{foreign:?}");
    // A second library of the same origin has the same private names.
    let count = foreign.len();
    foreign.sort_unstable();
    foreign.dedup();
    assert_eq!(foreign.len(), count, "two libraries: {foreign:?}");
}
