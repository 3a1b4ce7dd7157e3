//! Calls with names of files, which may be in far memory.

use super::answer;
use crate::pager::pager;
use crate::pin::{Pin, pin_text};
use crate::{mode, next};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// Defines wrappers that pin their texts and then call the C library.
macro_rules! texts {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty; $($text:ident),*;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r { unsafe {
            $(let _pin = pin_text($text);)*
            next!($name: fn($($t),*) -> $r)($($a),*)
        }}
    )*};
}

/// Whether a file may not be opened with these flags. A direct read writes into pages after the
/// kernel has looked them up. A page that the pager copies meanwhile would miss the bytes. The
/// answer is that of a file system without direct reads.
pub fn is_refused(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0 && !mode::moves() && pager().is_some()
}

/// Defines wrappers of calls that open a file.
macro_rules! opens {
    ($($name:ident($($a:ident: $t:ty),*); $path:ident, $flags:ident;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int { unsafe {
            if is_refused($flags) {
                return answer(-(libc::EINVAL as isize)) as c_int;
            }
            let _pin = pin_text($path);
            next!($name: fn($($t),*) -> c_int)($($a),*)
        }}
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: c_int); path, flags;
    open64(path: *const c_char, flags: c_int, mode: c_int); path, flags;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_int); path, flags;
    __open_2(path: *const c_char, flags: c_int); path, flags;
    __open64_2(path: *const c_char, flags: c_int); path, flags;
    __openat_2(at: c_int, path: *const c_char, flags: c_int); path, flags;
    __openat64_2(at: c_int, path: *const c_char, flags: c_int); path, flags;
}

texts! {
    creat(path: *const c_char, mode: c_int) -> c_int; path;
    access(path: *const c_char, mode: c_int) -> c_int; path;
    unlink(path: *const c_char) -> c_int; path;
    mq_unlink(name: *const c_char) -> c_int; name;
    __mq_open_2(name: *const c_char, flags: c_int) -> c_int; name;
    remove(path: *const c_char) -> c_int; path;
    rmdir(path: *const c_char) -> c_int; path;
    mkdir(path: *const c_char, mode: c_int) -> c_int; path;
    chdir(path: *const c_char) -> c_int; path;
    chmod(path: *const c_char, mode: c_int) -> c_int; path;
    truncate(path: *const c_char, bytes: i64) -> c_int; path;
    rename(from: *const c_char, to: *const c_char) -> c_int; from, to;
    link(from: *const c_char, to: *const c_char) -> c_int; from, to;
    symlink(from: *const c_char, to: *const c_char) -> c_int; from, to;
    opendir(path: *const c_char) -> *mut c_void; path;
    realpath(path: *const c_char, out: *mut c_char) -> *mut c_char; path;
    __realpath_chk(path: *const c_char, out: *mut c_char, room: size_t) -> *mut c_char; path;
    dlopen(path: *const c_char, flags: c_int) -> *mut c_void; path;
}

/// Defines wrappers of the stat family: a text, and a buffer that the kernel fills.
macro_rules! stats {
    ($($name:ident),*; $($name_at:ident),*) => {
        $(
            /// # Safety
            /// As the function of this name in the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                path: *const c_char, out: *mut libc::stat,
            ) -> c_int { unsafe {
                let _path = pin_text(path);
                let _out = Pin::new(out.cast(), size_of::<libc::stat>());
                next!($name: fn(*const c_char, *mut libc::stat) -> c_int)(path, out)
            }}
        )*
        $(
            /// # Safety
            /// As the function of this name in the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name_at(
                at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int,
            ) -> c_int { unsafe {
                let _path = pin_text(path);
                let _out = Pin::new(out.cast(), size_of::<libc::stat>());
                next!($name_at: fn(
                    c_int, *const c_char, *mut libc::stat, c_int
                ) -> c_int)(at, path, out, flags)
            }}
        )*
    };
}

stats!(stat, stat64, lstat, lstat64; fstatat, fstatat64);

/// # Safety
/// As fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, out: *mut libc::stat) -> c_int {
    unsafe {
        let _out = Pin::new(out.cast(), size_of::<libc::stat>());
        next!(fstat: fn(c_int, *mut libc::stat) -> c_int)(fd, out)
    }
}

/// Defines the names of the stat family in programs that were built with glibc before 2.33. The
/// version of the structure comes first; x86-64 has one version.
macro_rules! old_stats {
    ($($name:ident: $plain:ident($($a:ident: $t:ty),*);)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(_version: c_int, $($a: $t),*) -> c_int { unsafe {
            $plain($($a),*)
        }}
    )*};
}

old_stats! {
    __xstat: stat(path: *const c_char, out: *mut libc::stat);
    __xstat64: stat(path: *const c_char, out: *mut libc::stat);
    __lxstat: lstat(path: *const c_char, out: *mut libc::stat);
    __lxstat64: lstat(path: *const c_char, out: *mut libc::stat);
    __fxstat: fstat(fd: c_int, out: *mut libc::stat);
    __fxstat64: fstat(fd: c_int, out: *mut libc::stat);
    __fxstatat: fstatat(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int);
    __fxstatat64: fstatat(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int);
}

/// # Safety
/// As readlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, out: *mut c_char, bytes: size_t) -> ssize_t {
    unsafe {
        let _path = pin_text(path);
        let _out = Pin::new(out.cast(), bytes);
        next!(readlink: fn(*const c_char, *mut c_char, size_t) -> ssize_t)(path, out, bytes)
    }
}

/// # Safety
/// As getcwd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getcwd(out: *mut c_char, bytes: size_t) -> *mut c_char {
    unsafe {
        let _out = Pin::new(out.cast(), bytes);
        next!(getcwd: fn(*mut c_char, size_t) -> *mut c_char)(out, bytes)
    }
}
