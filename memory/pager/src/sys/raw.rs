//! The calls themselves. Every call returns the kernel's result; a negative one is an error number.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// One system call with up to six arguments.
///
/// # Safety
/// As the call itself.
pub unsafe fn call(nr: i64, a: [usize; 6]) -> isize {
    unsafe {
        let r: isize;
        asm!(
            "syscall", inlateout("rax") nr as isize => r,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack),
        );
        r
    }
}

/// `sys!(SYS_x, a, b, …)`: one call, arguments as `usize`.
macro_rules! sys {
    ($nr:expr_2021 $(, $a:expr_2021)*) => {{
        let given = [$($a as usize),*];
        let mut six = [0usize; 6];
        six[..given.len()].copy_from_slice(&given);
        $crate::sys::raw::call($nr, six)
    }};
}
pub(crate) use sys;

/// Wakes at most `n` threads that wait for the word.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, n) };
}

/// Nanoseconds of the monotonic clock (from the vDSO: no system call).
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Blocks every signal; returns the mask to restore.
pub fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    old
}

/// Sets the mask of blocked signals.
pub fn restore_signals(mask: u64) {
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}
