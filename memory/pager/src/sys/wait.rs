//! Waits, and the lock that is built on them. A thread of the pager that has waited follows the
//! program to its new user.

use super::follow::heed;
use super::raw::{futex_wake, sys};
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Waits until the word is not `seen`, a wake-up, or the timeout.
pub fn futex_wait(word: &AtomicU32, seen: u32, timeout_us: u64) {
    let t = libc::timespec {
        tv_sec: (timeout_us / 1_000_000) as i64,
        tv_nsec: (timeout_us % 1_000_000 * 1000) as i64,
    };
    unsafe {
        sys!(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            &raw const t
        )
    };
    heed();
}

/// A mutex of three states: 0 free, 1 taken, 2 taken with waiters. Its holder has all signals
/// blocked, so no handler of the program, which may touch far memory, interrupts it.
pub struct Lock(AtomicU32);

impl Lock {
    /// Returns a free lock.
    pub const fn new() -> Self {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock, and waits until it is free.
    pub fn take(&self) {
        if self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
            return;
        }
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
                return;
            }
        }
        while self.0.swap(2, SeqCst) != 0 {
            futex_wait(&self.0, 2, 100_000);
        }
    }

    /// Takes the lock if it is free.
    pub fn try_take(&self) -> bool {
        self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }

    /// Frees the lock in a forked child, which does not have the thread that held it.
    pub fn reset(&self) {
        self.0.store(0, SeqCst);
    }

    /// Frees the lock, and wakes one thread that waits for it.
    pub fn give(&self) {
        if self.0.swap(0, SeqCst) == 2 {
            futex_wake(&self.0, 1);
        }
    }
}
