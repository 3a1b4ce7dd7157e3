//! How faults arrive: as SIGBUS in the faulting thread, or as an event for a handler thread.

use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

static SIGBUS: AtomicBool = AtomicBool::new(false);

/// Whether the faulting thread serves its own fault.
pub fn is_sigbus() -> bool {
    SIGBUS.load(SeqCst)
}

/// Makes the faulting thread serve its own fault, from now on.
pub fn choose_sigbus() {
    SIGBUS.store(true, SeqCst);
}
