//! The part of WASI (preview 1) that a Go runtime needs. None of it reaches outside of the
//! instance. The clock never advances, random numbers are fixed, and printed text is kept for the
//! function's log.

use wasmtime::{Caller, Extern, Linker};

use crate::host::Host;

const MODULE: &str = "wasi_snapshot_preview1";
/// Errno: a bad descriptor.
const BADF: i32 = 8;
const FAULT: i32 = 21;
/// Maximum bytes that a function may print before the unit reads them.
const PRINTED_BYTES_MAX: usize = 64 << 10;

fn write(caller: &mut Caller<'_, Host>, at: i32, bytes: &[u8]) -> i32 {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return FAULT };
    if memory.write(caller, at as u32 as usize, bytes).is_ok() { 0 } else { FAULT }
}

fn fd_write(mut caller: Caller<'_, Host>, fd: i32, vectors: i32, count: i32, written: i32) -> i32 {
    if fd != 1 && fd != 2 {
        return BADF;
    }
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return FAULT };
    let mut total = 0u32;
    for n in 0..count.clamp(0, 64) as usize {
        let (data, host) = memory.data_and_store_mut(&mut caller);
        let at = vectors as u32 as usize + 8 * n;
        let Some(pair) = data.get(at..at + 8) else { return FAULT };
        let start = u32::from_le_bytes(pair[..4].try_into().expect("4 bytes")) as usize;
        let length = u32::from_le_bytes(pair[4..].try_into().expect("4 bytes"));
        let Some(text) = data.get(start..start.saturating_add(length as usize)) else {
            return FAULT;
        };
        let room = PRINTED_BYTES_MAX.saturating_sub(host.printed.len());
        host.printed.extend_from_slice(&text[..text.len().min(room)]);
        total = total.saturating_add(length);
    }
    write(&mut caller, written, &total.to_le_bytes())
}

/// Returns the same random numbers everywhere, so that a recovered unit computes the same results
/// as the lost one.
fn random_get(mut caller: Caller<'_, Host>, at: i32, length: i32) -> i32 {
    let bytes: Vec<u8> = (0..length.clamp(0, 4096) as u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    write(&mut caller, at, &bytes)
}

fn clock_time_get(mut caller: Caller<'_, Host>, _id: i32, _precision: i64, at: i32) -> i32 {
    // Go's runtime treats a clock at zero as broken.
    let time_ns = caller.data().time_ns.max(1);
    write(&mut caller, at, &time_ns.to_le_bytes())
}

/// Returns two counts of zero: there are no arguments and no environment.
fn sizes_get(mut caller: Caller<'_, Host>, count: i32, bytes: i32) -> i32 {
    write(&mut caller, count, &[0; 4]) | write(&mut caller, bytes, &[0; 4])
}

pub(crate) fn add_to(linker: &mut Linker<Host>) {
    let added = (|| {
        linker.func_wrap(MODULE, "fd_write", fd_write)?;
        linker.func_wrap(MODULE, "random_get", random_get)?;
        linker.func_wrap(MODULE, "clock_time_get", clock_time_get)?;
        linker.func_wrap(MODULE, "args_sizes_get", sizes_get)?;
        linker.func_wrap(MODULE, "environ_sizes_get", sizes_get)?;
        linker.func_wrap(MODULE, "args_get", |_: i32, _: i32| 0i32)?;
        linker.func_wrap(MODULE, "environ_get", |_: i32, _: i32| 0i32)?;
        linker.func_wrap(MODULE, "fd_fdstat_get", |_: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_fdstat_set_flags", |_: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_prestat_get", |_: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_prestat_dir_name", |_: i32, _: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_close", |_: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_read", |_: i32, _: i32, _: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "fd_seek", |_: i32, _: i64, _: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "poll_oneoff", |_: i32, _: i32, _: i32, _: i32| BADF)?;
        linker.func_wrap(MODULE, "sched_yield", || 0i32)?;
        linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
            Err(wasmtime::Error::msg(format!("the function ended its program with code {code}")))
        })?;
        Ok::<_, wasmtime::Error>(())
    })();
    added.expect("each name is added once");
}
