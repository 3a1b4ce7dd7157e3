//! Standard error as the program was started with it. A descriptor number is not a file: the program
//! may close number 2 and open a file of its own there.

use super::apart;
use super::raw::{block_signals, restore_signals, sys};
use crate::descriptor;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

/// The copy of standard error, and the file that standard error was at the start.
static COPY: AtomicI32 = AtomicI32::new(-1);
static FILE: AtomicU64 = AtomicU64::new(UNKNOWN);
const STANDARD_ERROR: i32 = 2;
/// The program has not reached [`keep`].
const UNKNOWN: u64 = 1;

/// Keeps a copy of standard error: the program may close number 2 and open a file of its own there.
/// Before any code of the program runs.
pub unsafe fn keep() {
    unsafe {
        FILE.store(descriptor::file(STANDARD_ERROR), SeqCst);
        let copy = sys!(libc::SYS_fcntl, STANDARD_ERROR, libc::F_DUPFD_CLOEXEC, 0);
        if copy >= 0 {
            COPY.store(descriptor::adopt(copy as i32), SeqCst);
        }
    }
}

/// Returns the number of the copy of standard error. Negative = there is none.
pub fn copy() -> i32 {
    COPY.load(SeqCst)
}

/// Gives up the copy, in a forked child: one that goes into the background would hold the pipe of a
/// caller who reads standard error to its end. It writes to number 2 while that is the same file.
pub unsafe fn leave() {
    unsafe {
        let copy = COPY.swap(-1, SeqCst);
        if copy >= 0 {
            descriptor::close(copy);
        }
    }
}

/// Writes without a SIGPIPE for the program if nobody reads. Returns whether it wrote.
pub unsafe fn write_quietly(fd: i32, text: &[u8]) -> bool {
    unsafe {
        let broken = 1u64 << (libc::SIGPIPE - 1);
        let (signals, mut before) = (block_signals(), 0u64);
        sys!(libc::SYS_rt_sigpending, &raw mut before, 8);
        let r = sys!(libc::SYS_write, fd, text.as_ptr(), text.len());
        if r == -(libc::EPIPE as isize) && before & broken == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            sys!(libc::SYS_rt_sigtimedwait, &raw const broken, 0, &raw const now, 8);
        }
        restore_signals(signals);
        r >= 0
    }
}

/// Writes a message to the standard error that the program was started with, from either file
/// table, and to no other file.
pub unsafe fn write(text: &[u8]) {
    unsafe {
        let known = FILE.load(SeqCst);
        let is_error = |fd: i32| match known {
            UNKNOWN => true,
            file => file != 0 && descriptor::file(fd) == file,
        };
        let write = |fd: i32| is_error(fd) && write_quietly(fd, text);
        if copy() >= 0 && write(copy()) {
            return;
        }
        if !apart::is_here() {
            write(STANDARD_ERROR);
            return;
        }
        let fd = apart::from_process(STANDARD_ERROR);
        if fd >= 0 {
            write(fd as i32);
            sys!(libc::SYS_close, fd);
        }
    }
}
