//! Reads and writes with several buffers. A call that meets an absent page is repeated with the
//! memory of a few buffers pinned.

use super::kind::is_file;
use super::pieces::Pieces;
use super::signal::ours;
use super::{EFAULT, answer, result};
use crate::pin::{PIN_BYTES_MAX, is_away};
use crate::{next, sys};
use libc::{c_int, iovec, off_t, ssize_t};

/// Returns the byte after the first `skip` bytes of a list of pieces.
unsafe fn place(from: *const iovec, count: usize, mut skip: usize) -> *const u8 {
    unsafe {
        for i in 0..count {
            let piece = *from.add(i);
            if skip < piece.iov_len {
                return piece.iov_base.cast::<u8>().add(skip);
            }
            skip -= piece.iov_len;
        }
        core::ptr::null()
    }
}

/// Makes a call with several buffers. `call` receives a list and the bytes done.
unsafe fn vector(
    fd: c_int,
    at: *const iovec,
    count: c_int,
    call: impl Fn(*const iovec, usize, usize) -> isize,
) -> ssize_t {
    unsafe {
        let r = call(at, count as usize, 0);
        if !(0..=libc::UIO_MAXIOV).contains(&count) || r < 0 && r != EFAULT || !ours() {
            return answer(r);
        }
        let (count, mut done) = (count as usize, r.max(0) as usize);
        if r != EFAULT && !(is_away(place(at, count, done)) && is_file(fd)) {
            return r;
        }
        loop {
            let pieces = Pieces::new(at, count, done, PIN_BYTES_MAX);
            let r = call(pieces.list(), pieces.len, done);
            if r < 0 && done == 0 {
                return answer(r);
            }
            done += r.max(0) as usize;
            // A transfer of less than was pinned means the end of the file.
            if r < 0 || pieces.bytes == 0 || (r as usize) < pieces.bytes || !is_file(fd) {
                return done as ssize_t;
            }
        }
    }
}

/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, at: *const iovec, count: c_int) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, _| {
            result(next!(readv: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, v, n as c_int))
        })
    }
}

/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, at: *const iovec, count: c_int) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, _| {
            result(next!(writev: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, v, n as c_int))
        })
    }
}

/// # Safety
/// As preadv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv(
    fd: c_int,
    at: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, done| {
            sys!(libc::SYS_preadv, fd, v, n, offset + done as off_t, 0)
        })
    }
}

/// # Safety
/// As pwritev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev(
    fd: c_int,
    at: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, done| {
            sys!(libc::SYS_pwritev, fd, v, n, offset + done as off_t, 0)
        })
    }
}

/// Returns the offset after `done` bytes. -1 stands for the position of the file, which moves by
/// itself.
fn after(offset: off_t, done: usize) -> off_t {
    if offset == -1 { offset } else { offset + done as off_t }
}

/// # Safety
/// As preadv2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    at: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, done| {
            sys!(libc::SYS_preadv2, fd, v, n, after(offset, done), 0, flags)
        })
    }
}

/// # Safety
/// As pwritev2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    at: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, done| {
            sys!(libc::SYS_pwritev2, fd, v, n, after(offset, done), 0, flags)
        })
    }
}
