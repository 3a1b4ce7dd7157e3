//! A function as WebAssembly: compiled once, checked against the ABI, instantiated in a
//! microsecond.
//!
//! [`Runtime::prepare`] gets the code and runs none of it. The unit then closes its walls.
//! [`Prepared::start`] is the first call to run the function, behind those walls.

mod cache;
mod compile;
mod error;
mod host;
mod settings;
mod wasi;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pando_abi::Descriptor;
use pando_abi::executor::{Executor, Trap};
use wasmtime::{
    Engine, InstanceAllocationStrategy, InstancePre, Linker, Memory, Module as Code,
    PoolingAllocationConfig, Store, StoreLimitsBuilder, TypedFunc,
};

pub use cache::Cache;
pub(crate) use compile::plain;
pub use compile::{Compiler, behind_walls};
pub use error::{MODULE_BYTES_MAX, ModuleError};
use host::{Host, Stopwatch, TICK, begin};
use settings::code_settings;

/// Limits of a function.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Fuel per packet, about one per instruction of WebAssembly. Fuel is deterministic, time is
    /// not.
    pub fuel_per_packet: u64,
    /// Bytes of linear memory of an instance.
    pub memory_bytes: usize,
}

impl Default for Limits {
    /// Returns the defaults. A million instructions take some 300 µs, 300 times as long as a full
    /// packet takes in the slowest of the five functions.
    fn default() -> Self {
        Limits { fuel_per_packet: 1_000_000, memory_bytes: 64 << 20 }
    }
}

/// Fuel for `_initialize`, `pando_describe` and `pando_configure`.
const START_FUEL: u64 = 20_000_000_000;
/// Processor time of a call. Fuel alone is no bound: an instruction that fills memory costs as
/// little fuel as an addition.
const CALL_TIME: Duration = Duration::from_millis(200);
/// Processor time of all calls before the first packet. A Go module initializes its runtime, and an
/// IDS reads its rules.
const START_TIME: Duration = Duration::from_secs(10);
/// Runs functions and owns the pool of their memories.
#[derive(Clone)]
pub struct Runtime {
    engine: Engine,
    limits: Limits,
}

impl Runtime {
    /// Returns a runtime with room for `instances_max` instances together.
    pub fn new(limits: Limits, instances_max: u32) -> Runtime {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(instances_max)
            .total_memories(instances_max)
            .total_tables(instances_max)
            .max_memory_size(limits.memory_bytes)
            .linear_memory_keep_resident(1 << 20);
        let mut config = code_settings();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config).expect("a fixed configuration of the engine is valid");
        let clock = engine.weak();
        // This clock ends calls that fuel does not end. It stops when the engine's last user is
        // gone.
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
        // Wait until the thread has started. Its start needs system calls that the walls may refuse
        // later.
        let _ = starts.recv() as Result<(), _>;
        Runtime { engine, limits }
    }

    /// Compiles `path` (.wasm) in this process and starts it. Only for tests and benchmarks, which
    /// trust their modules.
    pub fn load(&self, path: &Path, configuration: &[u8]) -> Result<Function, ModuleError> {
        self.prepare(path, configuration, &Compiler::Here)?.start()
    }

    /// Gets the code of `path` from `compiler`, and all system resources that its start needs. Runs
    /// none of the code.
    pub fn prepare(
        &self,
        path: &Path,
        configuration: &[u8],
        compiler: &Compiler,
    ) -> Result<Prepared, ModuleError> {
        let shown = path.display().to_string();
        let module = read(path)?;
        let code = compiler.code(&self.engine, &shown, &module)?;
        self.check_exports(&shown, &code)?;
        let mut linker = Linker::new(&self.engine);
        wasi::add_to(&mut linker);
        let import = |e: wasmtime::Error| ModuleError::Import {
            path: shown.clone(),
            reason: plain(&format!("{e:#}")),
        };
        let pre = linker.instantiate_pre(&code).map_err(import)?;
        // Make the memory image of the module's data now. Behind the walls no file can be made, not
        // even in memory.
        let image = |e: wasmtime::Error| ModuleError::NotWasm {
            path: shown.clone(),
            reason: plain(&format!("{e:#}")),
        };
        code.initialize_copy_on_write_image().map_err(image)?;
        Ok(Prepared {
            runtime: self.clone(),
            path: shown,
            pre,
            configuration: configuration.into(),
            digest: cache::digest(&[&module, configuration]),
        })
    }

    /// Compiles `path` into the cache of `compiler`. Returns the bytes of its code.
    pub fn compile_ahead(path: &Path, compiler: &Compiler) -> Result<usize, ModuleError> {
        compiler.fill(&path.display().to_string(), &read(path)?)
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

/// A compiled function that has not run.
pub struct Prepared {
    runtime: Runtime,
    path: String,
    pre: InstancePre<Host>,
    configuration: Arc<[u8]>,
    /// A digest of the module and its configuration, the same on every host.
    pub digest: u64,
}

impl Prepared {
    /// Starts the first instance, with its configuration.
    pub fn start(self) -> Result<Function, ModuleError> {
        let mut fuel = 0;
        let live = Live::start(&self, &mut fuel)?;
        Ok(Function { prepared: Arc::new(self), live, fuel })
    }
}

/// A function in an instance of its own.
pub struct Function {
    prepared: Arc<Prepared>,
    live: Live,
    /// Fuel burnt since [`Executor::take_fuel`] was last called.
    fuel: u64,
}

struct Live {
    store: Store<Host>,
    memory: Memory,
    process: TypedFunc<u32, ()>,
    descriptor: Descriptor,
}

impl Function {
    /// Starts another instance of the same function, for another unit or a pool.
    pub fn another(&self) -> Result<Function, ModuleError> {
        let mut fuel = 0;
        let live = Live::start(&self.prepared, &mut fuel)?;
        Ok(Function { prepared: self.prepared.clone(), live, fuel })
    }

    /// Takes the text that the function has printed since the last call.
    pub fn take_printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.live.store.data_mut().printed)
    }
}

