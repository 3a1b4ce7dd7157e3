//! Functions of the C library that the pager replaces, by their own names.
//!
//! Each behaves like the original. It handles memory of the region itself, and repeats calls that
//! meet absent pages.

mod checked;
mod descriptor;
pub mod heap;
mod identity;
mod io;
mod kind;
mod loader;
mod memory;
mod names;
mod path;
mod pieces;
mod poll;
pub mod process;
mod promise;
pub mod signal;
mod small;
mod socket;
mod spawn;
mod stdio;
mod sync;
mod syscall;
mod threads;
mod vector;
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

/// Converts the result of the C library's own function to the kernel's form. Wrappers call that
/// function because a waiting thread can be cancelled only there.
pub unsafe fn result(r: isize) -> isize {
    unsafe { if r == -1 { -(*libc::__errno_location() as isize) } else { r } }
}

pub const EFAULT: isize = -(libc::EFAULT as isize);
