//! Measures the time until a unit has served its first packet. It compares another instance in a
//! running process with wasmtime alone (instantiate and call). It compares a new process with a
//! native program that handles packets the same way.
//!
//! Rounds are interleaved; a round with stolen processor time is repeated. Prints CSV: round,
//! series, value in microseconds. Needs root for a network namespace, which ends with this process.

mod instance;
mod process;

use pando_twins::steal::undisturbed;

const ROUNDS: usize = 9;

fn main() {
    let directory = std::env::temp_dir().join(format!("bench-start-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    let instances = instance::Starts::new(&directory);
    let mut processes = process::Starts::enter(&directory);
    println!("round,series,value");
    for round in 0..ROUNDS {
        for (series, us) in undisturbed(|| [instances.round(), processes.round()].concat()) {
            println!("{round},{series},{us:.3}");
        }
    }
    let _ = std::fs::remove_dir_all(directory);
}

/// Returns a copy of a module in its own directory. The first unit that starts with it caches its
/// code.
fn built(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    let module = directory.join(name).with_extension("wasm");
    if !module.exists() {
        let source = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(source, &module).expect("copy a function");
    }
    module
}
