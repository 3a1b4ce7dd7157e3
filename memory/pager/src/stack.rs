//! The pager's own stacks, for faults in threads of the program. A program's stack may be as small
//! as the system allows, or an alternate one with data right below it. A fault puts only the signal
//! frame there.

use crate::queue::Queue;
use crate::sys;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Faults that are served at once. Further threads wait, as they would for a transfer.
const STACKS: usize = 64;
const STACK_BYTES: usize = 64 << 10;

static BASE: AtomicUsize = AtomicUsize::new(0);
/// One bit for each stack in use.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static FREE: Queue = Queue::new();

/// Reserves the stacks, before the first fault.
pub unsafe fn begin() {
    unsafe {
        BASE.store(sys::reserve(STACKS * STACK_BYTES) as usize, SeqCst);
    }
}

/// Frees all stacks in a forked child, which has one thread.
pub fn become_child() {
    TAKEN.store(0, SeqCst);
    FREE.reset();
}

fn take() -> usize {
    loop {
        let seen = FREE.seen();
        let taken = TAKEN.load(SeqCst);
        let i = (!taken).trailing_zeros() as usize;
        if i == STACKS {
            FREE.wait(seen);
        } else if TAKEN.compare_exchange(taken, taken | 1 << i, SeqCst, SeqCst).is_ok() {
            return i;
        }
    }
}

/// Calls a function on one of the stacks. Signals are blocked.
pub fn run(f: extern "C" fn(usize), given: usize) {
    let i = take();
    let top = BASE.load(SeqCst) + (i + 1) * STACK_BYTES;
    unsafe { switch(top, f, given) };
    TAKEN.fetch_and(!(1 << i), SeqCst);
    FREE.wake(1);
}

/// Calls `f(given)` with the stack pointer at `top`, which is aligned for a call.
#[unsafe(naked)]
unsafe extern "C" fn switch(top: usize, f: extern "C" fn(usize), given: usize) {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret"
    )
}
