//! The pager's own threads, and the file table that no call of the program reaches.
//!
//! A userfaultfd ends with its last reference, and absent pages would read as zeros from then on.
//! So a thread of the pager keeps a reference in a file table that the program does not share. In
//! thread mode, every thread of the pager uses that table, with all descriptors but the pipe for
//! the next fork. In sigbus mode, the threads of the program serve their own faults with the
//! program's table. They check that a number still refers to its file, and recover a lost
//! userfaultfd.

use crate::pager::{Pager, running};
use crate::sys::apart::{self, HANDLERS};
use crate::sys::error;
use crate::{descriptor, evict, guide, handler, identity, mode, sys, tend, uffd};
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

static READY: AtomicU32 = AtomicU32::new(0);

/// Starts the pager's own threads, apart from the program's file table as far as the mode allows.
pub unsafe fn start(pager: &Pager) {
    unsafe {
        start_apart(pager);
        if mode::is_sigbus() {
            sys::spawn(evict::evictor);
            sys::spawn(tend::tender);
        }
    }
}

/// Starts the threads of the table apart, and closes the descriptors that the program's table does
/// not need. The process has one thread.
unsafe fn start_apart(pager: &Pager) {
    unsafe {
        apart::clear();
        READY.store(0, SeqCst);
        sys::spawn_apart(first);
        while READY.load(SeqCst) == 0 {
            sys::futex_wait(&READY, 0, 10_000);
        }
        if mode::is_sigbus() {
            return;
        }
        if uffd::number() < 0 {
            // The program has dropped the right to handler threads, so its child serves its own
            // faults.
            identity::become_child();
            handler::install();
            pager.open_again();
            return start_apart(pager);
        }
        let mut from = 0;
        while let Some(fd) = descriptor::next(from) {
            let fd = fd as i32;
            let stays = [identity::bell(), error::copy()].contains(&fd);
            if !pager.fork.is_for_children(fd) && !stays {
                descriptor::close(fd);
            }
            from = fd as u32 + 1;
        }
    }
}

/// The first thread of the table.
extern "C" fn first() -> ! {
    let pager = running();
    apart::enter();
    unsafe {
        if mode::is_sigbus() {
            keep_only(|fd| fd == uffd::number());
        } else {
            keep_only(|fd| !pager.fork.is_for_next_child(fd));
        }
        if pager.fork.is_child() && !mode::is_sigbus() {
            pager.open_again();
        }
        if uffd::number() < 0 {
            READY.store(1, SeqCst);
            sys::futex_wake(&READY, 1);
            leave();
        }
        uffd::keep();
        // Occupy the numbers of the standard streams, so that no message reaches another file.
        for _ in 0..3 {
            sys!(libc::SYS_fcntl, uffd::number(), libc::F_DUPFD_CLOEXEC, 0);
        }
    }
    READY.store(1, SeqCst);
    sys::futex_wake(&READY, 1);
    if mode::is_sigbus() {
        unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-keeper".as_ptr()) };
        let never = AtomicU32::new(0);
        loop {
            sys::futex_wait(&never, 0, 100_000);
        }
    }
    unsafe {
        sys::spawn(tend::tender);
        sys::spawn(guide::prefetcher);
        for _ in 0..if pager.fork.is_child() { 2 } else { HANDLERS } {
            sys::spawn(handler::handler);
        }
    }
    evict::evictor()
}

/// Ends the calling thread.
unsafe fn leave() -> ! {
    unsafe {
        loop {
            sys!(libc::SYS_exit, 0);
        }
    }
}

/// Closes all but some of the pager's descriptors.
unsafe fn keep_only(kept: impl Fn(i32) -> bool) {
    unsafe {
        let (mut from, mut look) = (0, 0);
        while let Some(fd) = descriptor::next(look) {
            look = fd + 1;
            if kept(fd as i32) {
                if fd > from {
                    sys!(libc::SYS_close_range, from, fd - 1, 0);
                }
                from = fd + 1;
            }
        }
        sys!(libc::SYS_close_range, from, u32::MAX, 0);
    }
}
