//! The memory hosts of one program, and the state of the copy on each.
//!
//! ```text
//!              joined, new lease            every slot copied
//!   Spare ────────────────────► Rebuilding ────────────────────► Whole
//!     ▲                            │                               │
//!     └────────────────────────────┴──── a write failed on it ◄────┘
//! ```
//! A host that missed a write is not read again until it is rebuilt. States change, and pages are
//! written, in the evictor's turn only. A reader that meets a broken connection marks the host as a
//! suspect and reads the other copy. Forked children share the states with their parent, so a child
//! finds its snapshot on a host that was rebuilt after the fork.

mod join;
mod read;
mod rebuild;
mod silence;
pub mod write;

use crate::config::{Config, HOSTS_MAX};
use crate::lane::Ports;
use crate::port::Port;
use crate::queue::Alarm;
use crate::shared::Shared;
use crate::sys;
use crate::transport::Broken;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};
use memory_core::wire::Hello;

/// The host has no copy.
pub const SPARE: u8 = 0;
/// A copy is being made on the host.
pub const REBUILDING: u8 = 1;
/// The host has every page.
pub const WHOLE: u8 = 2;

/// One memory host. Memory of zeros is a spare.
pub struct Host {
    /// `SPARE`, `REBUILDING` or `WHOLE`.
    pub state: AtomicU8,
    /// The lease of this program.
    pub lease: AtomicU64,
    /// A reader met a broken connection. Readers prefer other hosts until the tender has probed
    /// this one.
    pub suspect: AtomicU8,
    /// When requests to this host began to wait without an answer. 0 = it answered the last one.
    silent_since_ns: AtomicU64,
    /// When it answered last, and when its current run of steady answers began.
    answered_ns: AtomicU64,
    steady_ns: AtomicU64,
    /// The user has a message that the program is blocked on this host.
    waited_for: AtomicU8,
    /// The mapped memory, if the host is on this machine.
    pub shared: Shared,
    /// Next slot to copy while rebuilding.
    pub rebuilt: AtomicU32,
}

impl Host {
    fn state(&self) -> u8 {
        self.state.load(SeqCst)
    }

    /// Whether the host waits for a probe.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(SeqCst) != 0 && self.state() != SPARE
    }

    /// Starts to rebuild a spare. In the evictor's turn.
    pub fn admit(&self, lease: u64) {
        self.lease.store(lease, SeqCst);
        self.rebuilt.store(0, SeqCst);
        self.suspect.store(0, SeqCst);
        self.state.store(REBUILDING, SeqCst);
    }
}

/// The memory hosts of this process.
pub struct Hosts {
    /// The configuration.
    pub config: Config,
    /// The hosts, shared with forked children.
    pub all: &'static [Host; HOSTS_MAX],
    /// Spreads reads over the copies.
    turn: AtomicU32,
    /// When the current write began. 0 = no write is under way.
    writing_since_ns: AtomicU64,
    /// Wakes the tender.
    pub tender: Alarm,
    /// Whether this process is a forked child, for messages.
    forked: AtomicBool,
}

impl Hosts {
    /// Starts with a whole copy on each of the first `copies` hosts, which the launcher leased
    /// from. The other hosts are spares.
    pub fn new(config: Config) -> Hosts {
        let all = unsafe {
            &*sys::reserve_shared(size_of::<[Host; HOSTS_MAX]>()).cast::<[Host; HOSTS_MAX]>()
        };
        for (i, host) in all.iter().enumerate() {
            host.state
                .store(if i < config.copies.min(config.hosts_len) { WHOLE } else { SPARE }, SeqCst);
            host.lease.store(config.hosts[i].lease, SeqCst);
        }
        Hosts {
            config,
            all,
            turn: AtomicU32::new(0),
            writing_since_ns: AtomicU64::new(0),
            tender: Alarm::new(),
            forked: AtomicBool::new(false),
        }
    }

    /// Makes messages call this process a forked child.
    pub fn become_child(&self) {
        self.forked.store(true, SeqCst);
    }

    /// Returns how many whole copies there are.
    pub fn whole(&self) -> usize {
        (0..self.config.hosts_len).filter(|&h| self.all[h].state() == WHOLE).count()
    }

    /// Returns how many hosts have their memory mapped here. It counts as shared memory of this
    /// process.
    pub fn mapped(&self) -> usize {
        self.all.iter().filter(|host| host.shared.is_mapped()).count()
    }

    /// Returns the greeting that joins a lease.
    fn hello(&self, lease: u64) -> Hello {
        Hello { lease, slots: 0, token: self.config.token, share: false, last: false }
    }

    /// Connects a lane's port to a host's lease, unless it is connected.
    fn port<'l>(
        &self,
        ports: &'l mut Ports,
        h: usize,
        patience_ns: u64,
    ) -> Result<&'l mut Port, Broken> {
        let (port, lease) = (&mut ports[h], self.all[h].lease.load(SeqCst));
        (port.patience, port.spares) = (patience_ns, false);
        if !port.is_open(lease) {
            port.open(&self.config.hosts[h], &self.hello(lease))?;
        }
        Ok(port)
    }
}
