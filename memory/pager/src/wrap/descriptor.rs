//! Calls that close descriptors. The program cannot close those of the pager.

use super::answer;
use crate::{descriptor, next, sys};
use libc::{c_int, c_uint};

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    unsafe {
        if descriptor::is_ours(fd) {
            return answer(-(libc::EBADF as isize)) as c_int;
        }
        super::kind::forget(fd);
        next!(close: fn(c_int) -> c_int)(fd)
    }
}

/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    unsafe {
        (first..=last).take(4096).for_each(|fd| super::kind::forget(fd as c_int));
        let mut from = first;
        while let Some(ours) = descriptor::next(from).filter(|&ours| ours <= last) {
            if ours > from {
                let r = sys!(libc::SYS_close_range, from, ours - 1, flags);
                if r < 0 {
                    return answer(r) as c_int;
                }
            }
            from = ours + 1;
        }
        if from > last && first <= last {
            return 0;
        }
        answer(sys!(libc::SYS_close_range, from, last, flags)) as c_int
    }
}

/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    unsafe {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }
}

/// Treats a number of the pager like one above the program's limit.
///
/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    unsafe {
        if descriptor::is_ours(new) {
            return answer(-(libc::EBADF as isize)) as c_int;
        }
        super::kind::forget(new);
        next!(dup2: fn(c_int, c_int) -> c_int)(old, new)
    }
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    unsafe {
        if descriptor::is_ours(new) {
            return answer(-(libc::EBADF as isize)) as c_int;
        }
        super::kind::forget(new);
        next!(dup3: fn(c_int, c_int, c_int) -> c_int)(old, new, flags)
    }
}
