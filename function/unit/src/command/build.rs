//! `pando fn build`: builds a module from a directory of C or Go.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use pando_wasm::Runtime;

use super::failure::Failure;
use super::out::{Format, print_json};
use super::places::Places;

/// Arguments.
#[derive(Args)]
#[command(after_help = "Example: pando fn build hundred")]
pub struct Build {
    /// The directory with the function's source; the module is in it and has its name
    directory: PathBuf,
    /// Also compile it for this machine, as the user of the units, below --data-dir: its first unit
    /// starts sooner
    #[arg(long)]
    ahead: bool,
    #[command(flatten)]
    places: Places,
    /// Fail unless the existing module matches the source
    #[arg(long)]
    check: bool,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The headers of the SDK for C.
const SDK: [(&str, &str); 2] = [
    ("pando_nf.h", include_str!("../../../../sdk/function/c/pando_nf.h")),
    ("pando_packet.h", include_str!("../../../../sdk/function/c/pando_packet.h")),
];

impl Build {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let directory = self.directory.canonicalize().map_err(|e| {
            match Failure::of_file("build", &self.directory, &e) {
                Failure::NotFound(words) => Failure::NotFound(format!(
                    "{words}: `pando fn new {}` makes a function",
                    self.directory.display()
                )),
                other => other,
            }
        })?;
        if let (true, Some(folder)) = (directory.is_file(), directory.parent()) {
            return Err(Failure::Invalid(format!(
                "{} is a file; `pando fn build {}` builds its folder",
                self.directory.display(),
                folder.display()
            )));
        }
        let name = directory
            .file_name()
            .ok_or_else(|| Failure::Invalid("the root directory is not a function".into()))?;
        let module = directory.join(name).with_extension("wasm");
        let scratch = Scratch::new()?;
        let fresh = scratch.0.join("module.wasm");
        if directory.join("go.mod").exists() {
            build_go(&directory, &fresh)?;
        } else {
            build_c(&directory, &scratch.0, &fresh)?;
        }
        let bytes = read(&fresh)?;
        if self.check {
            let same = std::fs::read(&module).is_ok_and(|committed| committed == bytes);
            let stale = || {
                Failure::Invalid(format!(
                    "{} differs from the module that its source gives; run `pando fn build {}`",
                    module.display(),
                    directory.display()
                ))
            };
            return if same { Ok(ExitCode::SUCCESS) } else { Err(stale()) };
        }
        let other = |old: &[u8]| !old.is_empty() && !old.starts_with(b"\0asm");
        if std::fs::read(&module).is_ok_and(|old| other(&old)) {
            return Err(Failure::Conflict(format!(
                "{} is there and is no module: move it away, then build again",
                module.display()
            )));
        }
        std::fs::write(&module, &bytes).map_err(|e| Failure::of_file("write", &module, &e))?;
        let mut built = vec![(module.clone(), bytes.len())];
        if self.ahead {
            let size = Runtime::compile_ahead(&module, &self.places.compiler("default")?)?;
            built.push((self.places.data_dir.join("modules"), size));
        }
        match self.output {
            Format::Json => print_json(
                &built
                    .iter()
                    .map(|(file, bytes)| serde_json::json!({"file": file, "bytes": bytes}))
                    .collect::<Vec<_>>(),
            ),
            Format::Text => {
                built.iter().for_each(|(file, bytes)| tell!("{}: {bytes} bytes", file.display()))
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|e| Failure::Internal(format!("read {}: {e}", path.display())))
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("pando-build-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|e| Failure::Internal(format!("create {}: {e}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// 16 KiB of stack, below everything else: a function that overflows it traps instead of
/// overwriting its state.
const C_FLAGS: [&str; 14] = [
    "--target=wasm32",
    "-std=c11",
    "-O3",
    "-nostdlib",
    "-ffreestanding",
    "-fvisibility=hidden",
    "-mbulk-memory",
    "-Wall",
    "-Wextra",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
    "-Wl,--stack-first",
    "-Wl,-z,stack-size=16384",
    "-I",
];

fn build_c(directory: &Path, scratch: &Path, module: &Path) -> Result<(), Failure> {
    let listed =
        std::fs::read_dir(directory).map_err(|e| Failure::of_file("list", directory, &e))?;
    let mut sources: Vec<PathBuf> = listed
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|x| x == "c"))
        .collect();
    sources.sort();
    if sources.is_empty() {
        return Err(Failure::Invalid(format!(
            "{}: neither *.c nor go.mod: `pando fn new DIR` makes a function",
            directory.display()
        )));
    }
    for (name, text) in SDK {
        std::fs::write(scratch.join(name), text)
            .map_err(|e| Failure::Internal(format!("write the SDK: {e}")))?;
    }
    let mut clang = Command::new("clang");
    clang.args(C_FLAGS).arg(scratch).args(&sources).arg("-o").arg(module);
    finish(clang, "clang (Debian: apt-get install clang lld)")
}

fn build_go(directory: &Path, module: &Path) -> Result<(), Failure> {
    let mut go = Command::new("go");
    go.args([
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-buildmode=c-shared",
        "-ldflags=-s -w",
        "-o",
    ])
    .arg(module)
    .arg(".");
    go.current_dir(directory).env("GOOS", "wasip1").env("GOARCH", "wasm");
    finish(go, "go (https://go.dev/dl)")
}

fn finish(mut command: Command, what: &str) -> Result<(), Failure> {
    let status = command.status().map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::NotFound(format!("the PATH does not have {what}")),
        _ => Failure::Internal(format!("start {what}: {e}")),
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Invalid(format!("the source does not build ({status})")))
    }
}
