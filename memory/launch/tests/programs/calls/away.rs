//! Memory, and how it is sent away: by touching so much other memory that it leaves.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

pub const PAGE: usize = 4096;
const BIG: usize = 48 << 20;

/// The last [`sevens`], for signal handlers.
pub static HELD: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Memory that is touched so that other memory leaves.
pub struct Big(*mut u8);

impl Big {
    pub unsafe fn new() -> Big {
        unsafe {
            // Memory that the allocator took before the pager started is always local. Use it up
            // first, in every size.
            for size in (3..13).map(|n| 1usize << n).chain([552, 20_000]) {
                for _ in 0..(3 << 20) / size {
                    libc::malloc(size).cast::<u8>().write_volatile(1);
                }
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            Big(libc::mmap(null_mut(), BIG, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
                .cast())
        }
    }

    pub unsafe fn sweep(&self) {
        unsafe {
            for _ in 0..2 {
                for i in (0..BIG).step_by(PAGE) {
                    *self.0.add(i) = self.0.add(i).read_volatile().wrapping_add(1);
                }
            }
        }
    }

    /// Sweeps until a byte's page is away.
    pub unsafe fn send_away(&self, at: *const u8) {
        unsafe {
            self.send_all_away(&[at]);
        }
    }

    pub unsafe fn send_all_away(&self, places: &[*const u8]) {
        unsafe {
            for _ in 0..20 {
                self.sweep();
                if !places.iter().any(|&at| is_there(at)) {
                    return;
                }
            }
            panic!(
                "{} of {} do not leave",
                places.iter().filter(|&&at| is_there(at)).count(),
                places.len()
            );
        }
    }
}

pub unsafe fn is_there(at: *const u8) -> bool {
    unsafe {
        let mut there = 0u8;
        libc::mincore((at as usize / PAGE * PAGE) as *mut c_void, PAGE, &mut there);
        there & 1 != 0
    }
}

/// A megabyte of sevens.
pub unsafe fn sevens() -> *mut u8 {
    unsafe {
        let at = libc::malloc(1 << 20).cast::<u8>();
        at.write_bytes(7, 1 << 20);
        HELD.store(at, SeqCst);
        at
    }
}
