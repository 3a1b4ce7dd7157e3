//! Reads and writes. A call that meets an absent page is repeated with its memory pinned.
//!
//! Calls on a stream may transfer less than requested, so they are pinned piece by piece. Calls on
//! a file are repeated for the rest. The kernel consumes some data before it copies it (an
//! eventfd's counter, a datagram), and EFAULT would lose that data. So small buffers, and the
//! buffers of datagram calls, are pinned before the first attempt. A failed send to a socket loses
//! no data, so it is tried without pins first.

use super::pieces::Pieces;
use super::signal::{ours, without_sigbus};
use super::zerocopy;
use super::{EFAULT, answer};
use crate::pin::{PIN_BYTES_MAX, Pin, is_away, is_far};
use crate::{next, sys};
use core::cell::Cell;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use memory_core::PAGE_BYTES;

const SMALL_BYTES: usize = 4096;
/// The kernel transfers at most this much in one call.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Converts the result of the C library's own function to the kernel's form. Wrappers call that
/// function because a waiting thread can be cancelled only there.
unsafe fn told(r: isize) -> isize {
    unsafe { if r == -1 { -(*libc::__errno_location() as isize) } else { r } }
}

/// Makes a call with one buffer of a stream.
unsafe fn stream(at: *const c_void, bytes: usize, call: impl Fn(usize) -> isize) -> ssize_t {
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

/// Whether a descriptor is a file or a block device, where a short transfer means the end.
unsafe fn is_file(fd: c_int) -> bool {
    unsafe {
        let mut s: libc::stat = core::mem::zeroed();
        sys!(libc::SYS_fstat, fd, &raw mut s) == 0
            && [libc::S_IFREG, libc::S_IFBLK].contains(&(s.st_mode & libc::S_IFMT))
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

/// Makes a call with one buffer that must be transferred as a whole.
unsafe fn whole(at: *const c_void, bytes: usize, call: impl Fn() -> isize) -> ssize_t {
    unsafe {
        let _pin = Pin::new(at.cast(), bytes);
        answer(call())
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
                told(next!(read: fn(c_int, *mut c_void, size_t) -> ssize_t)(
                    fd,
                    at.byte_add(done),
                    n,
                ))
            },
        )
    }
}

/// The kinds of the first descriptors are cached. 0 = unknown.
const KINDS: usize = 4096;
const SOCKET: u8 = 1;
const OTHER: u8 = 2;
static KIND: [AtomicU8; KINDS] = [const { AtomicU8::new(0) }; KINDS];

/// Forgets the kind of a descriptor, which may refer to another file from now on.
pub fn forget(fd: c_int) {
    if let Some(kind) = usize::try_from(fd).ok().and_then(|fd| KIND.get(fd)) {
        kind.store(0, Relaxed);
    }
}

/// Whether a descriptor is a socket. The cache may be wrong for a number that was closed without
/// the C library. A write to its new file is then tried without pins first, which only few devices
/// would notice.
unsafe fn is_socket(fd: c_int) -> bool {
    unsafe {
        let Some(kind) = usize::try_from(fd).ok().and_then(|fd| KIND.get(fd)) else { return false };
        if kind.load(Relaxed) == 0 {
            let mut s: libc::stat = core::mem::zeroed();
            let r = sys!(libc::SYS_fstat, fd, &raw mut s);
            kind.store(
                if r == 0 && s.st_mode & libc::S_IFMT == libc::S_IFSOCK { SOCKET } else { OTHER },
                Relaxed,
            );
        }
        kind.load(Relaxed) == SOCKET
    }
}

/// Makes a small write to a socket. The kernel sends nothing from an absent page, so nothing is
/// pinned while all pages are present.
unsafe fn small(fd: c_int, at: *const c_void, bytes: usize) -> ssize_t {
    unsafe {
        let call = |from: usize| {
            told(next!(write: fn(c_int, *const c_void, size_t) -> ssize_t)(
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
                told(next!(write: fn(c_int, *const c_void, size_t) -> ssize_t)(
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
                told(next!(pread64: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t)(
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
                told(next!(pwrite64: fn(c_int, *const c_void, size_t, off_t) -> ssize_t)(
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
        let r = told(
            next!(sendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t)(
                fd, at, bytes, flags, to, len,
            ),
        );
        if r != EFAULT {
            return answer(r);
        }
        let _address = Pin::new(to.cast(), len as usize);
        whole(at, bytes, || {
            told(
                next!(sendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t)(
                    fd, at, bytes, flags, to, len,
                ),
            )
        })
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
        if bytes <= PIN_BYTES_MAX {
            return whole(at, bytes, || {
                told(
                    next!(recvfrom: fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t)(
                        fd, at, bytes, flags, from, len,
                    ),
                )
            });
        }
        stream(at, bytes, |n| {
            told(
                next!(recvfrom: fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t)(
                    fd, at, n, flags, from, len,
                ),
            )
        })
    }
}

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
            told(next!(readv: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, v, n as c_int))
        })
    }
}

/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, at: *const iovec, count: c_int) -> ssize_t {
    unsafe {
        vector(fd, at, count, |v, n, _| {
            told(next!(writev: fn(c_int, *const iovec, c_int) -> ssize_t)(fd, v, n as c_int))
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
        let r = told(next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags));
        if r != EFAULT {
            return answer(r);
        }
        message(m, |m| {
            told(next!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags))
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
            return answer(told(next!(recvmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(
                fd, m, flags,
            )));
        }
        let (r, after) = message(m, |m| {
            told(next!(recvmsg: fn(c_int, *const msghdr, c_int) -> ssize_t)(fd, m, flags))
        });
        ((*m).msg_namelen, (*m).msg_controllen, (*m).msg_flags) =
            (after.msg_namelen, after.msg_controllen, after.msg_flags);
        r
    }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    unsafe {
        let _pin = Pin::new(events.cast(), count.max(0) as usize * size_of::<libc::epoll_event>());
        answer(told(next!(epoll_wait: fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int)(
            fd, events, count, timeout,
        ) as isize)) as c_int
    }
}

/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    unsafe {
        let _pin = Pin::new(events.cast(), count.max(0) as usize * size_of::<libc::epoll_event>());
        let open = if mask.is_null() { None } else { Some(without_sigbus(mask)) };
        let mask = open.as_ref().map_or(core::ptr::null(), |m| &raw const *m);
        answer(told(
            next!(epoll_pwait: fn(c_int, *mut libc::epoll_event, c_int, c_int, *const libc::sigset_t) -> c_int)(
                fd, events, count, timeout, mask,
            ) as isize,
        )) as c_int
    }
}

/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    fd: c_int,
    op: c_int,
    which: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    unsafe {
        let copy = if event.is_null() { libc::epoll_event { events: 0, u64: 0 } } else { *event };
        answer(sys!(libc::SYS_epoll_ctl, fd, op, which, &raw const copy)) as c_int
    }
}

/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(
    list: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    unsafe {
        let _pin = Pin::new(list.cast(), count as usize * size_of::<libc::pollfd>());
        answer(told(next!(poll: fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int)(
            list, count, timeout,
        ) as isize)) as c_int
    }
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
