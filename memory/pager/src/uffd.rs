//! userfaultfd by its ioctls (the crates lack MOVE and write protection).

use crate::sys::{Lock, apart};
use crate::{descriptor, mode, sys};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use memory_core::PAGE_BYTES;

const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MOVE: u64 = 1 << 16;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 2;
const USER_MODE_ONLY: i32 = 1;

const fn iowr(nr: u64, bytes: u64) -> u64 {
    3 << 30 | bytes << 16 | 0xaa << 8 | nr
}

/// Whether a page has memory.
pub unsafe fn is_there(at: *mut u8) -> bool {
    unsafe {
        let mut there = 0u8;
        sys!(libc::SYS_mincore, at, PAGE_BYTES, &raw mut there);
        there & 1 != 0
    }
}

/// The number of the userfaultfd in the file table of the threads that use it.
static NUMBER: AtomicI32 = AtomicI32::new(-1);
/// The file behind it.
static FILE: AtomicU64 = AtomicU64::new(0);

/// Returns the number of the userfaultfd. Negative = there is none.
pub fn number() -> i32 {
    NUMBER.load(SeqCst)
}

/// Sets the number of the userfaultfd.
pub fn set_number(fd: i32) {
    NUMBER.store(fd, SeqCst);
}

/// Whether the number still refers to the userfaultfd.
pub fn is_known() -> bool {
    unsafe { descriptor::file(number()) == FILE.load(SeqCst) }
}

/// The number of the userfaultfd in the table apart.
static KEPT: AtomicI32 = AtomicI32::new(-1);
static RECOVERING: Lock = Lock::new();
/// Attempts to recover a userfaultfd while the program closes every descriptor.
const RECOVERIES_MAX: u32 = 100;

/// Records that the caller's table, which is the one apart, holds the userfaultfd.
pub fn keep() {
    KEPT.store(number(), SeqCst);
}

/// Frees the lock of a recovery, in a forked child.
pub fn become_child() {
    RECOVERING.reset();
}

/// Restores the userfaultfd in the program's table. Ends the program if that fails.
unsafe fn recover() {
    unsafe {
        RECOVERING.take();
        let mut closed = 0;
        // Another thread may replace the new number before it is moved to a high one.
        while !is_known() {
            match apart::from_apart(KEPT.load(SeqCst)) {
                fd if fd >= 0 => set_number(descriptor::adopt(fd as i32)),
                // The program may also have closed the pidfd before it was used.
                e if e == -(libc::EBADF as isize) && closed < RECOVERIES_MAX => closed += 1,
                e => sys::die(format_args!(
                    "the program has closed the pager's userfaultfd by a raw system call, and it \
                     cannot be had back (error {}; it takes Linux 6.9). The program is stopped \
                     before it reads a wrong byte",
                    -e
                )),
            }
        }
        RECOVERING.give();
    }
}

/// Creates a userfaultfd by the system call, or else by the device, which needs only the rights of
/// its file.
unsafe fn create(flags: i32) -> isize {
    unsafe {
        let fd = sys!(libc::SYS_userfaultfd, flags);
        if fd != -(libc::EPERM as isize) {
            return fd;
        }
        let device = sys!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/dev/userfaultfd".as_ptr(),
            libc::O_RDWR | libc::O_CLOEXEC,
            0
        );
        if device < 0 {
            return fd;
        }
        const USERFAULTFD_IOC_NEW: u64 = 0xaa << 8;
        let fd = sys!(libc::SYS_ioctl, device, USERFAULTFD_IOC_NEW, flags);
        sys!(libc::SYS_close, device);
        fd
    }
}

/// The userfaultfd of the region and the pool.
#[derive(Clone, Copy)]
pub struct Uffd;

impl Uffd {
    /// Opens a userfaultfd. With `sigbus`, a fault raises SIGBUS in the thread itself, which needs
    /// no privilege.
    pub unsafe fn open(sigbus: bool) -> Result<Uffd, isize> {
        unsafe {
            let flags =
                libc::O_CLOEXEC | libc::O_NONBLOCK | if sigbus { USER_MODE_ONLY } else { 0 };
            let fd = create(flags);
            if fd < 0 {
                return Err(-fd);
            }
            let fd = descriptor::adopt(fd as i32);
            let how = if mode::moves() { FEATURE_MOVE } else { FEATURE_WRITE_PROTECT };
            let mut api = [API, how | if sigbus { FEATURE_SIGBUS } else { 0 }, 0];
            match sys!(libc::SYS_ioctl, fd, iowr(0x3f, 24), api.as_mut_ptr()) {
                0 => FILE.store(descriptor::file(fd), SeqCst),
                e => return Err(-e),
            }
            set_number(fd);
            Ok(Uffd)
        }
    }

