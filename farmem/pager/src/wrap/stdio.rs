//! stdio makes its system calls inside of the C library, where they cannot be wrapped: its buffers are kept local, and
//! what is read or written in large pieces is pinned around the call.

use crate::pager::pager;
use crate::pin::{pin_text, Pin, PIN_BYTES_MAX};
use crate::{next, sys};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use libc::{c_char, c_int, c_void, size_t, FILE};

const BUFFER_BYTES: usize = 4096;
/// Local buffers there are; a program that opens more streams at once gets unbuffered ones.
const BUFFERS: usize = 1024;

static POOL: AtomicUsize = AtomicUsize::new(0);
/// Which stream uses each buffer; 0 is none.
static USERS: [AtomicUsize; BUFFERS] = [const { AtomicUsize::new(0) }; BUFFERS];

/// Gives a new stream a buffer that never leaves.
unsafe fn keep_local(f: *mut FILE) -> *mut FILE {
    if f.is_null() || pager().is_none() {
        return f;
    }
    if POOL.load(SeqCst) == 0 {
        let fresh = sys::reserve(BUFFERS * BUFFER_BYTES) as usize;
        if POOL.compare_exchange(0, fresh, SeqCst, SeqCst).is_err() {
            sys!(libc::SYS_munmap, fresh, BUFFERS * BUFFER_BYTES);
        }
    }
    let free = (0..BUFFERS).find(|&i| USERS[i].compare_exchange(0, f as usize, SeqCst, SeqCst).is_ok());
    match free {
        Some(i) => libc::setvbuf(f, (POOL.load(SeqCst) + i * BUFFER_BYTES) as *mut c_char, libc::_IOFBF, BUFFER_BYTES),
        None => libc::setvbuf(f, core::ptr::null_mut(), libc::_IONBF, 0),
    };
    f
}

/// # Safety
/// As fopen(3).
#[no_mangle]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let _path = pin_text(path);
    keep_local(next!(fopen: fn(*const c_char, *const c_char) -> *mut FILE)(path, mode))
}

/// # Safety
/// As fopen(3).
#[no_mangle]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    fopen(path, mode)
}

/// # Safety
/// As fdopen(3).
#[no_mangle]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    keep_local(next!(fdopen: fn(c_int, *const c_char) -> *mut FILE)(fd, mode))
}

/// # Safety
/// As fclose(3).
#[no_mangle]
pub unsafe extern "C" fn fclose(f: *mut FILE) -> c_int {
    let user = USERS.iter().find(|u| u.load(SeqCst) == f as usize);
    let r = next!(fclose: fn(*mut FILE) -> c_int)(f);
    if let Some(u) = user {
        u.store(0, SeqCst);
    }
    r
}

/// Pieces of a long transfer, each pinned.
unsafe fn in_pieces(at: *const c_void, size: size_t, count: size_t, call: impl Fn(*mut c_void, size_t) -> size_t) -> size_t {
    let Some(bytes) = size.checked_mul(count).filter(|&b| b > 0) else { return 0 };
    if !crate::pin::is_far(at.cast(), bytes) {
        return call(at as *mut c_void, bytes) / size;
    }
    let mut done = 0;
    while done < bytes {
        let some = (bytes - done).min(PIN_BYTES_MAX);
        let from = at.cast::<u8>().add(done);
        let _pin = Pin::new(from, some);
        let n = call(from as *mut c_void, some);
        done += n;
        if n < some {
            break;
        }
    }
    done / size
}

/// # Safety
/// As fwrite(3).
#[no_mangle]
pub unsafe extern "C" fn fwrite(at: *const c_void, size: size_t, count: size_t, f: *mut FILE) -> size_t {
    let real = next!(fwrite: fn(*const c_void, size_t, size_t, *mut FILE) -> size_t);
    in_pieces(at, size, count, |at, n| real(at, 1, n, f))
}

/// # Safety
/// As fread(3).
#[no_mangle]
pub unsafe extern "C" fn fread(at: *mut c_void, size: size_t, count: size_t, f: *mut FILE) -> size_t {
    let real = next!(fread: fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t);
    in_pieces(at, size, count, |at, n| real(at, 1, n, f))
}

/// # Safety
/// As fputs(3).
#[no_mangle]
pub unsafe extern "C" fn fputs(text: *const c_char, f: *mut FILE) -> c_int {
    let n = libc::strlen(text);
    if fwrite(text.cast(), 1, n, f) == n {
        1
    } else {
        libc::EOF
    }
}
