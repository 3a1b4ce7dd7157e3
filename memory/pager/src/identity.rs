//! The user and the groups of the pager's own threads. The C library changes both only for threads
//! that it started itself. Without this module, the pager's threads would stay root in a program
//! that dropped root.
//!
//! A thread of the pager follows at its next wait. A wait lasts some milliseconds at most, or the
//! bell ends it.

use crate::pager::pager;
use crate::sys::{Lock, follow};
use crate::{descriptor, sys};
use core::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// A thread that has not followed within this time never will.
const WITHIN_NS: u64 = 5_000_000_000;

/// Allows one change at a time.
static TURN: Lock = Lock::new();
/// Descriptor + 1 of the bell: an eventfd that ends the handlers' wait for faults. 0 = there are no
/// handlers.
static BELL: AtomicI32 = AtomicI32::new(0);

/// Forgets the parent's threads, in a forked child, before it starts its own.
pub fn become_child() {
    follow::become_child();
    TURN.reset();
}

/// Makes the bell, before the handlers start.
pub unsafe fn hang_bell() {
    unsafe {
        let fd = sys!(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd >= 0 {
            BELL.store(descriptor::adopt(fd as i32) + 1, SeqCst);
        }
    }
}

/// Returns the bell's descriptor, for a poll. Negative = there is no bell.
pub fn bell() -> i32 {
    BELL.load(SeqCst) - 1
}

/// Spreads the new identity of the calling thread, and waits until each of the pager's threads has
/// it. Ends the program if one of them would stay root.
pub unsafe fn spread() {
    unsafe {
        let Some(pager) = pager() else { return };
        let signals = sys::block_signals();
        TURN.take();
        let change = follow::change();
        pager.room.evictor.ring();
        pager.hosts.tender.ring();
        ring(1);
        let begun = sys::now_ns();
        follow::until_followed(change, |word, seen| {
            if sys::now_ns() - begun > WITHIN_NS {
                sys::die(format_args!(
                    "a thread of the pager does not follow the program to its new user. The \
                     program is stopped"
                ));
            }
            sys::futex_wait(word, seen, 10_000);
        });
        hush();
        TURN.give();
        sys::restore_signals(signals);
    }
}

unsafe fn ring(times: u64) {
    unsafe {
        if descriptor::is_ours(bell()) {
            sys!(libc::SYS_write, bell(), &raw const times, 8);
        }
    }
}

unsafe fn hush() {
    unsafe {
        let mut times = 0u64;
        if descriptor::is_ours(bell()) {
            sys!(libc::SYS_read, bell(), &raw mut times, 8);
        }
    }
}
