//! How faults arrive: as SIGBUS in the faulting thread, or as an event for a handler thread. And
//! how pages change their place: the kernel moves them (Linux 6.8), or the pager copies them.

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

static COPIES: AtomicBool = AtomicBool::new(false);

/// Whether the kernel moves pages between the program and the frames.
pub fn moves() -> bool {
    !COPIES.load(SeqCst)
}

/// Copies pages from now on. Call it before the userfaultfd exists.
pub fn choose_copies() {
    COPIES.store(true, SeqCst);
}