    /// Makes one call. If the program has replaced the descriptor, recovers it and calls again.
    unsafe fn ioctl(self, nr: u64, given: *mut u64) -> isize {
        unsafe {
            loop {
                let fd = number();
                let r = sys!(libc::SYS_ioctl, fd, nr, given);
                if r >= 0
                    || [libc::EAGAIN, libc::EEXIST, libc::EBUSY].contains(&(-r as i32))
                    || !mode::is_sigbus()
                {
                    return r;
                }
                if !is_known() {
                    recover();
                } else if fd == number() {
                    return r;
                }
            }
        }
    }

    /// Has faults in a range served by the userfaultfd.
    pub unsafe fn register(self, at: *mut u8, bytes: usize) {
        unsafe {
            let protect = if mode::moves() { 0 } else { REGISTER_WRITE_PROTECT };
            let mut r = [at as u64, bytes as u64, REGISTER_MISSING | protect, 0];
            let e = self.ioctl(iowr(0, 32), r.as_mut_ptr());
            if e < 0 {
                sys::die(format_args!("userfaultfd does not take the region (error {})", -e));
            }
        }
    }

    /// Moves pages without copying. Err: the error number, and the bytes that were moved before it.
    /// Kernel bug (6.18), once in millions of calls: the returned count is one page short. The next
    /// call then fails on a page that has moved already, which mincore shows.
    pub unsafe fn move_pages(
        self,
        dst: *mut u8,
        src: *mut u8,
        bytes: usize,
    ) -> Result<(), (isize, usize)> {
        unsafe {
            let (mut done, mut most) = (0, bytes);
            while done < bytes {
                let some = most.min(bytes - done) as u64;
                let mut m = [dst.add(done) as u64, src.add(done) as u64, some, 0, 0u64];
                let e = self.ioctl(iowr(5, 40), m.as_mut_ptr());
                let moved = m[4] as i64;
                if moved > 0 {
                    done += moved as usize;
                } else if e == -(libc::EINVAL as isize) && most > PAGE_BYTES {
                    // The program has split the mapping (madvise, mbind, prctl), and one call moves
                    // within one mapping.
                    most = PAGE_BYTES;
                } else if e < 0 && e != -(libc::EAGAIN as isize) {
                    if is_there(src.add(done)) || !is_there(dst.add(done)) {
                        return Err((-e, done));
                    }
                    done += PAGE_BYTES;
                }
            }
            Ok(())
        }
    }

    /// Copies pages in. Returns false if a page was present already.
    pub unsafe fn copy(self, dst: *mut u8, src: *const u8, bytes: usize) -> bool {
        unsafe {
            let (mut done, mut most) = (0, bytes);
            while done < bytes {
                let some = most.min(bytes - done) as u64;
                let mut c = [dst.add(done) as u64, src.add(done) as u64, some, 0, 0u64];
                let e = self.ioctl(iowr(3, 40), c.as_mut_ptr());
                let copied = c[4] as i64;
                if copied > 0 {
                    done += copied as usize;
                } else if e == -(libc::ENOENT as isize) && most > PAGE_BYTES {
                    most = PAGE_BYTES; // as in move_pages
                } else if e == -(libc::EEXIST as isize) {
                    return false;
                } else if e < 0 && e != -(libc::EAGAIN as isize) {
                    sys::die(format_args!("userfaultfd does not fill a page (error {})", -e));
                }
            }
            true
        }
    }

    /// Protects present pages against writes. A write is a fault from now on, and the page table
    /// has the state of the page.
    pub unsafe fn protect(self, at: *mut u8, bytes: usize) {
        unsafe {
            let mut p = [at as u64, bytes as u64, 1];
            loop {
                match self.ioctl(iowr(6, 24), p.as_mut_ptr()) {
                    0 => return,
                    e if e == -(libc::EAGAIN as isize) => {}
                    e => sys::die(format_args!(
                        "userfaultfd does not protect a page that leaves (error {})",
                        -e
                    )),
                }
            }
        }
    }

    /// Wakes the threads that wait for these pages.
    pub unsafe fn wake(self, at: *mut u8, bytes: usize) {
        unsafe {
            let mut r = [at as u64, bytes as u64];
            // UFFDIO_WAKE is an _IOR.
            self.ioctl(2u64 << 30 | 16 << 16 | 0xaa << 8 | 2, r.as_mut_ptr());
        }
    }
}
