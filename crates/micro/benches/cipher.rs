//! Times of ChaCha20-Poly1305 with AVX-512 and by aws-lc, in one process and in turn, so that what else the
//! machine does slows both.
//!
//! Fails where a compiler has lost the target features: where an intrinsic is a function that is called. With
//! `--check` also where AVX-512 is less than [`wanted`] times as fast as aws-lc at 1,420 bytes. That is a
//! matter of the processor and of what else it does, and no part of `scripts/test`.

use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::Instant;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use weft_aead::{KEY_LEN, Key, NONCE_LEN, TAG_LEN};

/// Bytes of the packets.
const LENGTHS: [usize; 5] = [64, 256, 576, FULL, 8192];
/// A packet of the usual MTU.
const FULL: usize = 1420;
/// Bytes between two looks at the clock, and the number of such rounds.
const BYTES: usize = 1 << 17;
const ROUNDS: usize = 301;

/// The ratio that is wanted. A probe of the same algorithm had 2.4 on Zen 5. Zen 4, which executes 512 bits
/// in two halves, has 1.55 for sealing and 1.42 for opening. Others were not measured.
fn wanted() -> f64 {
    const ZEN5: &str = "26";
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |name| {
        let line = processors.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1)).unwrap_or_default()
    };
    if value("vendor_id") == "AuthenticAMD" && value("cpu family") == ZEN5 { 1.5 } else { 1.25 }
}

/// Returns the intrinsics that are functions in this program.
fn called_intrinsics() -> Result<Vec<String>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("nm").arg(program).output().map_err(|error| format!("nm: {error}"))?;
    let symbols = String::from_utf8_lossy(&output.stdout);
    // Otherwise the names would be missing as well.
    if !symbols.contains("weft_aead") {
        return Err("nm shows no functions of the cipher".to_owned());
    }
    Ok(symbols.lines().filter(|line| line.contains("_mm512_")).map(str::to_owned).collect())
}

/// Nanoseconds for a packet.
struct Times {
    seal: f64,
    open: f64,
}

fn nonce(number: usize) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&(number as u64).to_le_bytes());
    nonce
}

fn time(packets: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    for number in 0..packets {
        work(number);
    }
    start.elapsed().as_nanos() as f64 / packets as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the medians of AVX-512 and of aws-lc.
fn measure(len: usize, ours: &Key, theirs: &LessSafeKey) -> [Times; 2] {
    let packets = BYTES / len;
    // Opening needs authentic messages: as many as there are packets, each of which a round decrypts.
    let sealed: Vec<Vec<u8>> = (0..packets)
        .map(|number| {
            let mut message = vec![7; len];
            let tag = ours.seal(&nonce(number), &mut message).unwrap_or_default();
            message.extend_from_slice(&tag);
            message
        })
        .collect();
    let mut packet = vec![7; len + TAG_LEN];
    let mut all = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        all[0].push(time(packets, |number| {
            let _ = black_box(ours.seal(&nonce(number), &mut packet[..len]));
        }));
        all[1].push(time(packets, |number| {
            let nonce = Nonce::assume_unique_for_key(nonce(number));
            let _ = black_box(theirs.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet[..len]));
        }));
        let mut messages = sealed.clone();
        all[2].push(time(packets, |number| {
            if let Some((data, tag)) = messages[number].split_last_chunk_mut() {
                let _ = black_box(ours.open(&nonce(number), data, tag));
            }
        }));
        let mut messages = sealed.clone();
        all[3].push(time(packets, |number| {
            let nonce = Nonce::assume_unique_for_key(nonce(number));
            let _ = black_box(theirs.open_in_place(nonce, Aad::empty(), &mut messages[number]).is_ok());
        }));
    }
    let [seal, other_seal, open, other_open] = all.map(median);
    [Times { seal, open }, Times { seal: other_seal, open: other_open }]
}

fn main() -> ExitCode {
    let bytes = [7; KEY_LEN];
    let Some(ours) = Key::avx512(&bytes) else {
        eprintln!("NOT RUN: the times of AVX-512: this processor lacks it");
        return ExitCode::SUCCESS;
    };
    let Ok(theirs) = UnboundKey::new(&CHACHA20_POLY1305, &bytes).map(LessSafeKey::new) else {
        eprintln!("aws-lc refuses a key");
        return ExitCode::FAILURE;
    };
    match called_intrinsics() {
        Ok(called) if called.is_empty() => {}
        Ok(called) => {
            eprintln!("functions of AVX-512 lack its target features, and call:\n{}", called.join("\n"));
            return ExitCode::FAILURE;
        }
        Err(reason) => eprintln!("NOT RUN: whether intrinsics are called: {reason}"),
    }
    let wanted = wanted();
    println!("{:>6}  {:>16}  {:>16}  {:>13}", "bytes", "avx512ifma, ns", "aws-lc, ns", "ratio");
    println!("{:>6}  {:>16}  {:>16}  {:>13}", "", "seal, open", "seal, open", "seal, open");
    let is_checked = std::env::args().any(|argument| argument == "--check");
    let mut is_fast = true;
    for len in LENGTHS {
        let [ours, theirs] = measure(len, &ours, &theirs);
        let ratios = [theirs.seal / ours.seal, theirs.open / ours.open];
        println!(
            "{len:>6}  {:>7.0}, {:>7.0}  {:>7.0}, {:>7.0}  {:>6.2}, {:>5.2}",
            ours.seal, ours.open, theirs.seal, theirs.open, ratios[0], ratios[1]
        );
        is_fast &= len != FULL || ratios.iter().all(|ratio| *ratio >= wanted);
    }
    if is_checked && !is_fast {
        eprintln!("at {FULL} bytes AVX-512 is less than {wanted} times as fast as aws-lc");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
