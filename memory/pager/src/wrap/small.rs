//! Calls with small arguments that the kernel reads or fills: addresses, options, sets, times,
//! messages, directory buffers.

use crate::next;
use crate::pin::Pin;
use libc::{
    c_char, c_int, c_uint, c_void, fd_set, itimerspec, mode_t, mq_attr, mqd_t, size_t, sockaddr,
    socklen_t, ssize_t, timer_t, timespec, timeval,
};

/// Defines wrappers that pin the memory of their arguments and then call the C library.
macro_rules! small {
    ($(
        $name:ident($($a:ident: $t:ty),*) -> $r:ty { $($pointer:expr_2021, $bytes:expr_2021);* }
    )*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r { unsafe {
            let _pins = [$(Pin::new($pointer.cast(), $bytes)),*];
            next!($name: fn($($t),*) -> $r)($($a),*)
        }}
    )*};
}

/// Returns the room that a length argument announces. The read makes its page resident.
unsafe fn room(len: *const socklen_t) -> usize {
    unsafe { if len.is_null() { 0 } else { *len as usize } }
}

const WORD: usize = 4;
const SET: usize = size_of::<fd_set>();
const TIME: usize = size_of::<timespec>();
const QUEUE: usize = size_of::<mq_attr>();

/// Returns the size of the attributes of a queue, which are an argument only with O_CREAT.
fn made(flags: c_int) -> usize {
    if flags & libc::O_CREAT == 0 { 0 } else { QUEUE }
}

small! {
    bind(fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int { at, len as usize }
    connect(fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int { at, len as usize }
    accept(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int { at, room(len); len, WORD }
    accept4(fd: c_int, at: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        at, room(len); len, WORD
    }
    getsockname(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
        at, room(len); len, WORD
    }
    getpeername(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
        at, room(len); len, WORD
    }
    getsockopt(
        fd: c_int, level: c_int, name: c_int, at: *mut c_void, len: *mut socklen_t
    ) -> c_int {
        at, room(len); len, WORD
    }
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        fds, 2 * WORD
    }
    pipe(fds: *mut c_int) -> c_int { fds, 2 * WORD }
    pipe2(fds: *mut c_int, flags: c_int) -> c_int { fds, 2 * WORD }
    waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int { status, WORD }
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *mut timeval) -> c_int {
        r, SET; w, SET; e, SET; t, TIME
    }
    nanosleep(t: *const timespec, left: *mut timespec) -> c_int { t, TIME; left, TIME }
    timer_settime(t: timer_t, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int {
        new, 2 * TIME; old, 2 * TIME
    }
    timer_gettime(t: timer_t, left: *mut itimerspec) -> c_int { left, 2 * TIME }
    mq_open(name: *const c_char, flags: c_int, mode: mode_t, like: *const mq_attr) -> mqd_t {
        name, libc::strlen(name) + 1; like, made(flags)
    }
    mq_send(q: mqd_t, at: *const c_char, bytes: size_t, first: c_uint) -> c_int { at, bytes }
    mq_timedsend(
        q: mqd_t, at: *const c_char, bytes: size_t, first: c_uint, until: *const timespec
    ) -> c_int {
        at, bytes; until, TIME
    }
    mq_receive(q: mqd_t, at: *mut c_char, bytes: size_t, first: *mut c_uint) -> ssize_t {
        at, bytes; first, WORD
    }
    mq_timedreceive(
        q: mqd_t, at: *mut c_char, bytes: size_t, first: *mut c_uint, until: *const timespec
    ) -> ssize_t {
        at, bytes; first, WORD; until, TIME
    }
    mq_getattr(q: mqd_t, like: *mut mq_attr) -> c_int { like, QUEUE }
    mq_setattr(q: mqd_t, like: *const mq_attr, old: *mut mq_attr) -> c_int {
        like, QUEUE; old, QUEUE
    }
    readdir(dir: *mut c_void) -> *mut c_void { dir, libc::malloc_usable_size(dir) }
    readdir64(dir: *mut c_void) -> *mut c_void { dir, libc::malloc_usable_size(dir) }
}
