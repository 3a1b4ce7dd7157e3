//! System calls without the C library, so that `errno`, thread-local storage and the wrappers of
//! this library are not involved. Every call returns the kernel's result; a negative one is an
//! error number.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// One system call with up to six arguments.
///
/// # Safety
/// As the call itself.
pub unsafe fn call(nr: i64, a: [usize; 6]) -> isize {
    unsafe {
        let r: isize;
        asm!("syscall", inlateout("rax") nr as isize => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
        in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
        r
    }
}

/// `sys!(SYS_x, a, b, …)`: one call, arguments as `usize`.
#[macro_export]
macro_rules! sys {
    ($nr:expr $(, $a:expr)*) => {{
        let given = [$($a as usize),*];
        let mut six = [0usize; 6];
        six[..given.len()].copy_from_slice(&given);
        $crate::sys::call($nr, six)
    }};
}

/// Zeroed private memory that costs nothing until it is touched.
pub unsafe fn reserve(bytes: usize) -> *mut u8 {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = sys!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0);
        if at < 0 {
            die(format_args!("cannot reserve {bytes} bytes of address space (error {})", -at));
        }
        sys!(libc::SYS_madvise, at, bytes, libc::MADV_NOHUGEPAGE);
        at as *mut u8
    }
}

/// Reserves zeroed memory that is shared with forked children.
pub unsafe fn reserve_shared(bytes: usize) -> *mut u8 {
    unsafe {
        let at = call(libc::SYS_mmap, [0, bytes, 3, (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize, usize::MAX, 0]);
        if at < 0 {
            die(format_args!("cannot reserve {bytes} bytes of shared memory (error {})", -at));
        }
        at as *mut u8
    }
}

/// Reserves a slice of `n` values. Zero bytes must be a valid value of the type.
pub unsafe fn reserve_slice<T>(n: usize) -> &'static mut [T] {
    unsafe { core::slice::from_raw_parts_mut(reserve((n * size_of::<T>()).next_multiple_of(4096)).cast(), n) }
}

pub fn futex_wait(word: &AtomicU32, seen: u32, timeout_us: u64) {
    let t = libc::timespec { tv_sec: (timeout_us / 1_000_000) as i64, tv_nsec: (timeout_us % 1_000_000 * 1000) as i64 };
    unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, seen, &raw const t) };
    crate::identity::heed();
}

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

pub fn restore_signals(mask: u64) {
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// A mutex of three states: 0 free, 1 taken, 2 taken with waiters. Its holder has all signals
/// blocked, so no handler of the program, which may touch far memory, interrupts it.
pub struct Lock(AtomicU32);

impl Lock {
    pub const fn new() -> Self {
        Lock(AtomicU32::new(0))
    }

    pub fn take(&self) {
        if self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
            return;
        }
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
                return;
            }
        }
        while self.0.swap(2, SeqCst) != 0 {
            futex_wait(&self.0, 2, 100_000);
        }
    }

    /// Takes the lock if it is free.
    pub fn try_take(&self) -> bool {
        self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }

    /// Frees the lock in a forked child, which does not have the thread that held it.
    pub fn reset(&self) {
        self.0.store(0, SeqCst);
    }

    pub fn give(&self) {
        if self.0.swap(0, SeqCst) == 2 {
            futex_wake(&self.0, 1);
        }
    }
}

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
        let flags = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM | files;
        // The new thread pops the entry's address and calls it, with the stack aligned for a call.
        let top = reserve(STACK).add(STACK - 24).cast::<usize>();
        *top = body as usize;
        let mask = block_signals();
        let r: isize;
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "pop rax", "call rax", "ud2", "2:",
        inlateout("rax") libc::SYS_clone as isize => r, in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0, in("r8") 0,
        lateout("rcx") _, lateout("r11") _);
        restore_signals(mask);
        if r < 0 {
            die(format_args!("cannot start a thread (error {})", -r));
        }
        crate::identity::follow(r as i32);
    }
}

/// A fixed buffer to format into.
pub struct Text {
    pub bytes: [u8; 512],
    pub len: usize,
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Writes one line to standard error.
pub fn say(what: core::fmt::Arguments) {
    let mut t = Text { bytes: [0; 512], len: 0 };
    let _ = core::fmt::write(&mut t, format_args!("pando-mem: {what}\n"));
    unsafe { crate::apart::write_error(&t.bytes[..t.len]) };
}

/// Exit code of a program that lost its far memory.
pub const EXIT_LOST: i32 = 97;

/// Ends the program, before it can read a wrong byte.
pub fn die(what: core::fmt::Arguments) -> ! {
    say(what);
    loop {
        unsafe { sys!(libc::SYS_exit_group, EXIT_LOST) };
    }
}
