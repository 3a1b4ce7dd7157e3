//! Starts another instance in a running process.

use std::path::Path;
use std::time::{Duration, Instant};

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_wasm::{Function, Limits, Runtime};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module,
    PoolingAllocationConfig, Store,
};

use super::built;

/// Starts of each kind in a round; the figure is their median.
const STARTS: usize = 1001;
/// Functions whose configuration is one line or empty. The IDS is left out: the size of its rules
/// decides its start.
const FUNCTIONS: [(&str, &str); 4] = [
    ("nat", "address=203.0.113.7\n"),
    ("policer", "rate=90000000000\nburst=900000000\n"),
    ("balancer", "service=192.0.2.9\nservers=10.9.0.1,10.9.0.2,10.9.0.3\n"),
    ("whitelister", "inside=10.0.0.0/8\n"),
];
/// A function that also runs without its configuration.
const UNCONFIGURED: &str = "nat";

struct Start {
    name: &'static str,
    configuration: &'static str,
    /// An instance that already runs, as in a unit.
    function: Function,
    alone: (Engine, InstancePre<()>),
}

/// All functions, compiled.
pub struct Starts(Vec<Start>);

impl Starts {
    /// Returns the functions, once as in a unit and once for wasmtime alone.
    pub fn new(directory: &Path) -> Starts {
        let start = |(name, configuration): (&'static str, &'static str)| {
            let module = built(directory, name);
            let function = Runtime::new(Limits::default(), 4)
                .load(&module, configuration.as_bytes())
                .expect("load a function");
            Start { name, configuration, function, alone: alone(&module) }
        };
        Starts(FUNCTIONS.into_iter().map(start).collect())
    }

    /// Measures each way once, in microseconds.
    pub fn round(&self) -> Vec<(String, f64)> {
        let mut took = Vec::new();
        for start in &self.0 {
            let mut times: [Vec<Duration>; 3] = Default::default();
            for _ in 0..STARTS {
                times[0].push(unit(start));
                times[1].push(bare(start, true));
                if start.name == UNCONFIGURED {
                    times[2].push(bare(start, false));
                }
            }
            for (series, mut times) in
                ["unit", "instantiate + configure + call", "instantiate + call"].iter().zip(times)
            {
                times.sort();
                let median = times
                    .get(times.len() / 2)
                    .map(|t| (format!("{}: {series}", start.name), t.as_nanos() as f64 / 1e3));
                took.extend(median);
            }
        }
        took
    }
}

/// Returns wasmtime with a pool, without a unit's additions: no fuel, no deadline, no limits.
fn alone(module: &Path) -> (Engine, InstancePre<()>) {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_core_instances(4)
        .total_memories(4)
        .total_tables(4)
        .max_memory_size(64 << 20)
        .linear_memory_keep_resident(1 << 20);
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .memory_reservation(4 << 30);
    let engine = Engine::new(&config).expect("an engine");
    let code = Module::new(&engine, std::fs::read(module).expect("read a function"))
        .expect("compile a function");
    let pre = Linker::new(&engine).instantiate_pre(&code).expect("it imports nothing");
    (engine, pre)
}

/// Measures the time from the order for another instance to the verdict on its first packet.
fn unit(start: &Start) -> Duration {
    let frame = packet();
    let arrivals = [Arrival { frame: &frame, time_ns: 1, outer: false, steered: None }];
    let began = Instant::now();
    let function = start.function.another().expect("another instance");
    let mut chain =
        Chain::new(vec![Stage::new(function, Leases::new(32768..=65535))], Policy::default());
    chain.process(&arrivals);
    let (fate, _) = chain.outputs(&arrivals).next().expect("a verdict");
    let took = began.elapsed();
    assert!(matches!(fate, Fate::Passed | Fate::Dropped), "{}: {fate:?}", start.name);
    took
}

/// Measures the same with wasmtime alone. It gets a batch of one empty packet.
fn bare(start: &Start, configured: bool) -> Duration {
    let (engine, pre) = &start.alone;
    let began = Instant::now();
    let mut store = Store::new(engine, ());
    let instance = pre.instantiate(&mut store).expect("instantiate");
    if configured {
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        let describe = instance
            .get_typed_func::<(), u32>(&mut store, "pando_describe")
            .expect("pando_describe");
        let at = describe.call(&mut store, ()).expect("describe") as usize;
        let bytes = memory.data_mut(&mut store);
        let room =
            u32::from_le_bytes(bytes[at + 16..at + 20].try_into().expect("4 bytes")) as usize;
        bytes[room..room + start.configuration.len()]
            .copy_from_slice(start.configuration.as_bytes());
        let configure = instance
            .get_typed_func::<u32, i32>(&mut store, "pando_configure")
            .expect("pando_configure");
        assert_eq!(
            configure.call(&mut store, start.configuration.len() as u32).expect("configure"),
            0
        );
    }
    let process =
        instance.get_typed_func::<u32, ()>(&mut store, "pando_process").expect("pando_process");
    process.call(&mut store, 1).expect("a call");
    began.elapsed()
}

/// Returns a UDP packet of 368 bytes.
fn packet() -> Vec<u8> {
    let mut f = vec![0u8; 368];
    f[12..18].copy_from_slice(&[8, 0, 0x45, 0, 1, 98]);
    (f[22], f[23]) = (64, 17);
    f[26..38].copy_from_slice(&[10, 0, 0, 2, 192, 0, 2, 9, 4, 1, 0, 80]);
    f[38..40].copy_from_slice(&334u16.to_be_bytes());
    f
}
