//! The allocator's functions, to learn which pages belong to one object.

use crate::next;
use crate::pager::pager;
use farmem_core::PAGE_BYTES;
use libc::{c_int, c_void, size_t};

/// Notes an allocation of more than a page.
unsafe fn note(at: *mut c_void, bytes: usize) {
    if bytes <= PAGE_BYTES || at.is_null() {
        return;
    }
    let Some(pager) = pager() else { return };
    if let (Some(first), Some(last)) = (pager.page_of(at as usize), pager.page_of(at as usize + bytes - 1)) {
        if !pager.knows_extent(first, last) {
            pager.lock().heart.note_extent(first, last - first + 1);
        }
    }
}

/// # Safety
/// As malloc(3).
#[no_mangle]
pub unsafe extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    let at = next!(malloc: fn(size_t) -> *mut c_void)(bytes);
    note(at, bytes);
    at
}

/// # Safety
/// As realloc(3).
#[no_mangle]
pub unsafe extern "C" fn realloc(old: *mut c_void, bytes: size_t) -> *mut c_void {
    let at = next!(realloc: fn(*mut c_void, size_t) -> *mut c_void)(old, bytes);
    note(at, bytes);
    at
}

/// # Safety
/// As posix_memalign(3).
#[no_mangle]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: size_t, bytes: size_t) -> c_int {
    let r = next!(posix_memalign: fn(*mut *mut c_void, size_t, size_t) -> c_int)(out, align, bytes);
    if r == 0 {
        note(*out, bytes);
    }
    r
}

/// # Safety
/// As aligned_alloc(3).
#[no_mangle]
pub unsafe extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    let at = next!(aligned_alloc: fn(size_t, size_t) -> *mut c_void)(align, bytes);
    note(at, bytes);
    at
}
