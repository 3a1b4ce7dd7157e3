//! The compiler: from WebAssembly to code of this machine, in a sandboxed process.
//!
//! A compiler reads a tenant's input. It therefore runs as the tenant's user, without files,
//! devices or other processes, and with limits on memory and time. Its process receives the module
//! by a pipe, returns the code by another and ends. It is in the control group of the unit that
//! starts it. It never runs a function.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use pando_walls::sandbox;
use wasmtime::{Engine, Module as Code};

use super::cache::Cache;
use super::error::ModuleError;
use super::settings::code_settings;

/// The most functions of a module; the pool of instances limits them as well. A module built by Go
/// has some 2,000.
const FUNCTIONS_MAX: u32 = 32_768;
/// Entries of every other section. A module of Go has 20,000 to 31,000 data segments.
const ENTRIES_MAX: u32 = 131_072;
/// The most exports. The contract needs four, and wasm-ld adds a dozen.
const EXPORTS_MAX: u32 = 1_024;
/// Memory of the compiler's process. A module built by Go takes some 250 MiB.
const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Processor time of the compiler's process. A module built by Go takes some 3 s.
const SECONDS_MAX: u64 = 30;
/// The longest code that a compiler may return. Code is some five times as large as its module.
const CODE_BYTES_MAX: u64 = 256 << 20;
/// The longest reason that a compiler may return.
const REASON_BYTES_MAX: usize = 1024;

/// The source of code.
pub enum Compiler {
    /// This process. For tests and benchmarks, with modules they trust.
    Here,
    /// A sandboxed process, or a cache of the code from such processes.
    Apart {
        /// The tenant of the module.
        tenant: String,
        /// Code that was compiled before.
        cache: Option<Cache>,
    },
}

impl Compiler {
    /// Returns the code of `wasm`, which came from `path`.
    pub(super) fn code(
        &self,
        engine: &Engine,
        path: &str,
        wasm: &[u8],
    ) -> Result<Code, ModuleError> {
        let not_wasm =
            |reason: String| ModuleError::NotWasm { path: path.to_owned(), reason: plain(&reason) };
        check(wasm).map_err(|refusal| refusal.of(path))?;
        let Compiler::Apart { tenant, cache } = self else {
            return Code::from_binary(engine, wasm).map_err(|e| not_wasm(format!("{e:#}")));
        };
        if let Some(file) = cache.as_ref().and_then(|cache| cache.find(wasm)) {
            // SAFETY: only this user can write to the cache. This program stores only a compiler's
            // output for a module of this digest. wasmtime refuses code of another version or
            // configuration.
            if let Ok(code) = unsafe { Code::deserialize_open_file(engine, file) } {
                return Ok(code);
            }
        }
        let bytes = apart(path, tenant, wasm)?;
        // If storing fails, the next start compiles again.
        if let Some(e) = cache.as_ref().and_then(|cache| cache.put(wasm, &bytes).err()) {
            pando_walls::say!("the code of {path} is not kept: {e}");
        }
        // SAFETY: the bytes are a compiler's output. If the module broke out of the compiler, they
        // are the tenant's own code. This process calls it only inside the sandbox of the same
        // tenant.
        unsafe { Code::deserialize(engine, bytes) }.map_err(|e| not_wasm(format!("{e:#}")))
    }

    /// Compiles `wasm` and stores the code in the cache; returns the length of the code.
    pub(super) fn fill(&self, path: &str, wasm: &[u8]) -> Result<usize, ModuleError> {
        let Compiler::Apart { tenant, cache: Some(cache) } = self else { return Ok(0) };
        check(wasm).map_err(|refusal| refusal.of(path))?;
        let code = apart(path, tenant, wasm)?;
        cache
            .put(wasm, &code)
            .map_err(|source| ModuleError::Cache { path: path.to_owned(), source })?;
        Ok(code.len())
    }
}

