//! Signals. The pager keeps SIGBUS for itself and unblocked, and stores the program's own action
//! for it.

use crate::handler::{self, real_sigaction};
use crate::pager::pager;
use crate::pin::{Pin, keep_all};
use crate::{mode, next};
use libc::{c_int, sigaction as Action, sighandler_t, sigset_t};

/// Whether the wrappers must repeat calls that meet absent pages: a pager runs, in sigbus mode.
pub fn ours() -> bool {
    pager().is_some() && mode::is_sigbus()
}

/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    unsafe {
        if signal != libc::SIGBUS || !ours() {
            if new.is_null() || !ours() {
                return real_sigaction()(signal, new, old);
            }
            // A handler may touch far memory, so SIGBUS stays open while it runs.
            let mut open = *new;
            libc::sigdelset(&mut open.sa_mask, libc::SIGBUS);
            return real_sigaction()(signal, &open, old);
        }
        let (action, flags) = if new.is_null() {
            handler::other()
        } else {
            handler::swap_other((*new).sa_sigaction, (*new).sa_flags)
        };
        if !old.is_null() {
            *old = core::mem::zeroed();
            ((*old).sa_sigaction, (*old).sa_flags) = (action, flags);
        }
        0
    }
}

/// # Safety
/// As signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, action: sighandler_t) -> sighandler_t {
    unsafe {
        if signal != libc::SIGBUS || !ours() {
            return next!(signal: fn(c_int, sighandler_t) -> sighandler_t)(signal, action);
        }
        handler::swap_other(action, 0).0
    }
}

/// Returns a copy of a mask without SIGBUS. The set itself may be in far memory, so it is read
/// here, in the program's own context.
pub unsafe fn without_sigbus(set: *const sigset_t) -> sigset_t {
    unsafe {
        let mut copy = *set;
        libc::sigdelset(&mut copy, libc::SIGBUS);
        copy
    }
}

/// # Safety
/// As pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    unsafe {
        let real = next!(pthread_sigmask: fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
        if set.is_null() || how == libc::SIG_UNBLOCK || !ours() {
            return real(how, set, old);
        }
        real(how, &without_sigbus(set), old)
    }
}

/// # Safety
/// As sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    unsafe {
        let real = next!(sigprocmask: fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
        if set.is_null() || how == libc::SIG_UNBLOCK || !ours() {
            return real(how, set, old);
        }
        real(how, &without_sigbus(set), old)
    }
}

/// # Safety
/// As sigsuspend(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(set: *const sigset_t) -> c_int {
    unsafe {
        let open = without_sigbus(set);
        next!(sigsuspend: fn(*const sigset_t) -> c_int)(&open)
    }
}

/// Keeps the stack of a handler local: the kernel cannot write a signal frame to an absent page.
///
/// # Safety
/// As sigaltstack(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    unsafe {
        if !new.is_null() && (*new).ss_flags & libc::SS_DISABLE == 0 {
            keep_all((*new).ss_sp.cast(), (*new).ss_size);
        }
        let (_new, _old) = (
            Pin::new(new.cast(), size_of::<libc::stack_t>()),
            Pin::new(old.cast(), size_of::<libc::stack_t>()),
        );
        next!(sigaltstack: fn(*const libc::stack_t, *mut libc::stack_t) -> c_int)(new, old)
    }
}
