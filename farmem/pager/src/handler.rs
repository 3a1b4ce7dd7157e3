//! How a fault reaches the pager: as SIGBUS in the thread itself, or as an event for a handler thread.

use crate::pager::{pager, running};
use crate::{identity, sys};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use farmem_core::PAGE_BYTES;

/// What the program wants done on a SIGBUS that is not ours: its handler, and whether that takes three arguments.
static OTHER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static OTHER_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Installs the SIGBUS handler. All signals are blocked while it runs, so that it may hold the pager's lock.
pub unsafe fn install(real: unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32) {
    let mut action: libc::sigaction = core::mem::zeroed();
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    libc::sigfillset(&mut action.sa_mask);
    let mut before: libc::sigaction = core::mem::zeroed();
    real(libc::SIGBUS, &action, &mut before);
    OTHER.store(before.sa_sigaction, SeqCst);
    OTHER_FLAGS.store(before.sa_flags as usize, SeqCst);
}

/// Remembers a handler that the program wants for SIGBUS; returns the one it had.
pub fn swap_other(action: usize, flags: i32) -> (usize, i32) {
    (OTHER.swap(action, SeqCst), OTHER_FLAGS.swap(flags as usize, SeqCst) as i32)
}

pub fn other() -> (usize, i32) {
    (OTHER.load(SeqCst), OTHER_FLAGS.load(SeqCst) as i32)
}

unsafe extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let at = (*info).si_addr() as usize;
    if let Some((pager, page)) = pager().and_then(|p| Some((p, p.page_of(at)?))) {
        pager.fault(page);
        return;
    }
    match other() {
        (libc::SIG_DFL, _) | (libc::SIG_IGN, _) => {
            // Back to the default: the same instruction faults again and ends the program, as it would without us.
            let action = [0usize; 4];
            sys!(libc::SYS_rt_sigaction, signal, action.as_ptr(), 0, 8);
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            let f: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = core::mem::transmute(handler);
            f(signal, info, context)
        }
        (handler, _) => {
            let f: unsafe extern "C" fn(i32) = core::mem::transmute(handler);
            f(signal)
        }
    }
}

/// A thread that takes fault events, for programs whose system calls cannot all be wrapped.
pub extern "C" fn handler() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-handler".as_ptr()) };
    let pager = running();
    let mut message = [0u64; 4];
    loop {
        let fd = pager.uffd().0;
        let n = unsafe { sys!(libc::SYS_read, fd, message.as_mut_ptr(), 32) };
        if n != 32 {
            let waits = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut list = [waits(fd), waits(identity::bell())];
            unsafe { sys!(libc::SYS_poll, list.as_mut_ptr(), list.len(), 1000) };
            identity::heed();
            continue;
        }
        const PAGEFAULT: u64 = 0x12;
        if message[0] & 0xff == PAGEFAULT {
            if let Some(page) = pager.page_of(message[2] as usize) {
                pager.fault(page);
                unsafe { pager.uffd().wake(pager.at(page), PAGE_BYTES) };
            }
        }
    }
}
