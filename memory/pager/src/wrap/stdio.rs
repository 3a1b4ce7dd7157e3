//! stdio makes its system calls inside the C library, where they cannot be wrapped. So its buffers
//! stay local (see `heap`), and large transfers are pinned around the call.

use super::spawn::Environment;
use crate::next;
use crate::pin::{PIN_BYTES_MAX, Pin, keep_all, keep_block, pin_text};
use libc::{FILE, c_char, c_int, c_void, size_t};

/// Keeps a stream local. A forked child of a program with threads resets the stream's lock before
/// it can handle faults.
unsafe fn keep_stream(f: *mut FILE) -> *mut FILE {
    unsafe {
        if !f.is_null() {
            keep_block(f.cast());
        }
        f
    }
}

/// # Safety
/// As fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    unsafe {
        let _path = pin_text(path);
        keep_stream(next!(fopen: fn(*const c_char, *const c_char) -> *mut FILE)(path, mode))
    }
}

/// # Safety
/// As fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    unsafe { fopen(path, mode) }
}

/// # Safety
/// As fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    unsafe { keep_stream(next!(fdopen: fn(c_int, *const c_char) -> *mut FILE)(fd, mode)) }
}

/// # Safety
/// As tmpfile(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tmpfile() -> *mut FILE {
    unsafe { keep_stream(next!(tmpfile: fn() -> *mut FILE)()) }
}

/// # Safety
/// As popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    unsafe {
        let _pins = (pin_text(command), Environment::pin());
        keep_stream(next!(popen: fn(*const c_char, *const c_char) -> *mut FILE)(command, mode))
    }
}

/// Keeps the program's own buffer local. Ignores a buffer that is larger than the limit of a pin.
///
/// # Safety
/// As setvbuf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setvbuf(
    f: *mut FILE,
    at: *mut c_char,
    mode: c_int,
    bytes: size_t,
) -> c_int {
    unsafe {
        let own = !at.is_null() && bytes <= PIN_BYTES_MAX;
        if own {
            keep_all(at.cast(), bytes);
        }
        let at = if own { at } else { core::ptr::null_mut() };
        next!(setvbuf: fn(*mut FILE, *mut c_char, c_int, size_t) -> c_int)(f, at, mode, bytes)
    }
}

/// # Safety
/// As setbuf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setbuf(f: *mut FILE, at: *mut c_char) {
    unsafe {
        setvbuf(
            f,
            at,
            if at.is_null() { libc::_IONBF } else { libc::_IOFBF },
            libc::BUFSIZ as usize,
        );
    }
}

/// Makes a long transfer in pieces, each pinned.
unsafe fn in_pieces(
    at: *const c_void,
    size: size_t,
    count: size_t,
    call: impl Fn(*mut c_void, size_t) -> size_t,
) -> size_t {
    unsafe {
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
}

/// # Safety
/// As fwrite(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fwrite(
    at: *const c_void,
    size: size_t,
    count: size_t,
    f: *mut FILE,
) -> size_t {
    unsafe {
        let real = next!(fwrite: fn(*const c_void, size_t, size_t, *mut FILE) -> size_t);
        in_pieces(at, size, count, |at, n| real(at, 1, n, f))
    }
}

/// # Safety
/// As fread(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fread(
    at: *mut c_void,
    size: size_t,
    count: size_t,
    f: *mut FILE,
) -> size_t {
    unsafe {
        let real = next!(fread: fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t);
        in_pieces(at, size, count, |at, n| real(at, 1, n, f))
    }
}

/// # Safety
/// As fputs(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fputs(text: *const c_char, f: *mut FILE) -> c_int {
    unsafe {
        let n = libc::strlen(text);
        if fwrite(text.cast(), 1, n, f) == n { 1 } else { libc::EOF }
    }
}

/// # Safety
/// As fwrite_unlocked(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fwrite_unlocked(
    at: *const c_void,
    size: size_t,
    count: size_t,
    f: *mut FILE,
) -> size_t {
    unsafe {
        let real = next!(fwrite_unlocked: fn(*const c_void, size_t, size_t, *mut FILE) -> size_t);
        in_pieces(at, size, count, |at, n| real(at, 1, n, f))
    }
}

/// # Safety
/// As fread_unlocked(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fread_unlocked(
    at: *mut c_void,
    size: size_t,
    count: size_t,
    f: *mut FILE,
) -> size_t {
    unsafe {
        let real = next!(fread_unlocked: fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t);
        in_pieces(at, size, count, |at, n| real(at, 1, n, f))
    }
}

/// # Safety
/// As fputs_unlocked(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fputs_unlocked(text: *const c_char, f: *mut FILE) -> c_int {
    unsafe {
        let n = libc::strlen(text);
        if fwrite_unlocked(text.cast(), 1, n, f) == n { 1 } else { libc::EOF }
    }
}
