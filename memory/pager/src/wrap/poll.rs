//! Calls that wait for events of descriptors. Their lists are pinned, because the kernel may
//! consume an event before it copies it.

use super::signal::without_sigbus;
use super::{answer, result};
use crate::pin::Pin;
use crate::{next, sys};
use libc::c_int;

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
        answer(result(next!(epoll_wait: fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int)(
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
        let r = next!(epoll_pwait: fn(
            c_int, *mut libc::epoll_event, c_int, c_int, *const libc::sigset_t
        ) -> c_int)(fd, events, count, timeout, mask);
        answer(result(r as isize)) as c_int
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
        answer(result(next!(poll: fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int)(
            list, count, timeout,
        ) as isize)) as c_int
    }
}
