//! A function as WebAssembly: compiled once, checked against the ABI, instantiated in a microsecond.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Memory, Module as Code, PoolingAllocationConfig, Store, StoreLimits,
    StoreLimitsBuilder, TypedFunc, UpdateDeadline,
};

use crate::abi::{Descriptor, DescriptorError};
use crate::executor::{Executor, Trap};
use crate::wasi;

/// What one call of a function may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Fuel per packet: about one per instruction of WebAssembly. Deterministic, unlike time.
    pub fuel_per_packet: u64,
    /// Linear memory of an instance.
    pub memory_bytes: usize,
}

impl Default for Limits {
    /// A million instructions are some 300 µs: 300 times what the slowest of the five functions needs for a full packet.
    fn default() -> Self {
        Limits { fuel_per_packet: 1_000_000, memory_bytes: 64 << 20 }
    }
}

/// Address space of an instance: all that 32 bits can name, so that the processor's page tables check every access and the
/// compiled code checks none. Only what the function uses of it, up to [`Limits::memory_bytes`], is memory.
const ADDRESSABLE_BYTES: u64 = 4 << 30;
/// Fuel for `_initialize`, `pando_describe` and `pando_configure`.
const START_FUEL: u64 = 20_000_000_000;
/// Processor time of a call, whatever its fuel: an instruction that fills memory costs as little fuel as one that adds.
const CALL_TIME: Duration = Duration::from_millis(200);
/// Processor time of all calls before the first packet: a Go module initialises its runtime, an IDS reads its rules.
const START_TIME: Duration = Duration::from_secs(10);
/// How often the time of a long call is looked at.
const TICK: Duration = Duration::from_millis(10);

/// The largest module: ten times what Go makes of a function. A compiler needs some fifty times a module's size.
pub const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Why a file does not become a function.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Not readable.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Larger than [`MODULE_BYTES_MAX`].
    #[error("{path} has more than {} MiB, which no function needs: is it built without debug information?", MODULE_BYTES_MAX >> 20)]
    TooLarge {
        /// The file.
        path: String,
    },
    /// Not WebAssembly, or WebAssembly that does not validate.
    #[error("{path} is not a WebAssembly module: {reason}. `pando fn build DIR` makes one")]
    NotWasm {
        /// The file.
        path: String,
        /// The compiler's words.
        reason: String,
    },
    /// It wants something that units do not offer.
    #[error("{path} imports what a unit does not offer: {reason}")]
    Import {
        /// The file.
        path: String,
        /// The linker's words.
        reason: String,
    },
    /// It lacks a part of the contract.
    #[error("{path} does not export {name}: is it built with the SDK (PANDO_FUNCTION in pando_nf.h)?")]
    Export {
        /// The file.
        path: String,
        /// What is missing.
        name: &'static str,
    },
    /// It describes itself in a way that cannot be.
    #[error("{path}: {source}")]
    Descriptor {
        /// The file.
        path: String,
        /// What is wrong.
        source: DescriptorError,
    },
    /// It traps before it saw a packet.
    #[error("{path}: {during}: {trap}")]
    Start {
        /// The file.
        path: String,
        /// Which call.
        during: &'static str,
        /// What happened.
        trap: String,
    },
    /// It does not take its configuration.
    #[error(
        "{path} refuses its configuration with complaint {complaint}: settings are given as --set KEY=VALUE. docs/guides/network-function.md lists those of Pando's own functions; in another, see what its configure() returns {complaint} for"
    )]
    Configuration {
        /// The file.
        path: String,
        /// Its number.
        complaint: i32,
    },
    /// More configuration than it has room for.
    #[error("{path} has room for {room} bytes of configuration, {given} are given")]
    ConfigurationSize {
        /// The file.
        path: String,
        /// Its room.
        room: usize,
        /// What was given.
        given: usize,
    },
}

/// Compiles functions and owns the pool of their memories.
#[derive(Clone)]
pub struct Runtime {
    engine: Engine,
    limits: Limits,
}

impl Runtime {
    /// A runtime whose instances together stay below `instances_max`.
    pub fn new(limits: Limits, instances_max: u32) -> Runtime {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(instances_max)
            .total_memories(instances_max)
            .total_tables(instances_max)
            .max_memory_size(limits.memory_bytes)
            .linear_memory_keep_resident(1 << 20);
        let mut config = Config::new();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            .memory_reservation(ADDRESSABLE_BYTES)
            .consume_fuel(true)
            .epoch_interruption(true)
            .max_wasm_stack(256 << 10);
        let engine = Engine::new(&config).expect("a fixed configuration of the engine is valid");
        let clock = engine.weak();
        // The clock that ends calls which fuel does not: it stops when the last user of the engine has gone.
        let (started, starts) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("epoch".into())
            .spawn(move || {
                drop(started);
                while let Some(engine) = clock.upgrade() {
                    engine.increment_epoch();
                    drop(engine);
                    std::thread::sleep(TICK);
                }
            })
            .expect("start the engine's clock");
        // It asks the kernel for what a thread needs, which the walls that may come next do not let through.
        let _ = starts.recv() as Result<(), _>;
        Runtime { engine, limits }
    }

