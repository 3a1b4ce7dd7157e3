//! Address space for the pager's own tables, stacks and frames.

use super::message::die;
use super::raw::{call, sys};

/// Zeroed private memory that costs nothing until it is touched.
pub unsafe fn reserve(bytes: usize) -> *mut u8 {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at =
            sys!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0);
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
        let at = call(
            libc::SYS_mmap,
            [0, bytes, 3, (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize, usize::MAX, 0],
        );
        if at < 0 {
            die(format_args!("cannot reserve {bytes} bytes of shared memory (error {})", -at));
        }
        at as *mut u8
    }
}

/// Reserves a slice of `n` values. Zero bytes must be a valid value of the type.
pub unsafe fn reserve_slice<T>(n: usize) -> &'static mut [T] {
    unsafe {
        core::slice::from_raw_parts_mut(
            reserve((n * size_of::<T>()).next_multiple_of(4096)).cast(),
            n,
        )
    }
}
