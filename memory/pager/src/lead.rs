//! The lead among the handler threads: one of them waits for faults.

use crate::sys::Lock;
use core::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// The leader is the one handler that waits for faults. It keeps the lead while it serves a fault,
/// unless further faults arrive meanwhile. Otherwise each fault would wake two threads.
static LEAD: Lock = Lock::new();
/// Fetches for which the leader passes on the lead in advance, because faults arrived while it
/// served one.
static CROWD: AtomicI32 = AtomicI32::new(0);
const CROWD_MAX: i32 = 32;

/// The lead over the other handlers, as one of them sees it.
pub struct Lead {
    held: bool,
}

impl Lead {
    /// Returns the state of a thread that is not the leader.
    pub fn none() -> Lead {
        Lead { held: false }
    }

    /// Whether the caller is the leader.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Records that faults arrive while the leader serves one.
    pub fn crowds() {
        CROWD.store(CROWD_MAX, SeqCst);
    }

    /// Waits for the lead.
    pub fn take(&mut self) {
        if !core::mem::replace(&mut self.held, true) {
            LEAD.take();
        }
    }

    /// Passes on the lead, before the caller sleeps for long.
    pub fn pass(&mut self) {
        if core::mem::take(&mut self.held) {
            LEAD.give();
        }
    }

    /// Passes on the lead if faults are frequent, before the caller waits for a memory host.
    pub fn pass_if_crowded(&mut self) {
        if self.held && CROWD.load(SeqCst) > 0 {
            CROWD.fetch_sub(1, SeqCst);
            self.pass();
        }
    }
}

/// Frees the lead, in a forked child.
pub fn become_child() {
    LEAD.reset();
}
