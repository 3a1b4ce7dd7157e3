//! mmap and its relatives: large private anonymous mappings come from the region.

use super::{answer, promise};
use crate::pager::{Pager, pager};
use crate::pin::is_far;
use crate::sys;
use libc::{c_int, c_uint, c_void, off_t, size_t};
use memory_core::PAGE_BYTES;

/// Smaller mappings stay local: they are not worth a fault.
const FAR_BYTES_MIN: usize = 64 << 10;
/// Mappings of this size or more begin at a multiple of 2 MiB, as allocators require.
const ALIGN_PAGES: u32 = 512;
/// Pages that a growing mapping moves in one step.
const MOVED_PAGES: u32 = 256;

unsafe fn kernel_mmap(
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    unsafe {
        answer(sys!(libc::SYS_mmap, at, bytes, prot, flags, fd as isize, offset)) as *mut c_void
    }
}

fn wanted(bytes: usize, prot: c_int, flags: c_int, fd: c_int) -> bool {
    let never = libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED
        | libc::MAP_32BIT;
    fd == -1
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & never == 0
        && prot & libc::PROT_WRITE != 0
        && prot & libc::PROT_EXEC == 0
        && bytes >= FAR_BYTES_MIN
}

/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    unsafe {
        let Some(pager) = pager() else { return kernel_mmap(at, bytes, prot, flags, fd, offset) };
        if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
            return fixed(pager, at, bytes, prot, flags, fd, offset);
        }
        if !wanted(bytes, prot, flags, fd) {
            return kernel_mmap(at, bytes, prot, flags, fd, offset);
        }
        match take(pager, bytes.div_ceil(PAGE_BYTES)) {
            Some(first) => pager.memory.at(first).cast(),
            None => answer(-(libc::ENOMEM as isize)) as *mut c_void,
        }
    }
}

/// Takes pages of the region, unless the program would then exceed local and far memory.
fn take(pager: &Pager, pages: usize) -> Option<u32> {
    let mut g = pager.lock();
    let capacity = g.heart.slots.count() + g.heart.limit();
    if g.heart.in_use() + pages > capacity && pages > capacity / 64 {
        return None;
    }
    let align = if pages >= ALIGN_PAGES as usize { ALIGN_PAGES } else { 1 };
    g.spans.take(u32::try_from(pages).ok()?, align)
}

/// Maps memory at a given address. Over far memory, only an empty mapping of the same kind is
/// possible.
unsafe fn fixed(
    pager: &Pager,
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    unsafe {
        if !is_far(at.cast(), bytes) {
            return kernel_mmap(at, bytes, prot, flags, fd, offset);
        }
        if flags & libc::MAP_FIXED_NOREPLACE != 0 {
            return answer(-(libc::EEXIST as isize)) as *mut c_void;
        }
        let never = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
        let plain = fd == -1
            && flags & libc::MAP_ANONYMOUS != 0
            && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
            && flags & never == 0
            && prot & libc::PROT_EXEC == 0;
        match pager.memory.whole(at.cast(), bytes) {
            Some((first, pages)) if plain => {
                pager.discard(first, pages);
                promise::forget(pager, first, pages);
                at
            }
            _ => answer(-(libc::EINVAL as isize)) as *mut c_void,
        }
    }
}

/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    unsafe { mmap(at, bytes, prot, flags, fd, offset) }
}

/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, bytes: size_t) -> c_int {
    unsafe {
        let Some(pager) = pager().filter(|_| is_far(at.cast(), bytes)) else {
            return answer(sys!(libc::SYS_munmap, at, bytes)) as c_int;
        };
        let Some((first, pages)) = pager.memory.whole(at.cast(), bytes) else {
            return answer(-(libc::EINVAL as isize)) as c_int;
        };
        give(pager, first, pages);
        0
    }
}

fn give(pager: &Pager, first: u32, pages: u32) {
    if pages > 0 {
        pager.discard(first, pages);
        promise::forget(pager, first, pages);
        pager.lock().spans.give(first, pages);
    }
}

