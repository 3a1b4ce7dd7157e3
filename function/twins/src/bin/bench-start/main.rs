//! How soon a unit has served its first packet: as another instance in a process that runs, against wasmtime alone
//! (instantiate and call), and as a new process, against a native program that does the same with packets.
//!
//! Rounds are interleaved; one in which the hypervisor steals is done again. Prints CSV: round, series, value; microseconds. Needs root for a network namespace, which ends
//! with this process.

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

/// The modules, in a directory of their own. The first unit that starts with one leaves its code in the cache.
fn built(directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    let module = directory.join(name).with_extension("wasm");
    if !module.exists() {
        let source = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(source, &module).expect("copy a function");
    }
    module
}
