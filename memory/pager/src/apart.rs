//! The pager's own file table, which no call of the program reaches.
//!
//! A userfaultfd ends with its last reference, and absent pages would read as zeros from then on.
//! So a thread of the pager keeps a reference in a file table that the program does not share. In
//! thread mode, every thread of the pager uses that table, with all descriptors but the pipe for
//! the next fork. In sigbus mode, the threads of the program serve their own faults with the
//! program's table. They check that a number still refers to its file, and recover a lost
//! userfaultfd.

use crate::pager::{Pager, running};
use crate::sys::Lock;
use crate::{descriptor, evict, guide, handler, identity, sys, uffd};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// Evictor, tender, prefetcher and handlers.
const THREADS: usize = 3 + HANDLERS;
/// Threads that serve faults in thread mode, one for each transfer at once.
pub const HANDLERS: usize = crate::lane::TRANSFERS;
const PIDFD_THREAD: i32 = libc::O_EXCL;

static READY: AtomicU32 = AtomicU32::new(0);
/// The threads that use the table apart. 0 = unused. The first thread owns the table.
static TIDS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];
/// The number of the userfaultfd in the table.
static KEPT: AtomicI32 = AtomicI32::new(-1);
static RECOVERING: Lock = Lock::new();

/// Starts the threads of the table apart, and closes the descriptors that the program's table does
/// not need. The process has one thread.
pub unsafe fn begin(pager: &Pager) {
    unsafe {
        TIDS.iter().for_each(|t| t.store(0, SeqCst));
        READY.store(0, SeqCst);
        sys::spawn_apart(first);
        while READY.load(SeqCst) == 0 {
            sys::futex_wait(&READY, 0, 10_000);
        }
        if handler::is_sigbus() {
            return;
        }
        if uffd::number() < 0 {
            // The program has dropped the right to handler threads, so its child serves its own
            // faults.
            identity::become_child();
            handler::install();
            pager.open_again();
            return begin(pager);
        }
        let mut from = 0;
        while let Some(fd) = descriptor::next(from) {
            if !pager.fork.is_for_children(fd as i32) && fd as i32 != identity::bell() {
                descriptor::close(fd as i32);
            }
            from = fd + 1;
        }
    }
}

/// Whether the caller uses the table apart.
pub fn is_here() -> bool {
    if TIDS[0].load(SeqCst) == 0 {
        return false;
    }
    let me = unsafe { sys!(libc::SYS_gettid) } as i32;
    TIDS.iter().any(|t| t.load(SeqCst) == me)
}

/// Enters the caller among the threads that use the table apart.
pub fn enter() {
    let me = unsafe { sys!(libc::SYS_gettid) } as i32;
    let entered = TIDS.iter().any(|t| t.compare_exchange(0, me, SeqCst, SeqCst).is_ok());
    assert!(entered, "a place for each thread");
}

/// The first thread of the table.
extern "C" fn first() -> ! {
    let pager = running();
    enter();
    unsafe {
        if handler::is_sigbus() {
            keep_only(|fd| fd == uffd::number());
        } else {
            keep_only(|fd| !pager.fork.is_for_next_child(fd));
        }
        if pager.fork.is_child() && !handler::is_sigbus() {
            pager.open_again();
        }
        if uffd::number() < 0 {
            READY.store(1, SeqCst);
            sys::futex_wake(&READY, 1);
            leave();
        }
        KEPT.store(uffd::number(), SeqCst);
        // Occupy the numbers of the standard streams, so that no message reaches another file.
        for _ in 0..3 {
            sys!(libc::SYS_fcntl, uffd::number(), libc::F_DUPFD_CLOEXEC, 0);
        }
    }
    READY.store(1, SeqCst);
    sys::futex_wake(&READY, 1);
    if handler::is_sigbus() {
        unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-keeper".as_ptr()) };
        let never = AtomicU32::new(0);
        loop {
            sys::futex_wait(&never, 0, 100_000);
        }
    }
    unsafe {
        sys::spawn(evict::tender);
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

/// Restores the userfaultfd in the program's table. Ends the program if that fails.
pub unsafe fn recover() {
    unsafe {
        RECOVERING.take();
        // Another thread may replace the new number before it is moved to a high one.
        while !uffd::is_known() {
            match from_table(sys!(libc::SYS_pidfd_open, TIDS[0].load(SeqCst), PIDFD_THREAD), KEPT.load(SeqCst)) {
                fd if fd >= 0 => uffd::set_number(descriptor::adopt(fd as i32)),
                e => sys::die(format_args!(
                    "the program has closed the pager's userfaultfd by a raw system call, and it cannot be had back (error {}; it takes Linux 6.9). The program is stopped before it reads a wrong byte",
                    -e
                )),
            }
        }
        RECOVERING.give();
    }
}

/// Forgets the threads of the parent, in a forked child.
pub fn become_child() {
    TIDS.iter().for_each(|t| t.store(0, SeqCst));
    RECOVERING.reset();
}

/// Copies a descriptor to the caller's table, from the table of the thread or process `of`, a
/// pidfd. Closes `of`.
unsafe fn from_table(of: isize, fd: i32) -> isize {
    unsafe {
        if of < 0 {
            return of;
        }
        let got = sys!(libc::SYS_pidfd_getfd, of, fd, 0);
        sys!(libc::SYS_close, of);
        got
    }
}

/// Copies a descriptor from the file table of the program's thread `tid`. Linux 6.8 has no pidfds
/// of single threads; there, the table of the process is used.
pub unsafe fn from_program(tid: i32, fd: i32) -> isize {
    unsafe {
        match sys!(libc::SYS_pidfd_open, tid, PIDFD_THREAD) {
            e if e == -(libc::EINVAL as isize) => from_table(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getpid), 0), fd),
            of => from_table(of, fd),
        }
    }
}

/// Writes a message to the program's standard error, from either file table.
pub unsafe fn write_error(text: &[u8]) {
    unsafe {
        if !is_here() {
            sys!(libc::SYS_write, 2, text.as_ptr(), text.len());
            return;
        }
        let fd = from_table(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getpid), 0), 2);
        if fd >= 0 {
            sys!(libc::SYS_write, fd, text.as_ptr(), text.len());
            sys!(libc::SYS_close, fd);
        }
    }
}
