//! Signals: SIGBUS stays ours and stays open; what the program does about it is remembered.

use crate::handler;
use crate::pager::pager;
use crate::pin::{is_far, keep_all, Pin};
use crate::{next, sys};
use libc::{c_int, c_void, sigaction as Action, sighandler_t, sigset_t, size_t};

type Real = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

pub unsafe fn real_sigaction() -> Real {
    next!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int)
}

pub fn ours() -> bool {
    pager().is_some_and(|p| p.hosts.config.sigbus)
}

/// # Safety
/// As sigaction(2).
#[no_mangle]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if signal != libc::SIGBUS || !ours() {
        if new.is_null() || !ours() {
            return real_sigaction()(signal, new, old);
        }
        // Whatever a handler blocks while it runs: it may touch far memory.
        let mut open = *new;
        libc::sigdelset(&mut open.sa_mask, libc::SIGBUS);
        return real_sigaction()(signal, &open, old);
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
pub unsafe fn without_sigbus(set: *const sigset_t) -> sigset_t {
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

/// # Safety
/// As sigsuspend(2).
#[no_mangle]
pub unsafe extern "C" fn sigsuspend(set: *const sigset_t) -> c_int {
    let open = without_sigbus(set);
    next!(sigsuspend: fn(*const sigset_t) -> c_int)(&open)
}

/// The stack of a handler stays: a signal frame cannot be written where a page is away.
///
/// # Safety
/// As sigaltstack(2).
#[no_mangle]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    if !new.is_null() && (*new).ss_flags & libc::SS_DISABLE == 0 {
        keep_all((*new).ss_sp.cast(), (*new).ss_size);
    }
    let (_new, _old) = (Pin::new(new.cast(), size_of::<libc::stack_t>()), Pin::new(old.cast(), size_of::<libc::stack_t>()));
    next!(sigaltstack: fn(*const libc::stack_t, *mut libc::stack_t) -> c_int)(new, old)
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
    match nr {
        libc::SYS_munmap if is_far(a as *const u8, b) => return super::memory::munmap(a as *mut c_void, b) as libc::c_long,
        libc::SYS_madvise if is_far(a as *const u8, b) => return super::memory::madvise(a as *mut c_void, b, c as c_int) as libc::c_long,
        // With memory of its own: a fork, whatever it is called.
        libc::SYS_fork => return super::process::forked(|| sys!(nr)) as libc::c_long,
        libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => {
            return super::process::forked(|| crate::sys::call(nr, [a, b, c, d, e, f])) as libc::c_long
        }
        _ => {}
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
