//! Advice and rarer calls on far memory. A caller trusts an answer of 0, with secrets or with its
//! guard pages. So what the pager does not do fails, with the error that a kernel without the call
//! gives.

use super::answer;
use crate::pager::{Pager, pager};
use crate::pin::is_far;
use crate::{next, sys};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use memory_core::PAGE_BYTES;

/// Most pieces of one call (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Whether some pages may have been left out of core dumps.
static LEAVES_OUT: AtomicBool = AtomicBool::new(false);

unsafe fn advise_kernel(pager: &Pager, first: u32, pages: u32, advice: c_int) -> isize {
    unsafe { sys!(libc::SYS_madvise, pager.memory.at(first), pages as usize * PAGE_BYTES, advice) }
}

/// Puts pages that are given back into core dumps again.
pub fn forget(pager: &Pager, first: u32, pages: u32) {
    if LEAVES_OUT.load(SeqCst) {
        unsafe { advise_kernel(pager, first, pages, libc::MADV_DODUMP) };
    }
}

/// Leaves the new place of a mapping out of core dumps, in case its old place was.
pub fn carry(pager: &Pager, first: u32, pages: u32) {
    if LEAVES_OUT.load(SeqCst) {
        unsafe { advise_kernel(pager, first, pages, libc::MADV_DONTDUMP) };
    }
}

/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    unsafe {
        let Some(pager) = pager().filter(|_| is_far(at.cast(), bytes)) else {
            return answer(sys!(libc::SYS_madvise, at, bytes, advice)) as c_int;
        };
        let Some((first, pages)) = pager.memory.whole(at.cast(), bytes) else {
            return answer(-(libc::EINVAL as isize)) as c_int;
        };
        answer(advise(pager, first, pages, advice)) as c_int
    }
}

unsafe fn advise(pager: &Pager, first: u32, pages: u32, advice: c_int) -> isize {
    unsafe {
        match advice {
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => {
                pager.discard(first, pages);
                0
            }
            libc::MADV_DONTDUMP | libc::MADV_DODUMP => {
                if advice == libc::MADV_DONTDUMP && !LEAVES_OUT.swap(true, SeqCst) {
                    pager.memory.leave_out_pool();
                }
                advise_kernel(pager, first, pages, advice)
            }
            // What holds anyway, and hints: a caller cannot see whether they are followed.
            // MADV_FREE promises nothing about the content.
            libc::MADV_DOFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_FREE
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE
            | libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT => 0,
            // MADV_DONTFORK, MADV_WIPEONFORK, MADV_GUARD_INSTALL, MADV_POPULATE_WRITE, …
            _ => -(libc::EINVAL as isize),
        }
    }
}

/// # Safety
/// As posix_madvise(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(at: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    unsafe {
        if !is_far(at.cast(), bytes) {
            return next!(posix_madvise: fn(*mut c_void, size_t, c_int) -> c_int)(
                at, bytes, advice,
            );
        }
        match advice {
            libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_WILLNEED | libc::POSIX_MADV_DONTNEED => 0,
            _ => libc::EINVAL,
        }
    }
}

/// Advice that the kernel gives to itself leaves every page as it is. Other advice would take pages
/// from the pager.
///
/// # Safety
/// As process_madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    of: c_int,
    pieces: *const libc::iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    unsafe {
        let harmless =
            [libc::MADV_WILLNEED, libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_COLLAPSE];
        let reaches_far = || {
            !pieces.is_null()
                && (0..count.min(PIECES_MAX)).any(|i| {
                    let piece = &*pieces.add(i);
                    is_far(piece.iov_base.cast(), piece.iov_len)
                })
        };
        if pager().is_some() && !harmless.contains(&advice) && reaches_far() {
            return answer(-(libc::EINVAL as isize));
        }
        answer(sys!(libc::SYS_process_madvise, of, pieces, count, advice, flags))
    }
}

/// # Safety
/// As remap_file_pages(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remap_file_pages(
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    unsafe {
        let r = if is_far(at.cast(), bytes) {
            -(libc::EINVAL as isize)
        } else {
            sys!(libc::SYS_remap_file_pages, at, bytes, prot, page, flags)
        };
        answer(r) as c_int
    }
}

/// Sealed memory could not be given back.
///
/// # Safety
/// As mseal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(at: *mut c_void, bytes: size_t, flags: libc::c_ulong) -> c_int {
    unsafe {
        let r = if is_far(at.cast(), bytes) {
            -(libc::EINVAL as isize)
        } else {
            sys!(libc::SYS_mseal, at, bytes, flags)
        };
        answer(r) as c_int
    }
}

/// A shared segment does not replace far memory.
///
/// # Safety
/// As shmat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    unsafe {
        if flags & libc::SHM_REMAP != 0 && pager().is_some() {
            let mut segment: libc::shmid_ds = core::mem::zeroed();
            let known = sys!(libc::SYS_shmctl, id, libc::IPC_STAT, &raw mut segment) == 0;
            // A segment of unknown size is attached by the kernel only if it can be read.
            let bytes = if known { segment.shm_segsz } else { 1 };
            if is_far(at.cast(), bytes) {
                return answer(-(libc::EINVAL as isize)) as *mut c_void;
            }
        }
        answer(sys!(libc::SYS_shmat, id, at, flags)) as *mut c_void
    }
}
