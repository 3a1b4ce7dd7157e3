//! The memory hosts of one program: which hold a complete copy, and what happens when one is lost.
//!
//! ```text
//!              joined, new lease            every slot copied
//!   Spare ────────────────────► Rebuilding ────────────────────► Whole
//!     ▲                            │                               │
//!     └────────────────────────────┴──── a write failed on it ◄────┘
//! ```
//! A host that missed a write is never read again before it was rebuilt. These states change in the evictor's turn only,
//! as all that is written; a reader that meets a broken connection reads the other copy and reports it.
//! Forked children share them, so that a child finds its snapshot on a host that was rebuilt after the fork.

mod read;
mod rebuild;
mod silence;
mod write;

pub use write::{Wait, Writing};

use crate::config::{Config, HOSTS_MAX};
use crate::lane::Ports;
use crate::port::{Broken, Port, Shared, LONG, SHORT};
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::SeqCst};
use memory_core::wire::Hello;
use silence::Vain;

pub const SPARE: u8 = 0;
pub const REBUILDING: u8 = 1;
pub const WHOLE: u8 = 2;

/// One memory host. Memory of zeros is a spare.
pub struct Host {
    pub state: AtomicU8,
    pub lease: AtomicU64,
    /// A reader met a broken connection: prefer another until the evictor has looked.
    pub suspect: AtomicU8,
    /// Since when all that is asked of it waits in vain; 0: nothing does, or something was answered since.
    silent_since_ns: AtomicU64,
    /// When it answered last, and since when it answers steadily.
    answered_ns: AtomicU64,
    steady_ns: AtomicU64,
    /// The program stands still because this one is silent, and has said so.
    waited_for: AtomicU8,
    pub shared: Shared,
    /// Next slot to copy while rebuilding.
    pub rebuilt: AtomicU32,
}

pub struct Hosts {
    pub config: Config,
    pub all: &'static [Host; HOSTS_MAX],
    /// Spreads reads over the copies.
    turn: AtomicU32,
    /// When the write began that is under way; 0: none is.
    writing_since_ns: AtomicU64,
    /// The tender sleeps on this futex word; every wake-up adds one.
    tender: AtomicU32,
    /// Whether this process is a forked child, for messages.
    forked: AtomicBool,
}

impl Hosts {
    /// The launcher has leased from the first `copies` hosts; the others are spares.
    pub fn new(config: Config) -> Hosts {
        let all = unsafe { &*sys::reserve_shared(size_of::<[Host; HOSTS_MAX]>()).cast::<[Host; HOSTS_MAX]>() };
        for (i, host) in all.iter().enumerate() {
            host.state.store(if i < config.copies.min(config.hosts_len) { WHOLE } else { SPARE }, SeqCst);
            host.lease.store(config.hosts[i].lease, SeqCst);
        }
        Hosts {
            config,
            all,
            turn: AtomicU32::new(0),
            writing_since_ns: AtomicU64::new(0),
            tender: AtomicU32::new(0),
            forked: AtomicBool::new(false),
        }
    }

    /// Makes messages call this process a forked child.
    pub fn become_child(&self) {
        self.forked.store(true, SeqCst);
    }

    /// Wakes the tender, or makes its next sleep return at once.
    pub fn wake_tender(&self) {
        self.tender.fetch_add(1, SeqCst);
        sys::futex_wake(&self.tender, 1);
    }

    /// Returns the count of wake-ups, for [`Hosts::sleep_as_tender`].
    pub fn wakes_of_tender(&self) -> u32 {
        self.tender.load(SeqCst)
    }

    /// Sleeps for a second at most, or until a wake-up after the `seen` ones.
    pub fn sleep_as_tender(&self, seen: u32) {
        sys::futex_wait(&self.tender, seen, 1_000_000);
    }

    fn state(&self, h: usize) -> u8 {
        self.all[h].state.load(SeqCst)
    }

    pub fn whole(&self) -> usize {
        (0..self.config.hosts_len).filter(|&h| self.state(h) == WHOLE).count()
    }

    /// Hosts whose memory is mapped here, so that it counts as shared memory of this process.
    pub fn mapped(&self) -> usize {
        self.all.iter().filter(|host| host.shared.is_mapped()).count()
    }

    /// What joins a lease.
    fn hello(&self, lease: u64) -> Hello {
        Hello { lease, slots: 0, token: self.config.token, share: false, last: false }
    }

    /// Tells the hosts that this process is about to end, so that its leases end with it and not only after a while.
    pub fn part(&self) {
        for h in (0..self.config.hosts_len).filter(|&h| self.state(h) != SPARE) {
            let mut port = Port::default();
            port.patience = SHORT;
            let _ = port.open(&self.config.hosts[h], &Hello { last: true, ..self.hello(self.all[h].lease.load(SeqCst)) });
            port.close();
        }
    }

    /// Connects a lane's port to a host's lease, if it is not.
    fn port<'l>(&self, ports: &'l mut Ports, h: usize, patience_ns: u64) -> Result<&'l mut Port, Broken> {
        let (port, lease) = (&mut ports[h], self.all[h].lease.load(SeqCst));
        (port.patience, port.spares) = (patience_ns, false);
        if !port.is_open(lease) {
            port.open(&self.config.hosts[h], &self.hello(lease))?;
        }
        Ok(port)
    }

    /// Joins the leases that the launcher has opened: maps the memory of hosts on unix sockets, connects to the others. The
    /// connections stay, for a lease ends soon after its last one.
    pub unsafe fn attach(&self, ports: &mut Ports) {
        for h in 0..self.config.hosts_len {
            if self.state(h) != WHOLE {
                continue;
            }
            if self.config.hosts[h].family() != libc::AF_UNIX {
                let mut vain = Vain::default();
                while let Err(e) = self.port(ports, h, LONG) {
                    if self.is_over(&mut vain, h, e) {
                        sys::die(format_args!("memory host {} does not take this program back ({e:?})", h + 1));
                    }
                }
                self.answers(h);
                continue;
            }
            let lease = self.all[h].lease.load(SeqCst);
            ports[h].patience = self.config.patience_ns;
            match ports[h].open(&self.config.hosts[h], &Hello { share: true, ..self.hello(lease) }) {
                Ok((w, fd)) if fd >= 0 && self.all[h].shared.map(fd, w.slots) => {}
                e => sys::die(format_args!("memory host {} does not hand its memory over ({e:?})", h + 1)),
            }
        }
    }

    /// Connects to every whole copy that these ports have no connection to: a lease ends soon after its last one, also under a
    /// forked child that outlives its parent. A host that is away is met again by whoever reads; a suspect is probed.
    pub fn hold(&self, ports: &mut Ports) {
        for h in 0..self.config.hosts_len {
            if self.state(h) == WHOLE && !self.all[h].shared.is_mapped() && !self.is_suspect(h) {
                let _ = self.port(ports, h, LONG);
            }
        }
    }

    pub fn is_suspect(&self, h: usize) -> bool {
        self.all[h].suspect.load(SeqCst) != 0 && self.state(h) != SPARE
    }

    pub fn any_suspect(&self) -> bool {
        (0..self.config.hosts_len).any(|h| self.is_suspect(h))
    }
}
