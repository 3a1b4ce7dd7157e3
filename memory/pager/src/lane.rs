//! Lanes: the lists, landing frames and connections of one transfer. Several transfers run at once,
//! without allocating.

use crate::config::{HOSTS_MAX, TRANSFERS};
use crate::port::Port;
use crate::queue::Queue;
use crate::sys;
use crate::transport::Watch;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use memory_core::BATCH_PAGES_MAX;

/// The first lane is the evictor's, the second the tender's.
pub const LANES: usize = 2 + TRANSFERS;
const EVICTOR: usize = 0;
const TENDER: usize = 1;
const RESERVED: u32 = 1 << EVICTOR | 1 << TENDER;

/// A lane's connections, by host.
pub type Ports = [Port; HOSTS_MAX];

/// One transfer's scratch.
pub struct Lane {
    /// The place in the list of lanes.
    pub number: usize,
    /// Pages of the transfer.
    pub pages: [u32; BATCH_PAGES_MAX],
    /// The frame of each page.
    pub frames: [u32; BATCH_PAGES_MAX],
    /// The slot of each page.
    pub slots: [u32; BATCH_PAGES_MAX],
    /// The fingerprint of each page.
    pub sums: [u64; BATCH_PAGES_MAX],
    /// The memory of each frame.
    pub memory: [*mut u8; BATCH_PAGES_MAX],
    /// Connections, by host.
    pub ports: Ports,
}

/// The lanes of a process.
pub struct Lanes {
    lanes: *mut Lane,
    taken: AtomicU32,
    /// Threads that wait for a free lane.
    pub free: Queue,
}

impl Lanes {
    /// Makes the lanes, without connections.
    pub unsafe fn new() -> Lanes {
        unsafe {
            let lanes = sys::reserve_slice::<core::mem::MaybeUninit<Lane>>(LANES)
                .as_mut_ptr()
                .cast::<Lane>();
            for i in 0..LANES {
                // The rest of a lane may be zeros.
                (&raw mut (*lanes.add(i)).number).write(i);
                (&raw mut (*lanes.add(i)).ports).write(core::array::from_fn(Port::to));
            }
            Lanes { lanes, taken: AtomicU32::new(RESERVED), free: Queue::new() }
        }
    }

    /// Has `watch` receive the waits of every port. Call it before a second thread uses a lane.
    pub unsafe fn watch(&self, watch: &'static dyn Watch) {
        unsafe {
            for i in 0..LANES {
                for port in &mut (*self.lanes.add(i)).ports {
                    port.watch = Some(watch);
                }
            }
        }
    }

    /// Returns a free lane, which the caller owns until [`Lanes::give`].
    pub fn take(&self) -> Option<&'static mut Lane> {
        let mut seen = self.taken.load(SeqCst);
        loop {
            let i = (!seen).trailing_zeros() as usize;
            if i >= LANES {
                return None;
            }
            match self.taken.compare_exchange(seen, seen | 1 << i, SeqCst, SeqCst) {
                Ok(_) => return Some(unsafe { &mut *self.lanes.add(i) }),
                Err(now) => seen = now,
            }
        }
    }

    /// Frees a lane, and wakes a thread that waits for one.
    pub fn give(&self, lane: &Lane) {
        self.taken.fetch_and(!(1 << lane.number), SeqCst);
        self.free.wake(1);
    }

    /// Returns the evictor's own lane.
    pub unsafe fn evictor(&self) -> &'static mut Lane {
        unsafe { &mut *self.lanes.add(EVICTOR) }
    }

    /// Returns the tender's own lane.
    pub unsafe fn tender(&self) -> &'static mut Lane {
        unsafe { &mut *self.lanes.add(TENDER) }
    }

    /// Drops all connections and transfers, in a forked child.
    pub unsafe fn become_child(&self) {
        unsafe {
            for i in 0..LANES {
                for port in &mut (*self.lanes.add(i)).ports {
                    port.forget();
                }
            }
            self.taken.store(RESERVED, SeqCst);
            self.free.reset();
        }
    }
}