/// Returns text from a module, or about it, with control characters replaced by spaces. They could
/// move a terminal's cursor or begin a line.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Compiles in a process of its own.
fn apart(path: &str, tenant: &str, wasm: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let failed = |source: io::Error| ModuleError::Compiler { path: path.to_owned(), source };
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando-unit").args(["compile", "--tenant", tenant]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    // The compiler reads its whole input before it writes. If it ends early, its exit code has the
    // reason.
    let _ = child.stdin.take().expect("it is piped").write_all(wasm);
    let mut said = Vec::new();
    let read =
        child.stdout.take().expect("it is piped").take(CODE_BYTES_MAX + 1).read_to_end(&mut said);
    if read.is_err() || said.len() as u64 > CODE_BYTES_MAX {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    match status.code() {
        Some(0) if said.len() as u64 <= CODE_BYTES_MAX => Ok(said),
        Some(0) => {
            Err(too_much(path, format!("its code has more than {} MiB", CODE_BYTES_MAX >> 20)))
        }
        Some(INVALID) => {
            said.truncate(REASON_BYTES_MAX);
            Err(ModuleError::NotWasm {
                path: path.to_owned(),
                reason: plain(&String::from_utf8_lossy(&said)),
            })
        }
        Some(WALLS) => Err(failed(io::Error::other(plain(&String::from_utf8_lossy(&said))))),
        _ => Err(ended(path, status)),
    }
}

fn too_much(path: &str, reason: String) -> ModuleError {
    ModuleError::TooMuch { path: path.to_owned(), reason }
}

fn ended(path: &str, status: ExitStatus) -> ModuleError {
    match status.signal() {
        Some(libc::SIGXCPU) => too_much(path, format!("its compiler ran for {SECONDS_MAX} s")),
        Some(libc::SIGABRT) => {
            too_much(path, format!("its compiler needs more than {} MiB", MEMORY_BYTES_MAX >> 20))
        }
        Some(libc::SIGKILL) => too_much(
            path,
            "the kernel ended its compiler: has the unit enough memory (--unit-memory-mib)?".into(),
        ),
        _ => too_much(path, format!("its compiler ended with {status}")),
    }
}

/// Exit codes of a compiler's process.
const INVALID: i32 = 3;
const WALLS: i32 = 4;

/// Runs the compiler's process. Standard input is the module. Standard output gets the code, or the
/// reason for the exit code.
pub fn behind_walls(tenant: &str) -> u8 {
    let (code, said) = match bounds().and_then(|()| sandbox::enter(tenant, None)) {
        Err(e) => (WALLS, format!("{e}").into_bytes()),
        Ok(()) => match translated() {
            Ok(code) => (0, code),
            Err(reason) => (INVALID, reason.into_bytes()),
        },
    };
    let written = io::stdout().write_all(&said).and_then(|()| io::stdout().flush());
    if written.is_ok() { code as u8 } else { 1 }
}

fn translated() -> Result<Vec<u8>, String> {
    let mut wasm = Vec::new();
    io::stdin().read_to_end(&mut wasm).map_err(|e| format!("read the module: {e}"))?;
    let engine = Engine::new(&code_settings()).map_err(|e| format!("{e:#}"))?;
    engine.precompile_module(&wasm).map_err(|e| format!("{e:#}"))
}

/// Limits this process. It ends when it exceeds a limit, or with its parent process.
fn bounds() -> io::Result<()> {
    let limits = [(libc::RLIMIT_AS, MEMORY_BYTES_MAX), (libc::RLIMIT_CPU, SECONDS_MAX)];
    for (resource, most) in limits {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most + 1 };
        // SAFETY: the limit lives during the call.
        if unsafe { libc::setrlimit(resource, &limit) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Ok(())
}

/// The reason why a module is not compiled.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotWasm(&'static str),
    TooMuch(String),
}

impl Refusal {
    fn of(self, path: &str) -> ModuleError {
        match self {
            Refusal::NotWasm(reason) => {
                ModuleError::NotWasm { path: path.to_owned(), reason: reason.into() }
            }
            Refusal::TooMuch(reason) => too_much(path, reason),
        }
    }
}

/// Checks the lengths of a module's sections, which cost the compiler more than the bytes do.
fn check(wasm: &[u8]) -> Result<(), Refusal> {
    const FUNCTIONS: u8 = 3;
    const EXPORTS: u8 = 7;
    const CUSTOM: u8 = 0;
    const START: u8 = 8;
    let mut rest = wasm
        .strip_prefix(b"\0asm\x01\0\0\0")
        .ok_or(Refusal::NotWasm("it does not begin like one"))?;
    while let Some((&section, after)) = rest.split_first() {
        let cut = Refusal::NotWasm("a section is cut off");
        let Some((bytes, body)) = number(after) else { return Err(cut) };
        let Some((body, next)) = body.split_at_checked(bytes as usize) else { return Err(cut) };
        rest = next;
        if matches!(section, CUSTOM | START) {
            continue;
        }
        let (entries, _) = number(body).ok_or(Refusal::NotWasm("a section has no length"))?;
        let (most, what) = match section {
            FUNCTIONS | 10 => (FUNCTIONS_MAX, "functions"),
            EXPORTS => (EXPORTS_MAX, "exports"),
            _ => (ENTRIES_MAX, "entries in a section"),
        };
        if entries > most {
            return Err(Refusal::TooMuch(format!(
                "it has {entries} {what}, at most {most} are compiled"
            )));
        }
    }
    Ok(())
}

/// Reads a number in LEB128 of at most 32 bits; returns it with the rest.
fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut value = 0u64;
    for (n, &byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte < 0x80 {
            return Some((u32::try_from(value).ok()?, &bytes[n + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn section(id: u8, count: u32) -> Vec<u8> {
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend([
            id,
            5,
            count as u8 & 0x7f | 0x80,
            (count >> 7) as u8 & 0x7f | 0x80,
            (count >> 14) as u8 & 0x7f | 0x80,
        ]);
        module.extend([(count >> 21) as u8 & 0x7f | 0x80, (count >> 28) as u8]);
        module
    }

    #[test]
    fn sections_have_bounds() {
        for (id, most) in
            [(3, FUNCTIONS_MAX), (7, EXPORTS_MAX), (2, ENTRIES_MAX), (11, ENTRIES_MAX)]
        {
            assert_eq!(check(&section(id, most)), Ok(()));
            let Err(Refusal::TooMuch(reason)) = check(&section(id, most + 1)) else {
                panic!("section {id} is not refused")
            };
            assert!(reason.contains(&format!("it has {}", most + 1)), "{reason}");
        }
        assert_eq!(check(&section(0, u32::MAX)), Ok(()), "a custom section has no entries");
        assert_eq!(
            check(b"\0asm\x01\0\0\0\x03\xff"),
            Err(Refusal::NotWasm("a section is cut off"))
        );
    }

    proptest! {
        #[test]
        fn no_module_panics(tail in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = check(&[&b"\0asm\x01\0\0\0"[..], &tail].concat());
        }
    }
}
