//! The two file tables: the program's, and the pager's own, which no call of the program reaches.

use super::raw::sys;
use crate::config::TRANSFERS;
use core::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Threads that serve faults in thread mode, one for each transfer at once.
pub const HANDLERS: usize = TRANSFERS;
/// Evictor, tender, prefetcher and handlers.
const THREADS: usize = 3 + HANDLERS;
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// The threads that use the table apart. 0 = unused. The first thread owns the table.
static TIDS: [AtomicI32; THREADS] = [const { AtomicI32::new(0) }; THREADS];

/// Forgets the threads of the table: there are none, or they were the parent's.
pub fn clear() {
    TIDS.iter().for_each(|t| t.store(0, SeqCst));
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

/// Copies a descriptor to the caller's table, from the table apart.
pub unsafe fn from_apart(fd: i32) -> isize {
    unsafe { from_table(sys!(libc::SYS_pidfd_open, TIDS[0].load(SeqCst), PIDFD_THREAD), fd) }
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
            e if e == -(libc::EINVAL as isize) => from_process(fd),
            of => from_table(of, fd),
        }
    }
}

/// Copies a descriptor from the file table of the process.
pub unsafe fn from_process(fd: i32) -> isize {
    unsafe { from_table(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getpid), 0), fd) }
}
