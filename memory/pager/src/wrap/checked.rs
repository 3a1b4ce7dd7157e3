//! The variants of these calls that _FORTIFY_SOURCE uses, with the room of the buffer as an
//! argument. Those of the C library would bypass the wrappers.

use super::{io, path, poll, socket, stdio};
use libc::{
    FILE, c_char, c_int, c_void, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
};

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// Ends the program as the C library does, if the call asks for more than there is room.
unsafe fn check(bytes: size_t, room: size_t) {
    unsafe {
        if bytes > room {
            __chk_fail();
        }
    }
}

/// Defines wrappers that check the room and then call the plain function.
macro_rules! checked {
    ($(
        $name:ident, $plain:expr_2021, $bytes:expr_2021, $room:ident,
        ($($a:ident: $t:ty),*), ($($given:expr_2021),*) -> $r:ty;
    )*) => {$(
        /// # Safety
        /// As the function without the check.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r { unsafe {
            check($bytes, $room);
            $plain($($given),*)
        }}
    )*};
}

checked! {
    __read_chk, io::read, n, room,
        (fd: c_int, at: *mut c_void, n: size_t, room: size_t), (fd, at, n) -> ssize_t;
    __pread_chk, io::pread, n, room,
        (fd: c_int, at: *mut c_void, n: size_t, from: off_t, room: size_t),
        (fd, at, n, from) -> ssize_t;
    __pread64_chk, io::pread, n, room,
        (fd: c_int, at: *mut c_void, n: size_t, from: off_t, room: size_t),
        (fd, at, n, from) -> ssize_t;
    __recv_chk, socket::recv, n, room,
        (fd: c_int, at: *mut c_void, n: size_t, room: size_t, flags: c_int),
        (fd, at, n, flags) -> ssize_t;
    __recvfrom_chk, socket::recvfrom, n, room,
        (fd: c_int, at: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
         len: *mut socklen_t),
        (fd, at, n, flags, from, len) -> ssize_t;
    __getcwd_chk, path::getcwd, n, room,
        (at: *mut c_char, n: size_t, room: size_t), (at, n) -> *mut c_char;
    __readlink_chk, path::readlink, n, room,
        (path: *const c_char, at: *mut c_char, n: size_t, room: size_t), (path, at, n) -> ssize_t;
    __poll_chk, poll::poll, n as size_t * size_of::<pollfd>(), room,
        (list: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t),
        (list, n, timeout) -> c_int;
    __fread_chk, stdio::fread, size.saturating_mul(n), room,
        (at: *mut c_void, room: size_t, size: size_t, n: size_t, f: *mut FILE),
        (at, size, n, f) -> size_t;
    __fread_unlocked_chk, stdio::fread_unlocked, size.saturating_mul(n), room,
        (at: *mut c_void, room: size_t, size: size_t, n: size_t, f: *mut FILE),
        (at, size, n, f) -> size_t;
}
