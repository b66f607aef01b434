//! Whether a branch or an address of the cipher in plain Rust depends on a secret, as ctgrind finds it: under
//! valgrind the key and the plaintext are marked as uninitialised, and memcheck reports each conditional jump
//! and each address that depends on them.
//!
//! Opening has one such jump, by intention: whether the tag is right. Apart from it opening calls what
//! sealing calls.

use std::process::{Command, ExitCode};

const UNDER_VALGRIND: &str = "--under-valgrind";

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == UNDER_VALGRIND) {
        return checked::main();
    }
    let why = match Command::new("valgrind").arg("--version").output() {
        _ if !checked::IS_SUPPORTED => "client requests are written for Linux on x86_64".to_owned(),
        Ok(output) if output.status.success() => match std::env::current_exe() {
            Ok(program) => {
                let status = Command::new("valgrind")
                    .args(["--quiet", "--undef-value-errors=yes"])
                    .arg(program)
                    .arg(UNDER_VALGRIND)
                    .status();
                return match status {
                    Ok(status) if status.success() => ExitCode::SUCCESS,
                    _ => ExitCode::FAILURE,
                };
            }
            Err(error) => format!("cannot tell where this program is: {error}"),
        },
        Ok(output) => format!("valgrind does not work: {}", output.status),
        Err(error) => format!("valgrind cannot be started: {error}"),
    };
    eprintln!("NOT RUN: constant time of the cipher: {why}");
    ExitCode::SUCCESS
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod checked {
    pub(super) const IS_SUPPORTED: bool = false;

    pub(super) fn main() -> std::process::ExitCode {
        std::process::ExitCode::FAILURE
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod checked {
    use std::hint::black_box;
    use std::process::ExitCode;

    use weft_aead::{KEY_LEN, Key, NONCE_LEN};

    pub(super) const IS_SUPPORTED: bool = true;

    // Of valgrind.h and memcheck.h.
    const COUNT_ERRORS: usize = 0x1201;
    const MAKE_MEM_UNDEFINED: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16 | 1;
    const MAKE_MEM_DEFINED: usize = MAKE_MEM_UNDEFINED + 1;

    /// A client request; 0 outside valgrind.
    fn request(number: usize, address: usize, len: usize) -> usize {
        let arguments = [number, address, len, 0, 0, 0];
        let mut result = 0_usize;
        // SAFETY: outside valgrind the rotations add up to 128 bits, which changes nothing, and the exchange
        // is of a register with itself. Inside, valgrind reads the arguments and changes what it knows of
        // memory, not memory.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") &raw const arguments,
                inout("rdx") result,
            );
        }
        result
    }

    /// The provenance is exposed, so that the compiler does not keep what it knows of the bytes.
    fn mark(bytes: &mut [u8], request_number: usize) {
        request(request_number, bytes.as_mut_ptr().expose_provenance(), bytes.len());
    }

    fn errors() -> usize {
        request(COUNT_ERRORS, 0, 0)
    }

    /// What must not be: an address that depends on a secret.
    #[inline(never)]
    fn look_up(table: &[u8; 256], secret: u8) -> u8 {
        table[usize::from(black_box(secret))]
    }

    pub(super) fn main() -> ExitCode {
        let before = errors();
        for len in [0, 1, 64, 192, 193, 576, 1420, 4096] {
            let mut bytes = [7; KEY_LEN];
            mark(&mut bytes, MAKE_MEM_UNDEFINED);
            let key = Key::portable(&bytes);
            let mut data = vec![9; len];
            mark(&mut data, MAKE_MEM_UNDEFINED);
            let mut tag = black_box(key.seal(&[1; NONCE_LEN], &mut data));
            mark(&mut data, MAKE_MEM_DEFINED);
            if let Ok(tag) = &mut tag {
                mark(tag, MAKE_MEM_DEFINED);
            }
        }
        let found = errors() - before;
        let mut secret = [5];
        mark(&mut secret, MAKE_MEM_UNDEFINED);
        eprintln!("One error has to follow, of the control:");
        let table = black_box(std::array::from_fn(|i| i as u8));
        let _ = black_box(look_up(&table, secret[0]));
        let control = errors() - before - found;
        println!("branches and addresses that depend on a secret: {found}; of the control: {control}");
        if found == 0 && control == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
