//! The settings of the compiler, which the runtime must share.

use wasmtime::Config;

/// Address space of an instance: all that 32 bits can address. The processor's page tables then
/// check every access, and the compiled code checks none. Only the part in use, up to
/// [`Limits::memory_bytes`], takes memory.
const ADDRESSABLE_BYTES: u64 = 4 << 30;

/// Returns the settings that shape compiled code. The compiler and the runtime must use the same
/// settings.
pub fn code_settings() -> Config {
    let mut config = Config::new();
    config
        .memory_reservation(ADDRESSABLE_BYTES)
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(256 << 10);
    config
}
