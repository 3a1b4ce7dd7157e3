//! Calls on sockets. The kernel takes a datagram from its queue before it copies it, and EFAULT
//! would lose it. So buffers of receiving calls are pinned before the first attempt. A failed send
//! loses no data, so it is tried without pins first.

use super::io::stream;
use super::pieces::Pieces;
use super::signal::ours;
use super::{EFAULT, answer, result, zerocopy};
use crate::next;
use crate::pin::{PIN_BYTES_MAX, Pin};
use libc::{c_int, c_void, msghdr, size_t, sockaddr, socklen_t, ssize_t};

/// Makes a call with one buffer that must be transferred as a whole.
unsafe fn whole(at: *const c_void, bytes: usize, call: impl Fn() -> isize) -> ssize_t {
    unsafe {
        let _pin = Pin::new(at.cast(), bytes);
        answer(call())
    }
}

/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    flags: c_int,
) -> ssize_t {
    unsafe { sendto(fd, at, bytes, flags, core::ptr::null(), 0) }
}

/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    flags: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    unsafe {
        if zerocopy::is_refused(fd, flags) {
            return answer(zerocopy::REFUSED);
        }
        let call = || {
            result(next!(sendto: fn(
                c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t
            ) -> ssize_t)(fd, at, bytes, flags, to, len))
        };
        let r = call();
        if r != EFAULT {
            return answer(r);
        }
        let _address = Pin::new(to.cast(), len as usize);
        whole(at, bytes, call)
    }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, at: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    unsafe { recvfrom(fd, at, bytes, flags, core::ptr::null_mut(), core::ptr::null_mut()) }
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    flags: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    unsafe {
        let room = if len.is_null() { 0 } else { *len as usize };
        let _address = Pin::new(from.cast(), room);
        let _len = Pin::new(len.cast(), 4);
        let call = |n| {
            result(next!(recvfrom: fn(
                c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t
            ) -> ssize_t)(fd, at, n, flags, from, len))
        };
        if bytes <= PIN_BYTES_MAX {
            return whole(at, bytes, || call(bytes));
        }
        stream(at, bytes, call)
    }
}

/// Makes a call with a message, and pins everything that the message points to.
unsafe fn message(m: *const msghdr, call: impl Fn(*const msghdr) -> isize) -> (ssize_t, msghdr) {
    unsafe {
        let mut copy = *m;
        let _name = Pin::new(copy.msg_name.cast(), copy.msg_namelen as usize);
        let _control = Pin::new(copy.msg_control.cast(), copy.msg_controllen);
        let pieces = Pieces::new(copy.msg_iov, copy.msg_iovlen, 0, usize::MAX);
        let given = copy.msg_iov;
        copy.msg_iov = pieces.list().cast_mut();
        copy.msg_iovlen = pieces.len as _;
        let r = answer(call(&copy));
        copy.msg_iov = given;
        (r, copy)
    }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, m: *const msghdr, flags: c_int) -> ssize_t {
    unsafe {
        if zerocopy::is_refused(fd, flags) {
            return answer(zerocopy::REFUSED);
        }
        let r = result(next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags));
        if r != EFAULT {
            return answer(r);
        }
        message(m, |m| {
            result(next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags))
        })
        .0
    }
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, m: *mut msghdr, flags: c_int) -> ssize_t {
    unsafe {
        if !ours() {
            return answer(result(next!(recvmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(
                fd, m, flags,
            )));
        }
        let (r, after) = message(m, |m| {
            result(next!(recvmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags))
        });
        ((*m).msg_namelen, (*m).msg_controllen, (*m).msg_flags) =
            (after.msg_namelen, after.msg_controllen, after.msg_flags);
        r
    }
}
