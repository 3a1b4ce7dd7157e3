//! The pager's own threads, started without the C library.

use super::follow::follow;
use super::message::die;
use super::raw::{block_signals, restore_signals};
use super::space::reserve;
use core::arch::asm;

/// Starts a thread without the C library, with all signals blocked. It shares the creator's
/// thread-local storage and must not use it. It must never return.
pub unsafe fn spawn(body: extern "C" fn() -> !) {
    unsafe {
        start(body, libc::CLONE_FILES);
    }
}

/// Starts a thread with its own file table, a copy of the caller's.
pub unsafe fn spawn_apart(body: extern "C" fn() -> !) {
    unsafe {
        start(body, 0);
    }
}

unsafe fn start(body: extern "C" fn() -> !, files: i32) {
    unsafe {
        const STACK: usize = 256 << 10;
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | files;
        // The new thread pops the entry's address and calls it, with the stack aligned for a call.
        let top = reserve(STACK).add(STACK - 24).cast::<usize>();
        *top = body as usize;
        let mask = block_signals();
        let r: isize;
        asm!(
            "syscall", "test rax, rax", "jnz 2f",
            "xor ebp, ebp", "pop rax", "call rax", "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => r,
            in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0, in("r8") 0,
            lateout("rcx") _, lateout("r11") _,
        );
        restore_signals(mask);
        if r < 0 {
            die(format_args!("cannot start a thread (error {})", -r));
        }
        follow(r as i32);
    }
}
