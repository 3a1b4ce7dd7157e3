//! The handlers that run before and after a fork, in the forking thread.

use crate::evict::{self, Evictor};
use crate::fork::ALLOWANCE;
use crate::pager::{Pager, pager};
use crate::{descriptor, guide, identity, lead, mode, stack, sys, threads, uffd};
use core::sync::atomic::AtomicU32;
use memory_core::PAGE_BYTES;
use memory_core::stats::add;

/// A child may hold at least this many pages.
const CHILD_PAGES_MIN: usize = 128;

/// Runs last of all handlers before the fork.
pub unsafe extern "C" fn prepare() {
    unsafe {
        let Some(pager) = pager() else { return };
        let f = &pager.fork;
        f.begin(sys::block_signals());
        pager.room.evictor.ring();
        f.until_parked();
        // Under the lock, because the evictor may close a shared pipe at the same time.
        loop {
            let heart = &mut *pager.lock_for_fork();
            if heart.busy() == 0 && heart.limbo() == 0 {
                if !f.is_child() {
                    heart.slots.freeze();
                    if !f.choose_pipe() {
                        heart.slots.thaw();
                    }
                }
                break;
            }
            pager.unlock_after_fork();
            // A fetch or an evicting thread had not ended yet.
            flush(pager);
            let never = AtomicU32::new(0);
            sys::futex_wait(&never, 0, 200);
        }
        pager.memory.inherit(true);
    }
}

/// Empties the second-chance list, in the thread that has connections.
fn flush(pager: &Pager) {
    if mode::is_sigbus() {
        evict::turn(Evictor::flush);
    } else {
        pager.fork.flush();
    }
}

/// Runs first of all handlers in the parent, after the fork.
pub unsafe extern "C" fn parent() {
    unsafe {
        let Some(pager) = pager() else { return };
        if !pager.fork.is_child() {
            pager.fork.record_child();
            add(&pager.stats.forks, 1);
        }
        end(pager);
    }
}

/// Runs first of all handlers in the child.
pub unsafe extern "C" fn child() {
    unsafe {
        let Some(pager) = pager() else { return };
        pager.fork.become_child();
        identity::become_child();
        become_child(
            pager,
            (pager.hosts.config.local_bytes as usize / PAGE_BYTES / ALLOWANCE).max(CHILD_PAGES_MIN),
        );
        threads::start(pager);
        end(pager);
    }
}

/// Makes a forked child's pager of its parent's, before any code of the child runs. The parent took
/// the lock before the fork.
unsafe fn become_child(pager: &Pager, limit: usize) {
    unsafe {
        // First close the descriptors of the parent: the child may have no free number before.
        if mode::is_sigbus() {
            descriptor::close(uffd::number());
        }
        sys::error::leave();
        pager.lanes.become_child();
        pager.hosts.become_child();
        sys::apart::clear();
        uffd::become_child();
        lead::become_child();
        guide::become_child();
        stack::become_child();
        // In thread mode the first thread apart opens it, for the program's table may have no room.
        if mode::is_sigbus() {
            pager.open_again();
        }
        evict::become_child();
        pager.become_child(limit);
    }
}

unsafe fn end(pager: &Pager) {
    let signals = pager.fork.signals();
    pager.memory.inherit(false);
    pager.unlock_after_fork();
    pager.fork.end();
    sys::restore_signals(if mode::is_sigbus() {
        signals & !(1 << (libc::SIGBUS - 1))
    } else {
        signals
    });
}
