//! How pages change their place, between the program and the frames.
//!
//! The kernel moves them without a copy (UFFDIO_MOVE). Older kernels cannot, so the pager copies
//! them and returns their old memory. A page of the program is protected first. Otherwise a write
//! between the copy and the return would be lost.

use crate::memory::Memory;
use crate::uffd::{self, Uffd};
use crate::{mode, sys};
use memory_core::PAGE_BYTES;

/// Pages that exist twice during a copy: as many as a processor's cache holds.
const COPY_PAGES: usize = 32;

impl Memory {
    /// Moves adjacent pages of the program to adjacent empty frames. Returns how many have moved
    /// before the first one that stays, because a device may write into it.
    pub fn take_out(&self, frame: u32, page: u32, n: usize) -> usize {
        let (to, from, bytes) = (self.frame(frame), self.at(page), n * PAGE_BYTES);
        unsafe {
            if mode::moves() {
                return self.move_out(to, from, bytes) / PAGE_BYTES;
            }
            Uffd.protect(from, bytes);
            self.copy(to, from, n);
            n
        }
    }

    /// Moves bytes of the program to empty frames; returns how many. The kernel moves no page that
    /// a child shares, or has shared. A write fault gives the program a page of its own.
    unsafe fn move_out(&self, to: *mut u8, from: *mut u8, bytes: usize) -> usize {
        unsafe {
            let (mut done, mut is_own) = (0, false);
            while let Err((e, moved)) = Uffd.move_pages(to.add(done), from.add(done), bytes - done)
            {
                done += moved;
                if e != libc::EBUSY as isize || is_own {
                    return done;
                }
                let rest = (from.add(done), bytes - done);
                sys!(libc::SYS_madvise, rest.0, rest.1, libc::MADV_POPULATE_WRITE);
                is_own = true;
            }
            bytes
        }
    }

    /// Moves the memory of a frame to an empty frame. Returns whether that succeeded.
    pub fn shift(&self, to: u32, from: u32) -> bool {
        let (to, from) = (self.frame(to), self.frame(from));
        if mode::moves() {
            return unsafe { Uffd.move_pages(to, from, PAGE_BYTES).is_ok() };
        }
        self.copy(to, from, 1);
        true
    }

    /// Makes a page of zeros, with the memory of a frame. `zeros` is a page of zeros.
    pub fn put_zeros(&self, to: *mut u8, frame: u32, zeros: *const u8) {
        let from = self.frame(frame);
        if mode::moves() {
            unsafe { core::ptr::write_bytes(from, 0, PAGE_BYTES) };
            self.put(to, frame, 1);
            return;
        }
        self.empty(from, 1);
        unsafe { Uffd.copy(to, zeros, PAGE_BYTES) };
    }

    /// Moves the memory of frames to pages. Copies where the kernel cannot move: the memory is
    /// shared with a child, or the program has locked the page by a bare system call.
    pub fn put(&self, to: *mut u8, frame: u32, n: usize) {
        if !mode::moves() {
            return self.copy(to, self.frame(frame), n);
        }
        let (mut to, mut from, mut left) = (to, self.frame(frame), n * PAGE_BYTES);
        while left > 0 {
            match unsafe { Uffd.move_pages(to, from, left) } {
                Ok(()) => return,
                Err((e, done)) if [libc::EBUSY, libc::EINVAL].contains(&(e as i32)) => unsafe {
                    (to, from, left) = (to.add(done), from.add(done), left - done);
                    self.copy(to, from, 1);
                    (to, from, left) =
                        (to.add(PAGE_BYTES), from.add(PAGE_BYTES), left - PAGE_BYTES);
                },
                // The destination has only the mark of a lost page, which the move carried along.
                Err((e, done))
                    if e == libc::EEXIST as isize && !unsafe { uffd::is_there(to.add(done)) } =>
                unsafe {
                    (to, from, left) = (to.add(done), from.add(done), left - done);
                    self.empty(to, 1);
                },
                Err((e, _)) => sys::die(format_args!("a page cannot be brought in (error {e})")),
            }
        }
    }

    /// Copies adjacent pages to absent ones, and returns their old memory to the kernel.
    fn copy(&self, to: *mut u8, from: *mut u8, n: usize) {
        for first in (0..n).step_by(COPY_PAGES) {
            let some = COPY_PAGES.min(n - first);
            let [to, from] = [to, from].map(|at| at.wrapping_add(first * PAGE_BYTES));
            if !unsafe { Uffd.copy(to, from, some * PAGE_BYTES) } {
                sys::die(format_args!("a page was there before it was brought in"));
            }
            self.empty(from, some);
        }
    }
}