/// Far memory is always readable and writable: a request for fewer rights is accepted without
/// effect. A request for execution is refused.
///
/// # Safety
/// As mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(at: *mut c_void, bytes: size_t, prot: c_int) -> c_int {
    unsafe {
        if !is_far(at.cast(), bytes) {
            return answer(sys!(libc::SYS_mprotect, at, bytes, prot)) as c_int;
        }
        answer(if prot & libc::PROT_EXEC == 0 { 0 } else { -(libc::EACCES as isize) }) as c_int
    }
}

/// The keys of a processor do not protect far memory, so a key is refused. Without one (-1), and
/// with the key of all memory (0), this is mprotect.
///
/// # Safety
/// As pkey_mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    bytes: size_t,
    prot: c_int,
    key: c_int,
) -> c_int {
    unsafe {
        if !is_far(at.cast(), bytes) {
            return answer(sys!(libc::SYS_pkey_mprotect, at, bytes, prot, key as isize)) as c_int;
        }
        if key > 0 {
            return answer(-(libc::EINVAL as isize)) as c_int;
        }
        mprotect(at, bytes, prot)
    }
}

/// # Safety
/// As mremap(2); `target` counts only with MREMAP_FIXED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    unsafe {
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let Some(pager) = pager()
            .filter(|_| is_far(at.cast(), old.max(1)) || fixed && is_far(target.cast(), new))
        else {
            return answer(sys!(libc::SYS_mremap, at, old, new, flags, target)) as *mut c_void;
        };
        let stays = flags & libc::MREMAP_DONTUNMAP != 0;
        let known = flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) == 0;
        let (Some((first, have)), true) = (pager.memory.whole(at.cast(), old), known) else {
            return answer(-(libc::EINVAL as isize)) as *mut c_void;
        };
        let want = u32::try_from(new.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        if new == 0 || stays && (!may_move || want != have) {
            return answer(-(libc::EINVAL as isize)) as *mut c_void;
        }
        if want <= have && !stays {
            give(pager, first + want, have - want);
            return at;
        }
        let to = if may_move { take(pager, want as usize) } else { None };
        let Some(to) = to else { return answer(-(libc::ENOMEM as isize)) as *mut c_void };
        promise::carry(pager, to, want);
        // Pages that were never touched stay untouched. Few pages exist twice at any time.
        for from in (0..have).step_by(MOVED_PAGES as usize) {
            let pages = MOVED_PAGES.min(have - from);
            for k in (from..from + pages).filter(|k| pager.memory.is_used(first + k)) {
                pager
                    .memory
                    .at(to + k)
                    .copy_from_nonoverlapping(pager.memory.at(first + k), PAGE_BYTES);
            }
            if stays {
                pager.discard(first + from, pages);
            } else {
                give(pager, first + from, pages);
            }
        }
        pager.memory.at(to).cast()
    }
}

/// Memory that may be away cannot be locked. Programs continue without the lock.
///
/// # Safety
/// As mlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(at: *const c_void, bytes: size_t) -> c_int {
    unsafe {
        let r = if is_far(at.cast(), bytes) {
            -(libc::ENOMEM as isize)
        } else {
            sys!(libc::SYS_mlock, at, bytes)
        };
        answer(r) as c_int
    }
}

/// # Safety
/// As mlock2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(at: *const c_void, bytes: size_t, flags: c_uint) -> c_int {
    unsafe {
        let r = if is_far(at.cast(), bytes) {
            -(libc::ENOMEM as isize)
        } else {
            sys!(libc::SYS_mlock2, at, bytes, flags)
        };
        answer(r) as c_int
    }
}

/// # Safety
/// As mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    unsafe {
        let r = if pager().is_some() {
            -(libc::ENOMEM as isize)
        } else {
            sys!(libc::SYS_mlockall, flags)
        };
        answer(r) as c_int
    }
}
