//! Zero-copy sends, which are refused like io_uring: the kernel would read a page after the call
//! has returned. By then the page may have moved, and its memory may hold another page. The kernel
//! does not count such a reader when it moves a page.

use super::answer;
use crate::next;
use crate::pager::pager;
use crate::pin::{Pin, is_far};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, size_t, socklen_t, ssize_t};

/// Whether a send would read its memory after the call. The kernel ignores the flag on a socket
/// without the option, which the program cannot set here. A socket that another process passed may
/// have it.
pub unsafe fn is_refused(fd: c_int, flags: c_int) -> bool {
    unsafe {
        if flags & libc::MSG_ZEROCOPY == 0 || pager().is_none() {
            return false;
        }
        let (mut on, mut len) = (0i32, size_of::<c_int>() as socklen_t);
        let r = crate::sys!(
            libc::SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            &raw mut on,
            &raw mut len
        );
        r == 0 && on != 0
    }
}

/// The kernel's own error when it must copy: programs then send again without the flag.
pub const REFUSED: isize = -(libc::ENOBUFS as isize);

/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    at: *const c_void,
    len: socklen_t,
) -> c_int {
    unsafe {
        if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY && pager().is_some() {
            return answer(-(libc::ENOPROTOOPT as isize)) as c_int;
        }
        let _pin = Pin::new(at.cast(), len as usize);
        next!(setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int)(
            fd, level, name, at, len,
        )
    }
}

/// Refuses far memory. Other memory of the program does not move.
///
/// # Safety
/// As vmsplice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    at: *const iovec,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    unsafe {
        if pager().is_some() && count <= libc::UIO_MAXIOV as usize {
            for i in 0..count {
                let piece = at.add(i).read();
                if is_far(piece.iov_base.cast(), piece.iov_len) {
                    return answer(-(libc::EINVAL as isize));
                }
            }
        }
        let _pin = Pin::new(at.cast(), count.saturating_mul(size_of::<iovec>()));
        next!(vmsplice: fn(c_int, *const iovec, size_t, c_uint) -> ssize_t)(fd, at, count, flags)
    }
}

/// # Safety
/// As sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    unsafe {
        if is_refused(fd, flags) {
            return answer(REFUSED) as c_int;
        }
        next!(sendmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int)(fd, list, count, flags)
    }
}
