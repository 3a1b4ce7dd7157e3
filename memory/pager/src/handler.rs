//! Delivery of faults: as SIGBUS in the faulting thread, or as an event for a handler thread.

use crate::lead::Lead;
use crate::pager::{pager, running};
use crate::sys::{apart, follow};
use crate::uffd::{self, Uffd};
use crate::{fault, identity, mode, next, sys};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use memory_core::PAGE_BYTES;

/// The program's own handler for a SIGBUS outside far memory, and its flags.
static OTHER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static OTHER_FLAGS: AtomicUsize = AtomicUsize::new(0);

type Real = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;

/// Returns the C library's own `sigaction`.
pub unsafe fn real_sigaction() -> Real {
    unsafe { next!(sigaction: fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32) }
}

/// Installs the SIGBUS handler. All signals are blocked while it runs, so that it may hold the
/// pager's lock.
pub unsafe fn install() {
    unsafe {
        mode::choose_sigbus();
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        let mut before: libc::sigaction = core::mem::zeroed();
        real_sigaction()(libc::SIGBUS, &action, &mut before);
        OTHER.store(before.sa_sigaction, SeqCst);
        OTHER_FLAGS.store(before.sa_flags as usize, SeqCst);
    }
}

/// Stores the program's handler for SIGBUS; returns the one before.
pub fn swap_other(action: usize, flags: i32) -> (usize, i32) {
    (OTHER.swap(action, SeqCst), OTHER_FLAGS.swap(flags as usize, SeqCst) as i32)
}

/// Returns the program's handler for SIGBUS, and its flags.
pub fn other() -> (usize, i32) {
    (OTHER.load(SeqCst), OTHER_FLAGS.load(SeqCst) as i32)
}

/// Codes of a SIGBUS for memory that the machine has lost.
const BUS_MCEERR_AR: i32 = 4;
const BUS_MCEERR_AO: i32 = 5;

unsafe extern "C" fn on_sigbus(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    unsafe {
        let at = (*info).si_addr() as usize;
        if let Some((pager, page)) = pager().and_then(|p| Some((p, p.memory.page_of(at)?))) {
            if [BUS_MCEERR_AR, BUS_MCEERR_AO].contains(&(*info).si_code) {
                fault::poisoned(pager, page);
            }
            fault::fault(page);
            return;
        }
        match other() {
            (libc::SIG_DFL, _) | (libc::SIG_IGN, _) => {
                // Restore the default action: the same instruction faults again and ends the
                // program, as without the pager.
                let action = [0usize; 4];
                sys!(libc::SYS_rt_sigaction, signal, action.as_ptr(), 0, 8);
            }
            (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
                let f: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    core::mem::transmute(handler);
                f(signal, info, context)
            }
            (handler, _) => {
                let f: unsafe extern "C" fn(i32) = core::mem::transmute(handler);
                f(signal)
            }
        }
    }
}

/// Returns the page of the next fault, if one is pending.
fn next_fault() -> Option<u32> {
    const PAGEFAULT: u64 = 0x12;
    let mut message = [0u64; 4];
    let n = unsafe { sys!(libc::SYS_read, uffd::number(), message.as_mut_ptr(), 32) };
    if n == 32 && message[0] & 0xff == PAGEFAULT {
        running().memory.page_of(message[2] as usize)
    } else {
        None
    }
}

/// Runs a handler thread, which serves fault events. Programs need it if their system calls cannot
/// all be wrapped.
pub extern "C" fn handler() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-handler".as_ptr()) };
    apart::enter();
    let (pager, mut lead, mut served) = (running(), Lead::none(), false);
    loop {
        let kept = lead.is_held();
        lead.take();
        let Some(page) = next_fault() else {
            served = false;
            let mut list = [uffd::number(), identity::bell()].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            unsafe { sys!(libc::SYS_poll, list.as_mut_ptr(), list.len(), 1000) };
            follow::heed();
            continue;
        };
        if served && kept {
            Lead::crowds();
        }
        fault::serve(pager, page, &mut lead);
        unsafe { Uffd.wake(pager.memory.at(page), PAGE_BYTES) };
        served = true;
    }
}
