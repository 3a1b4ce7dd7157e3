//! Delivery of faults: as SIGBUS in the faulting thread, or as an event for a handler thread.

use crate::pager::{pager, running};
use crate::sys::Lock;
use crate::{apart, identity, sys, uffd, wrap};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use memory_core::PAGE_BYTES;

/// The program's own handler for a SIGBUS outside far memory, and its flags.
static OTHER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static OTHER_FLAGS: AtomicUsize = AtomicUsize::new(0);

static SIGBUS: AtomicBool = AtomicBool::new(false);

/// Whether the faulting thread serves its own fault.
pub fn is_sigbus() -> bool {
    SIGBUS.load(SeqCst)
}

/// Installs the SIGBUS handler. All signals are blocked while it runs, so that it may hold the
/// pager's lock.
pub unsafe fn install() {
    unsafe {
        SIGBUS.store(true, SeqCst);
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        let mut before: libc::sigaction = core::mem::zeroed();
        wrap::signal::real_sigaction()(libc::SIGBUS, &action, &mut before);
        OTHER.store(before.sa_sigaction, SeqCst);
        OTHER_FLAGS.store(before.sa_flags as usize, SeqCst);
    }
}

/// Stores the program's handler for SIGBUS; returns the one before.
pub fn swap_other(action: usize, flags: i32) -> (usize, i32) {
    (OTHER.swap(action, SeqCst), OTHER_FLAGS.swap(flags as usize, SeqCst) as i32)
}

pub fn other() -> (usize, i32) {
    (OTHER.load(SeqCst), OTHER_FLAGS.load(SeqCst) as i32)
}

/// Codes of a SIGBUS for memory that the machine has lost.
const BUS_MCEERR_AR: i32 = 4;
const BUS_MCEERR_AO: i32 = 5;

unsafe extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    unsafe {
        let at = (*info).si_addr() as usize;
        if let Some((pager, page)) = pager().and_then(|p| Some((p, p.page_of(at)?))) {
            if [BUS_MCEERR_AR, BUS_MCEERR_AO].contains(&(*info).si_code) {
                pager.poisoned(page);
            }
            pager.fault(page);
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
                let f: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = core::mem::transmute(handler);
                f(signal, info, context)
            }
            (handler, _) => {
                let f: unsafe extern "C" fn(i32) = core::mem::transmute(handler);
                f(signal)
            }
        }
    }
}

/// The leader is the one handler that waits for faults. It keeps the lead while it serves a fault,
/// unless further faults arrive meanwhile. Otherwise each fault would wake two threads.
static LEAD: Lock = Lock::new();
/// Fetches for which the leader passes on the lead in advance, because faults arrived while it
/// served one.
static CROWD: AtomicI32 = AtomicI32::new(0);
const CROWD_MAX: i32 = 32;

/// The lead over the other handlers, as one of them sees it.
pub struct Lead {
    held: bool,
}

impl Lead {
    /// Returns the state of a thread that is not the leader.
    pub fn none() -> Lead {
        Lead { held: false }
    }

    fn take(&mut self) {
        if !core::mem::replace(&mut self.held, true) {
            LEAD.take();
        }
    }

    /// Passes on the lead, before the caller sleeps for long.
    pub fn pass(&mut self) {
        if core::mem::take(&mut self.held) {
            LEAD.give();
        }
    }

    /// Passes on the lead if faults are frequent, before the caller waits for a memory host.
    pub fn pass_if_crowded(&mut self) {
        if self.held && CROWD.load(SeqCst) > 0 {
            CROWD.fetch_sub(1, SeqCst);
            self.pass();
        }
    }
}

/// Frees the lead, in a forked child.
pub fn become_child() {
    LEAD.reset();
}

/// Returns the page of the next fault, if one is pending.
fn next_fault() -> Option<u32> {
    const PAGEFAULT: u64 = 0x12;
    let mut message = [0u64; 4];
    let n = unsafe { sys!(libc::SYS_read, uffd::number(), message.as_mut_ptr(), 32) };
    let is_fault = n == 32 && message[0] & 0xff == PAGEFAULT;
    if is_fault { running().page_of(message[2] as usize) } else { None }
}

/// Runs a handler thread, which serves fault events. Programs need it if their system calls cannot
/// all be wrapped.
pub extern "C" fn handler() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-handler".as_ptr()) };
    apart::enter();
    let (pager, mut lead, mut served) = (running(), Lead::none(), false);
    loop {
        let kept = lead.held;
        lead.take();
        let Some(page) = next_fault() else {
            served = false;
            let mut list = [uffd::number(), identity::bell()].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            unsafe { sys!(libc::SYS_poll, list.as_mut_ptr(), list.len(), 1000) };
            identity::heed();
            continue;
        };
        if served && kept {
            CROWD.store(CROWD_MAX, SeqCst);
        }
        pager.serve(page, &mut lead);
        unsafe { pager.uffd().wake(pager.at(page), PAGE_BYTES) };
        served = true;
    }
}
