//! Functions of the C library that the pager replaces, by their own names.
//!
//! Each behaves like the original. It handles memory of the region itself, and repeats calls that
//! meet absent pages.

mod checked;
mod descriptor;
pub mod heap;
mod identity;
mod io;
mod loader;
mod memory;
mod names;
mod path;
mod pieces;
pub mod process;
pub mod signal;
mod small;
mod spawn;
mod stdio;
mod sync;
mod syscall;
mod threads;
mod zerocopy;

/// Sets `errno` from a kernel's result, as the C library does.
pub unsafe fn answer(r: isize) -> isize {
    unsafe {
        if r < 0 {
            *libc::__errno_location() = -r as i32;
            return -1;
        }
        r
    }
}

pub const EFAULT: isize = -(libc::EFAULT as isize);
