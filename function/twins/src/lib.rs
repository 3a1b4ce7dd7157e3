//! The five functions compiled for the host. A twin runs the same C code without WebAssembly. A
//! difference in output is a defect; a difference in time is the cost of the sandbox.

pub mod steal;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_abi::Descriptor;
use pando_abi::executor::{Executor, Trap};

/// The symbols of one twin.
struct Symbols {
    name: &'static str,
    describe: unsafe extern "C" fn() -> u32,
    configure: unsafe extern "C" fn(u32) -> i32,
    process: unsafe extern "C" fn(u32),
    area: *mut u8,
    area_bytes: *const u32,
    /// The C code has static memory, so only one twin exists at a time.
    user: Mutex<()>,
}

// SAFETY: the pointers are to statics; `user` admits one user at a time.
unsafe impl Sync for Symbols {}

macro_rules! twin {
    (
        $name:literal, $describe:ident, $configure:ident, $process:ident, $area:ident, $bytes:ident
    ) => {{
        unsafe extern "C" {
            fn $describe() -> u32;
            fn $configure(length: u32) -> i32;
            fn $process(count: u32);
            static mut $area: u8;
            static $bytes: u32;
        }
        Symbols {
            name: $name,
            describe: $describe,
            configure: $configure,
            process: $process,
            area: &raw mut $area,
            area_bytes: &raw const $bytes,
            user: Mutex::new(()),
        }
    }};
}

static TWINS: [Symbols; 5] = [
    twin!(
        "nat",
        nat_pando_describe,
        nat_pando_configure,
        nat_pando_process,
        nat_pando_area,
        nat_pando_area_bytes
    ),
    twin!(
        "policer",
        policer_pando_describe,
        policer_pando_configure,
        policer_pando_process,
        policer_pando_area,
        policer_pando_area_bytes
    ),
    twin!(
        "ids",
        ids_pando_describe,
        ids_pando_configure,
        ids_pando_process,
        ids_pando_area,
        ids_pando_area_bytes
    ),
    twin!(
        "balancer",
        balancer_pando_describe,
        balancer_pando_configure,
        balancer_pando_process,
        balancer_pando_area,
        balancer_pando_area_bytes
    ),
    twin!(
        "whitelister",
        whitelister_pando_describe,
        whitelister_pando_configure,
        whitelister_pando_process,
        whitelister_pando_area,
        whitelister_pando_area_bytes
    ),
];

/// A function that runs natively on the host.
pub struct Twin {
    symbols: &'static Symbols,
    descriptor: Descriptor,
    _only: MutexGuard<'static, ()>,
}

impl Twin {
    /// Returns the twin of a function, with its configuration. Waits while another twin is in use.
    /// Panics for an unknown name or a refused configuration, because it serves tests and
    /// benchmarks.
    pub fn new(name: &str, configuration: &[u8]) -> Twin {
        let symbols =
            TWINS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no twin of {name}"));
        let only = symbols.user.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: we are the only user; the area has the number of bytes that the C code declares.
        let descriptor = unsafe {
            let offset = (symbols.describe)();
            let area = std::slice::from_raw_parts(symbols.area, *symbols.area_bytes as usize);
            Descriptor::read(area, offset as usize).expect("a twin's descriptor")
        };
        let mut twin = Twin { symbols, descriptor, _only: only };
        let at = twin.descriptor.config_at();
        twin.area()[at..at + configuration.len()].copy_from_slice(configuration);
        // SAFETY: the configuration lies where the function looks for it.
        let complaint = unsafe { (twin.symbols.configure)(configuration.len() as u32) };
        assert_eq!(complaint, 0, "the twin of {name} refuses its configuration");
        twin
    }

    fn area(&mut self) -> &mut [u8] {
        // SAFETY: as in new; the borrow of self keeps the C from running meanwhile.
        unsafe {
            std::slice::from_raw_parts_mut(self.symbols.area, *self.symbols.area_bytes as usize)
        }
    }
}

impl Executor for Twin {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory(&mut self) -> (&mut [u8], &Descriptor) {
        // SAFETY: as in area; the descriptor is a field of its own.
        let area = unsafe {
            std::slice::from_raw_parts_mut(self.symbols.area, *self.symbols.area_bytes as usize)
        };
        (area, &self.descriptor)
    }

    fn memory_ref(&self) -> &[u8] {
        // SAFETY: as in area.
        unsafe { std::slice::from_raw_parts(self.symbols.area, *self.symbols.area_bytes as usize) }
    }

    fn process(&mut self, count: usize, _shares: usize) -> Result<(), Trap> {
        // SAFETY: the batch lies where the function looks for it.
        unsafe { (self.symbols.process)(count as u32) };
        Ok(())
    }

    /// The host's processor counts no fuel.
    fn take_fuel(&mut self) -> u64 {
        0
    }

    fn renew(&mut self) -> Result<(), Trap> {
        Ok(())
    }
}
