//! Reads and writes. A call that meets an absent page is repeated with its memory pinned.
//!
//! Calls on a stream may transfer less than requested, so they are pinned piece by piece. Calls on
//! a file are repeated for the rest. The kernel consumes some data before it copies it (an
//! eventfd's counter, a datagram), and EFAULT would lose that data. So small buffers are pinned
//! before the first attempt. A failed send to a socket loses no data, so it is tried without pins
//! first.

use super::kind::{is_file, is_socket};
use super::signal::ours;
use super::{EFAULT, answer, result};
use crate::pin::{PIN_BYTES_MAX, Pin, is_away, is_far};
use crate::{next, sys};
use core::cell::Cell;
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use memory_core::PAGE_BYTES;

const SMALL_BYTES: usize = 4096;
/// The kernel transfers at most this much in one call.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Makes a call with one buffer of a stream.
pub unsafe fn stream(at: *const c_void, bytes: usize, call: impl Fn(usize) -> isize) -> ssize_t {
    unsafe {
        if !is_far(at.cast(), bytes) {
            return answer(call(bytes));
        }
        if bytes > SMALL_BYTES {
            let r = call(bytes);
            if r != EFAULT {
                return answer(r);
            }
        }
        let some = bytes.min(PIN_BYTES_MAX);
        let _pin = Pin::new(at.cast(), some);
        answer(call(some))
    }
}

/// Makes a call with one buffer, and repeats it for the rest if an absent page cut it short. On
/// files only the end may do that. `call` receives the bytes done and the bytes to do.
unsafe fn complete(
    at: *const c_void,
    bytes: usize,
    is_complete: impl Fn() -> bool,
    call: impl Fn(usize, usize) -> isize,
) -> ssize_t {
    unsafe {
        let mut done = 0;
        loop {
            let asked = Cell::new(0);
            let n = stream(at.byte_add(done), bytes - done, |n| {
                asked.set(n);
                call(done, n)
            });
            if n <= 0 {
                return if done > 0 { done as ssize_t } else { n };
            }
            let was_cut = n as usize == asked.get() && asked.get() < bytes - done;
            done += n as usize;
            if done >= bytes.min(TRANSFER_BYTES_MAX)
                || !ours()
                || !(was_cut || is_away(at.cast::<u8>().add(done)))
                || !is_complete()
            {
                return done as ssize_t;
            }
        }
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, at: *mut c_void, bytes: size_t) -> ssize_t {
    unsafe {
        complete(
            at,
            bytes,
            || is_file(fd),
            |done, n| {
                result(next!(read: fn(c_int, *mut c_void, size_t) -> ssize_t)(
                    fd,
                    at.byte_add(done),
                    n,
                ))
            },
        )
    }
}

/// Makes a small write to a socket. The kernel sends nothing from an absent page, so nothing is
/// pinned while all pages are present.
unsafe fn small(fd: c_int, at: *const c_void, bytes: usize) -> ssize_t {
    unsafe {
        let call = |from: usize| {
            result(next!(write: fn(c_int, *const c_void, size_t) -> ssize_t)(
                fd,
                at.byte_add(from),
                bytes - from,
            ))
        };
        let r = call(0);
        let sent = r.max(0) as usize;
        // The write ended at the start of a page, which may be away.
        let is_cut = r == EFAULT
            || sent > 0 && sent < bytes && (at as usize + sent).is_multiple_of(PAGE_BYTES);
        if !is_cut {
            return answer(r);
        }
        let _pin = Pin::new(at.byte_add(sent).cast(), bytes - sent);
        match call(sent) {
            more if more >= 0 => sent as isize + more,
            _ if sent > 0 => sent as isize,
            e => answer(e),
        }
    }
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, at: *const c_void, bytes: size_t) -> ssize_t {
    unsafe {
        if bytes <= SMALL_BYTES && is_far(at.cast(), bytes) && is_socket(fd) {
            return small(fd, at, bytes);
        }
        complete(
            at,
            bytes,
            || is_file(fd),
            |done, n| {
                result(next!(write: fn(c_int, *const c_void, size_t) -> ssize_t)(
                    fd,
                    at.byte_add(done),
                    n,
                ))
            },
        )
    }
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe {
        complete(
            at,
            bytes,
            || is_file(fd),
            |done, n| {
                result(next!(pread64: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t)(
                    fd,
                    at.byte_add(done),
                    n,
                    offset + done as off_t,
                ))
            },
        )
    }
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pread(fd, at, bytes, offset) }
}

/// # Safety
/// As pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe {
        complete(
            at,
            bytes,
            || is_file(fd),
            |done, n| {
                result(next!(pwrite64: fn(c_int, *const c_void, size_t, off_t) -> ssize_t)(
                    fd,
                    at.byte_add(done),
                    n,
                    offset + done as off_t,
                ))
            },
        )
    }
}

/// # Safety
/// As pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pwrite(fd, at, bytes, offset) }
}

/// # Safety
/// As getrandom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(at: *mut c_void, bytes: size_t, flags: libc::c_uint) -> ssize_t {
    unsafe {
        complete(
            at,
            bytes,
            || true,
            |done, n| sys!(libc::SYS_getrandom, at.byte_add(done), n, flags),
        )
    }
}
