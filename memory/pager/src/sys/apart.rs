//! The two file tables: the program's, and the pager's own, which no call of the program reaches.

use super::raw::sys;
use crate::config::TRANSFERS;
use crate::descriptor;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

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
            e if e == -(libc::EINVAL as isize) => {
                from_table(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getpid), 0), fd)
            }
            of => from_table(of, fd),
        }
    }
}

/// The copy of standard error, and the file that standard error was at the start.
static ERROR: AtomicI32 = AtomicI32::new(-1);
static ERROR_FILE: AtomicU64 = AtomicU64::new(UNKNOWN);
const STANDARD_ERROR: i32 = 2;
/// The program has not reached [`keep_error`].
const UNKNOWN: u64 = 1;

/// Keeps a copy of standard error: the program may close number 2 and open a file of its own there.
/// Before any code of the program runs.
pub unsafe fn keep_error() {
    unsafe {
        ERROR_FILE.store(descriptor::file(STANDARD_ERROR), SeqCst);
        let copy = sys!(libc::SYS_fcntl, STANDARD_ERROR, libc::F_DUPFD_CLOEXEC, 0);
        if copy >= 0 {
            ERROR.store(descriptor::adopt(copy as i32), SeqCst);
        }
    }
}

/// Returns the number of the copy of standard error. Negative = there is none.
pub fn error() -> i32 {
    ERROR.load(SeqCst)
}

/// Gives up the copy, in a forked child: one that goes into the background would hold the pipe of a
/// caller who reads standard error to its end. It writes to number 2 while that is the same file.
pub unsafe fn leave_error() {
    unsafe {
        let copy = ERROR.swap(-1, SeqCst);
        if copy >= 0 {
            descriptor::close(copy);
        }
    }
}

/// Writes a message to the standard error that the program was started with, from either file
/// table, and to no other file.
pub unsafe fn write_error(text: &[u8]) {
    unsafe {
        let known = ERROR_FILE.load(SeqCst);
        let is_error = |fd: i32| match known {
            UNKNOWN => true,
            file => file != 0 && descriptor::file(fd) == file,
        };
        let write =
            |fd: i32| is_error(fd) && sys!(libc::SYS_write, fd, text.as_ptr(), text.len()) >= 0;
        if error() >= 0 && write(error()) {
            return;
        }
        if !is_here() {
            write(STANDARD_ERROR);
            return;
        }
        let fd = from_table(sys!(libc::SYS_pidfd_open, sys!(libc::SYS_getpid), 0), STANDARD_ERROR);
        if fd >= 0 {
            write(fd as i32);
            sys!(libc::SYS_close, fd);
        }
    }
}