    /// Loads `path` (.wasm), or what was compiled from it ahead of time, and gives it its configuration.
    pub fn load(&self, path: &Path, configuration: &[u8]) -> Result<Function, ModuleError> {
        let shown = path.display().to_string();
        let wasm = read(path)?;
        let code = self.compile(path, &wasm).map_err(|e| ModuleError::NotWasm { path: shown.clone(), reason: format!("{e:#}") })?;
        self.check_exports(&shown, &code)?;
        let mut linker = Linker::new(&self.engine);
        wasi::add_to(&mut linker);
        let instance = linker.instantiate_pre(&code).map_err(|e| ModuleError::Import { path: shown.clone(), reason: format!("{e:#}") })?;
        Function::start(self.clone(), shown, instance, configuration.into())
    }

    /// Code that was compiled from the same bytes before lies beside the module: `nat.wasm` → `nat.cwasm`.
    fn compile(&self, path: &Path, wasm: &[u8]) -> wasmtime::Result<Code> {
        if !wasm.starts_with(b"\0asm") {
            return Err(wasmtime::format_err!("it does not begin like one"));
        }
        let ahead = path.with_extension("cwasm");
        let newer = |a: &Path, b: &Path| Some(a.metadata().ok()?.modified().ok()? >= b.metadata().ok()?.modified().ok()?);
        if newer(&ahead, path) == Some(true) {
            // SAFETY: the file is the output of this engine's `serialize`; wasmtime refuses that of another version or
            // configuration. Whoever may write beside the module may as well replace the module.
            if let Ok(code) = unsafe { Code::deserialize_file(&self.engine, &ahead) } {
                return Ok(code);
            }
        }
        Code::from_binary(&self.engine, wasm)
    }

    /// Compiles `path` ahead of time, beside it; returns the bytes that were written.
    pub fn compile_ahead(&self, path: &Path) -> Result<usize, ModuleError> {
        let shown = path.display().to_string();
        let wasm = read(path)?;
        let reason = |e: wasmtime::Error| ModuleError::NotWasm { path: shown.clone(), reason: format!("{e:#}") };
        let code = Code::from_binary(&self.engine, &wasm).and_then(|c| c.serialize()).map_err(reason)?;
        let ahead = path.with_extension("cwasm");
        std::fs::write(&ahead, &code).map_err(|source| ModuleError::Read { path: ahead.display().to_string(), source })?;
        Ok(code.len())
    }

