//! fork and exec.

use super::answer;
use super::spawn::Texts;
use crate::atfork;
use crate::pin::pin_text;
use crate::{next, sys};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use libc::{c_char, c_int, c_void};

type Hook = Option<unsafe extern "C" fn()>;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// The function behind pthread_atfork. The pager's handlers are registered first. So they run last
/// before a fork, when an allocator has taken its locks, and first after it, before the allocator's
/// handlers touch far memory.
///
/// # Safety
/// As pthread_atfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Hook,
    parent: Hook,
    child: Hook,
    dso: *mut c_void,
) -> c_int {
    unsafe {
        let real = next!(__register_atfork: fn(Hook, Hook, Hook, *mut c_void) -> c_int);
        if !REGISTERED.swap(true, SeqCst) {
            real(
                Some(atfork::prepare),
                Some(atfork::parent),
                Some(atfork::child),
                core::ptr::null_mut(),
            );
        }
        real(prepare, parent, child, dso)
    }
}

/// Registers the pager's handlers, unless `__register_atfork` did so already.
pub unsafe fn register() {
    unsafe {
        if !REGISTERED.swap(true, SeqCst) {
            let real = next!(__register_atfork: fn(Hook, Hook, Hook, *mut c_void) -> c_int);
            real(
                Some(atfork::prepare),
                Some(atfork::parent),
                Some(atfork::child),
                core::ptr::null_mut(),
            );
        }
    }
}

/// Forks with the pager's handlers only.
///
/// # Safety
/// As _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    unsafe { forked(|| next!(_Fork: fn() -> c_int)() as isize) as c_int }
}

/// Makes a call that creates a child, between the pager's fork handlers. The call returns its
/// result as the kernel or as the C library does.
pub unsafe fn forked(call: impl FnOnce() -> isize) -> isize {
    unsafe {
        atfork::prepare();
        match call() {
            0 => {
                atfork::child();
                0
            }
            r => {
                atfork::parent();
                if r < -1 { answer(r) } else { r }
            }
        }
    }
}

/// Behaves like fork: a child that shares this memory would leave its own connections in it.
///
/// # Safety
/// As vfork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> c_int {
    unsafe { libc::fork() }
}

/// # Safety
/// As execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    unsafe {
        let r = sys!(libc::SYS_execve, path, argv, envp);
        if r != super::EFAULT {
            return answer(r) as c_int;
        }
        let _pins = (pin_text(path), Texts::pin(argv), Texts::pin(envp));
        answer(sys!(libc::SYS_execve, path, argv, envp)) as c_int
    }
}

/// # Safety
/// As execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    unsafe {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        execve(path, argv, environ)
    }
}
