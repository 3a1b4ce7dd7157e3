//! Signals: SIGBUS stays ours and stays open; what the program does about it is remembered.

use crate::handler;
use crate::next;
use crate::pager::pager;
use libc::{c_int, sigaction as Action, sighandler_t, sigset_t, size_t};

type Real = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

pub unsafe fn real_sigaction() -> Real {
    next!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int)
}

fn ours() -> bool {
    pager().is_some_and(|p| p.hosts.config.sigbus)
}

/// # Safety
/// As sigaction(2).
#[no_mangle]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if signal != libc::SIGBUS || !ours() {
        return real_sigaction()(signal, new, old);
    }
    let (action, flags) = if new.is_null() { handler::other() } else { handler::swap_other((*new).sa_sigaction, (*new).sa_flags) };
    if !old.is_null() {
        *old = core::mem::zeroed();
        ((*old).sa_sigaction, (*old).sa_flags) = (action, flags);
    }
    0
}

/// # Safety
/// As signal(2).
#[no_mangle]
pub unsafe extern "C" fn signal(signal: c_int, action: sighandler_t) -> sighandler_t {
    if signal != libc::SIGBUS || !ours() {
        return next!(signal: fn(c_int, sighandler_t) -> sighandler_t)(signal, action);
    }
    handler::swap_other(action, 0).0
}

/// A copy of a mask without SIGBUS. The set itself may be far memory: it is read here, in the program's own context.
unsafe fn without_sigbus(set: *const sigset_t) -> sigset_t {
    let mut copy = *set;
    libc::sigdelset(&mut copy, libc::SIGBUS);
    copy
}

/// # Safety
/// As pthread_sigmask(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let real = next!(pthread_sigmask: fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
    if set.is_null() || how == libc::SIG_UNBLOCK || !ours() {
        return real(how, set, old);
    }
    real(how, &without_sigbus(set), old)
}

/// # Safety
/// As sigprocmask(2).
#[no_mangle]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let real = next!(sigprocmask: fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
    if set.is_null() || how == libc::SIG_UNBLOCK || !ours() {
        return real(how, set, old);
    }
    real(how, &without_sigbus(set), old)
}

/// io_uring and other calls past the wrappers would see EFAULT where nobody can help: io_uring is refused, as in many
/// containers, and what programs do then is read and write.
///
/// # Safety
/// As syscall(2); the arguments are words.
#[no_mangle]
pub unsafe extern "C" fn syscall(nr: libc::c_long, a: size_t, b: size_t, c: size_t, d: size_t, e: size_t, f: size_t) -> libc::c_long {
    if nr == libc::SYS_io_uring_setup && ours() {
        return super::answer(-(libc::ENOSYS as isize)) as libc::c_long;
    }
    let mut r = crate::sys::call(nr, [a, b, c, d, e, f]);
    if r == super::EFAULT && ours() {
        // Which argument it was is not known: each that points into far memory is touched, a page's worth.
        let pins = [a, b, c, d, e, f].map(|x| crate::pin::Pin::new(x as *const u8, 1));
        r = crate::sys::call(nr, [a, b, c, d, e, f]);
        drop(pins);
    }
    super::answer(r) as libc::c_long
}