    fn check_exports(&self, path: &str, code: &Code) -> Result<(), ModuleError> {
        for name in ["memory", "pando_describe", "pando_process"] {
            if code.get_export(name).is_none() {
                return Err(ModuleError::Export { path: path.to_owned(), name });
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let shown = || path.display().to_string();
    let mut wasm = Vec::new();
    let file = std::fs::File::open(path);
    let bytes = file.and_then(|file| file.take(MODULE_BYTES_MAX + 1).read_to_end(&mut wasm));
    match bytes.map_err(|source| ModuleError::Read { path: shown(), source })? as u64 {
        bytes if bytes > MODULE_BYTES_MAX => Err(ModuleError::TooLarge { path: shown() }),
        _ => Ok(wasm),
    }
}

/// What an instance's host functions may touch.
pub(crate) struct Host {
    limits: StoreLimits,
    stopwatch: Stopwatch,
    /// The time of the packet at work: a function has no other clock.
    pub time_ns: u64,
    /// What the function printed, up to a limit.
    pub printed: Vec<u8>,
}

/// The processor time of the call at work: on a busy machine a thread waits for its turn, which is not the function's doing.
struct Stopwatch {
    limit: Duration,
    /// What the thread had used at the first tick of the call. Nearly all calls end before one, and ask no clock.
    since: Option<Duration>,
}

impl Stopwatch {
    /// Looks at the thread's time, on which the call runs: whether it goes on, and until which tick.
    fn tick(&mut self) -> UpdateDeadline {
        let now = processor_time();
        let left = self.limit.saturating_sub(now - *self.since.get_or_insert(now));
        if left.is_zero() {
            return UpdateDeadline::Interrupt;
        }
        UpdateDeadline::Continue(left.as_nanos().div_ceil(TICK.as_nanos()) as u64)
    }
}

/// What this thread has run for.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec; a thread always has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Before a call: begins its time and its fuel.
fn begin(store: &mut Store<Host>, fuel: u64) {
    store.data_mut().stopwatch.since = None;
    store.set_epoch_deadline(1);
    store.set_fuel(fuel).expect("fuel is on");
}

/// A function in an instance of its own.
pub struct Function {
    runtime: Runtime,
    path: String,
    pre: InstancePre<Host>,
    configuration: Arc<[u8]>,
    live: Live,
}

struct Live {
    store: Store<Host>,
    memory: Memory,
    process: TypedFunc<u32, ()>,
    descriptor: Descriptor,
}

impl Function {
    fn start(runtime: Runtime, path: String, pre: InstancePre<Host>, configuration: Arc<[u8]>) -> Result<Function, ModuleError> {
        let live = Live::start(&runtime, &path, &pre, &configuration)?;
        Ok(Function { runtime, path, pre, configuration, live })
    }

    /// Another instance of the same function: for another unit, or a pool.
    pub fn another(&self) -> Result<Function, ModuleError> {
        Function::start(self.runtime.clone(), self.path.clone(), self.pre.clone(), self.configuration.clone())
    }

    /// Takes what the function has printed since the last time.
    pub fn take_printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.live.store.data_mut().printed)
    }
}

impl Live {
    fn start(runtime: &Runtime, path: &str, pre: &InstancePre<Host>, configuration: &[u8]) -> Result<Live, ModuleError> {
        let limits = StoreLimitsBuilder::new().memory_size(runtime.limits.memory_bytes).build();
        let stopwatch = Stopwatch { limit: START_TIME, since: None };
        let mut store = Store::new(&runtime.engine, Host { limits, stopwatch, time_ns: 0, printed: Vec::new() });
        store.limiter(|host| &mut host.limits);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().stopwatch.tick()));
        begin(&mut store, START_FUEL);
        let failed = |during| move |e: wasmtime::Error| ModuleError::Start { path: path.to_owned(), during, trap: trap_of(&e).to_string() };
        let instance = pre.instantiate(&mut store).map_err(failed("start"))?;
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut store, "_initialize") {
            initialize.call(&mut store, ()).map_err(failed("_initialize"))?;
        }
        let missing = |name| ModuleError::Export { path: path.to_owned(), name };
        let memory = instance.get_memory(&mut store, "memory").ok_or(missing("memory"))?;
        let describe = instance.get_typed_func::<(), u32>(&mut store, "pando_describe").map_err(|_| missing("pando_describe() -> i32"))?;
        let process = instance.get_typed_func::<u32, ()>(&mut store, "pando_process").map_err(|_| missing("pando_process(i32)"))?;
        let offset = describe.call(&mut store, ()).map_err(failed("pando_describe"))? as usize;
        let descriptor =
            Descriptor::read(memory.data(&store), offset).map_err(|source| ModuleError::Descriptor { path: path.to_owned(), source })?;
        if configuration.len() > descriptor.config_bytes {
            let (room, given) = (descriptor.config_bytes, configuration.len());
            return Err(ModuleError::ConfigurationSize { path: path.to_owned(), room, given });
        }
        if descriptor.config_bytes > 0 {
            let configure =
                instance.get_typed_func::<u32, i32>(&mut store, "pando_configure").map_err(|_| missing("pando_configure(i32) -> i32"))?;
            memory.data_mut(&mut store)[descriptor.config..][..configuration.len()].copy_from_slice(configuration);
            let complaint = configure.call(&mut store, configuration.len() as u32).map_err(failed("pando_configure"))?;
            if complaint != 0 {
                return Err(ModuleError::Configuration { path: path.to_owned(), complaint });
            }
        }
        store.data_mut().stopwatch.limit = CALL_TIME;
        Ok(Live { store, memory, process, descriptor })
    }
}

fn trap_of(error: &wasmtime::Error) -> Trap {
    match error.downcast_ref::<wasmtime::Trap>() {
        Some(wasmtime::Trap::OutOfFuel | wasmtime::Trap::Interrupt) => Trap::Limit,
        Some(trap) => Trap::Fault(trap.to_string()),
        None => Trap::Fault(format!("{error:#}")),
    }
}

impl Executor for Function {
    fn descriptor(&self) -> &Descriptor {
        &self.live.descriptor
    }

    fn memory(&mut self) -> (&mut [u8], &Descriptor) {
        (self.live.memory.data_mut(&mut self.live.store), &self.live.descriptor)
    }

    fn memory_ref(&self) -> &[u8] {
        self.live.memory.data(&self.live.store)
    }

    fn process(&mut self, count: usize, shares: usize) -> Result<u64, Trap> {
        let Live { store, process, .. } = &mut self.live;
        let fuel = self.runtime.limits.fuel_per_packet.saturating_mul(shares as u64);
        begin(store, fuel);
        process.call(&mut *store, count as u32).map_err(|e| trap_of(&e))?;
        Ok(fuel - store.get_fuel().expect("fuel is on"))
    }

    fn renew(&mut self) -> Result<(), Trap> {
        self.live = Live::start(&self.runtime, &self.path, &self.pre, &self.configuration).map_err(|e| Trap::Fault(e.to_string()))?;
        Ok(())
    }
}