impl Live {
    /// Starts an instance. Adds the burnt fuel to `fuel`, even on failure.
    fn start(prepared: &Prepared, fuel: &mut u64) -> Result<Live, ModuleError> {
        let runtime = &prepared.runtime;
        let limits = StoreLimitsBuilder::new().memory_size(runtime.limits.memory_bytes).build();
        let stopwatch = Stopwatch { limit: START_TIME, since: None };
        let mut store = Store::new(
            &runtime.engine,
            Host { limits, stopwatch, time_ns: 0, printed: Vec::new() },
        );
        store.limiter(|host| &mut host.limits);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().stopwatch.tick()));
        begin(&mut store, START_FUEL);
        let started = Live::configured(prepared, &mut store);
        *fuel += START_FUEL - store.get_fuel().expect("fuel is on");
        store.data_mut().stopwatch.limit = CALL_TIME;
        let (memory, process, descriptor) = started?;
        Ok(Live { store, memory, process, descriptor })
    }

    /// Makes all calls before the first packet.
    fn configured(
        prepared: &Prepared,
        store: &mut Store<Host>,
    ) -> Result<(Memory, TypedFunc<u32, ()>, Descriptor), ModuleError> {
        let Prepared { path, pre, configuration, .. } = prepared;
        let failed = |during| {
            move |e: wasmtime::Error| ModuleError::Start {
                path: path.to_owned(),
                during,
                trap: trap_of(&e).to_string(),
            }
        };
        let instance = pre.instantiate(&mut *store).map_err(failed("start"))?;
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut *store, "_initialize") {
            initialize.call(&mut *store, ()).map_err(failed("_initialize"))?;
        }
        let missing = |name| ModuleError::Export { path: path.to_owned(), name };
        let memory = instance.get_memory(&mut *store, "memory").ok_or(missing("memory"))?;
        let describe = instance
            .get_typed_func::<(), u32>(&mut *store, "pando_describe")
            .map_err(|_| missing("pando_describe() -> i32"))?;
        let process = instance
            .get_typed_func::<u32, ()>(&mut *store, "pando_process")
            .map_err(|_| missing("pando_process(i32)"))?;
        let offset = describe.call(&mut *store, ()).map_err(failed("pando_describe"))? as usize;
        let descriptor = Descriptor::read(memory.data(&*store), offset)
            .map_err(|source| ModuleError::Descriptor { path: path.to_owned(), source })?;
        if configuration.len() > descriptor.config_bytes {
            let (room, given) = (descriptor.config_bytes, configuration.len());
            return Err(ModuleError::ConfigurationSize { path: path.to_owned(), room, given });
        }
        if descriptor.config_bytes > 0 {
            let configure = instance
                .get_typed_func::<u32, i32>(&mut *store, "pando_configure")
                .map_err(|_| missing("pando_configure(i32) -> i32"))?;
            memory.data_mut(&mut *store)[descriptor.config_at()..][..configuration.len()]
                .copy_from_slice(configuration);
            let complaint = configure
                .call(&mut *store, configuration.len() as u32)
                .map_err(failed("pando_configure"))?;
            if complaint != 0 {
                return Err(ModuleError::Configuration { path: path.to_owned(), complaint });
            }
        }
        Ok((memory, process, descriptor))
    }
}

fn trap_of(error: &wasmtime::Error) -> Trap {
    match error.downcast_ref::<wasmtime::Trap>() {
        Some(wasmtime::Trap::OutOfFuel | wasmtime::Trap::Interrupt) => Trap::Limit,
        Some(trap) => Trap::Fault(trap.to_string()),
        None => Trap::Fault(plain(&format!("{error:#}"))),
    }
}

impl Executor for Function {
    #[inline]
    fn descriptor(&self) -> &Descriptor {
        &self.live.descriptor
    }

    #[inline]
    fn memory(&mut self) -> (&mut [u8], &Descriptor) {
        (self.live.memory.data_mut(&mut self.live.store), &self.live.descriptor)
    }

    #[inline]
    fn memory_ref(&self) -> &[u8] {
        self.live.memory.data(&self.live.store)
    }

    #[inline]
    fn process(&mut self, count: usize, shares: usize) -> Result<(), Trap> {
        let Live { store, process, .. } = &mut self.live;
        let fuel = self.prepared.runtime.limits.fuel_per_packet.saturating_mul(shares as u64);
        begin(store, fuel);
        let called = process.call(&mut *store, count as u32).map_err(|e| trap_of(&e));
        self.fuel += fuel - store.get_fuel().expect("fuel is on");
        called
    }

    #[inline]
    fn take_fuel(&mut self) -> u64 {
        std::mem::take(&mut self.fuel)
    }

    fn renew(&mut self) -> Result<(), Trap> {
        self.live =
            Live::start(&self.prepared, &mut self.fuel).map_err(|e| Trap::Fault(e.to_string()))?;
        Ok(())
    }
}
