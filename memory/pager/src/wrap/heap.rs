//! The allocator's functions. They show which pages belong to one object, and which buffers the C
//! library makes for itself. Its own system calls cannot be wrapped, so their buffers stay local.

use super::{loader, threads};
use crate::next;
use crate::pager::pager;
use crate::pin::{keep_block, release_block};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::{c_char, c_int, c_void, size_t};
use memory_core::PAGE_BYTES;

/// Programs find other objects by objects up to this size: entries, nodes, short names.
const SMALL_BYTES: usize = 256;

/// Records an allocation: one of more than a page, a small one, or one whose page is no longer part
/// of a larger one.
unsafe fn note(at: *mut c_void, bytes: usize) {
    let Some(pager) = pager().filter(|_| !at.is_null()) else { return };
    if bytes > SMALL_BYTES && bytes <= PAGE_BYTES {
        if let Some(page) =
            pager.memory.page_of(at as usize).filter(|&page| pager.memory.is_in_extent(page))
        {
            pager.lock().heart.note_shared(page);
        }
        return;
    }
    if bytes <= SMALL_BYTES {
        if let Some(page) =
            pager.memory.page_of(at as usize).filter(|&page| !pager.memory.knows_small(page))
        {
            pager.lock().heart.note_small(page);
        }
        return;
    }
    if let (Some(first), Some(last)) =
        (pager.memory.page_of(at as usize), pager.memory.page_of(at as usize + bytes - 1))
        && !pager.memory.knows_extent(first, last)
    {
        pager.lock().heart.note_extent(first, last - first + 1);
    }
}

/// The address range of a library's code.
struct Code([AtomicUsize; 2]);

/// The code of the C library, and of the dynamic loader.
static LIBRARY: Code = Code::new();
static LOADER: Code = Code::new();
/// Allocations of these sizes by the C library itself are buffers of streams and directories, which
/// it passes to the kernel.
const BUFFER_BYTES: RangeInclusive<usize> = 1 << 10..=64 << 10;

impl Code {
    const fn new() -> Code {
        Code([const { AtomicUsize::new(0) }; 2])
    }

    fn holds(&self, at: usize) -> bool {
        (self.0[0].load(Relaxed)..self.0[1].load(Relaxed)).contains(&at)
    }
}

unsafe extern "C" {
    fn __tls_get_addr(at: *mut c_void) -> *mut c_void;
}

/// Finds the code of the C library and of the loader, before the pager runs.
pub unsafe fn begin() {
    unsafe {
        loader::begin();
        unsafe extern "C" fn look(
            info: *mut libc::dl_phdr_info,
            _: size_t,
            _: *mut c_void,
        ) -> c_int {
            unsafe {
                let it = &*info;
                let functions = [
                    (&LIBRARY, libc::gnu_get_libc_version as *const () as usize),
                    (&LOADER, __tls_get_addr as *const () as usize),
                ];
                for segment in core::slice::from_raw_parts(it.dlpi_phdr, it.dlpi_phnum as usize) {
                    let from = it.dlpi_addr as usize + segment.p_vaddr as usize;
                    let to = from + segment.p_memsz as usize;
                    for (code, function) in functions {
                        if segment.p_type == libc::PT_LOAD && (from..to).contains(&function) {
                            code.0[0].store(from, Relaxed);
                            code.0[1].store(to, Relaxed);
                        }
                    }
                }
                0
            }
        }
        libc::dl_iterate_phdr(Some(look), core::ptr::null_mut());
    }
}

/// malloc(3). Passes the return address, which identifies the caller.
///
/// # Safety
/// As malloc(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    core::arch::naked_asm!("mov rsi, [rsp]", "jmp {}", sym allocate)
}

/// Whether an allocation by this caller must stay local.
fn is_local(caller: usize) -> bool {
    LOADER.holds(caller) || LIBRARY.holds(caller) && (threads::is_noting() || threads::is_its_own())
}

unsafe extern "C" fn allocate(bytes: size_t, caller: usize) -> *mut c_void {
    unsafe {
        if is_local(caller) {
            let at = loader::take(bytes);
            if !at.is_null() {
                return at.cast();
            }
        }
        let at = next!(malloc: fn(size_t) -> *mut c_void)(bytes);
        note(at, bytes);
        if BUFFER_BYTES.contains(&bytes) && !at.is_null() && LIBRARY.holds(caller) {
            keep_block(at.cast());
        }
        at
    }
}

/// calloc(3). Passes the return address like `malloc`.
///
/// # Safety
/// As calloc(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym allocate_zeros)
}

unsafe extern "C" fn allocate_zeros(count: size_t, bytes: size_t, caller: usize) -> *mut c_void {
    unsafe {
        if is_local(caller) {
            let all = count.saturating_mul(bytes);
            let at = loader::take(all);
            if !at.is_null() {
                at.write_bytes(0, all);
                return at.cast();
            }
        }
        let at = next!(calloc: fn(size_t, size_t) -> *mut c_void)(count, bytes);
        note(at, count.wrapping_mul(bytes));
        at
    }
}

unsafe extern "C" fn allocate_object(bytes: size_t) -> *mut c_void {
    unsafe {
        let at = next!(malloc: fn(size_t) -> *mut c_void)(bytes.max(1));
        note(at, bytes);
        at
    }
}

unsafe extern "C" fn allocate_aligned(bytes: size_t, align: size_t) -> *mut c_void {
    unsafe {
        let mut at = core::ptr::null_mut();
        posix_memalign(&mut at, align, bytes.max(1));
        at
    }
}

/// Defines the C++ operators: they allocate like malloc and record the allocation. Without memory
/// they jump to the operator itself, so an exception never passes through this code.
macro_rules! operators {
    ($($name:ident: $allocate:ident;)*) => {$(
        /// # Safety
        /// As the operator of this mangled name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(bytes: size_t, more: size_t) -> *mut c_void {
            unsafe extern "C" fn real() -> usize { unsafe {
                next!($name: fn(size_t, size_t) -> *mut c_void) as usize
            }}
            core::arch::naked_asm!(
                "push rdi", "push rsi", "sub rsp, 8", "call {allocate}",
                "add rsp, 8", "pop rsi", "pop rdi",
                "test rax, rax", "jz 2f", "ret",
                "2:", "push rdi", "push rsi", "sub rsp, 8", "call {real}",
                "add rsp, 8", "pop rsi", "pop rdi",
                "jmp rax",
                allocate = sym $allocate,
                real = sym real,
            )
        }
    )*};
}

operators! {
    _Znwm: allocate_object;
    _Znam: allocate_object;
    _ZnwmRKSt9nothrow_t: allocate_object;
    _ZnamRKSt9nothrow_t: allocate_object;
    _ZnwmSt11align_val_t: allocate_aligned;
    _ZnamSt11align_val_t: allocate_aligned;
}

/// # Safety
/// As free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(at: *mut c_void) {
    unsafe {
        if loader::owns(at.cast()) {
            return loader::give(at.cast());
        }
        release_block(at.cast());
        next!(free: fn(*mut c_void))(at)
    }
}

/// Copies a text of the program. The copy belongs to the program, not to the C library.
unsafe fn copied(from: *const c_char, len: usize) -> *mut c_char {
    unsafe {
        let at = allocate(len + 1, 0).cast::<c_char>();
        if !at.is_null() {
            at.copy_from_nonoverlapping(from, len);
            at.add(len).write(0);
        }
        at
    }
}

/// # Safety
/// As strdup(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strdup(text: *const c_char) -> *mut c_char {
    unsafe { copied(text, libc::strlen(text)) }
}

/// # Safety
/// As strndup(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strndup(text: *const c_char, most: size_t) -> *mut c_char {
    unsafe { copied(text, libc::strnlen(text, most)) }
}

/// realloc(3). Passes the return address like `malloc`.
///
/// # Safety
/// As realloc(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut c_void, bytes: size_t) -> *mut c_void {
    core::arch::naked_asm!("mov rdx, [rsp]", "jmp {}", sym reallocate)
}

unsafe extern "C" fn reallocate(old: *mut c_void, bytes: size_t, caller: usize) -> *mut c_void {
    unsafe {
        if old.is_null() {
            return allocate(bytes, caller);
        }
        if loader::owns(old.cast()) {
            let room = loader::room(old.cast());
            if bytes <= room {
                return old;
            }
            let mut at: *mut c_void = loader::take(bytes).cast();
            if at.is_null() {
                at = malloc(bytes);
            }
            if !at.is_null() {
                at.copy_from_nonoverlapping(old, room);
                loader::give(old.cast());
            }
            return at;
        }
        release_block(old.cast());
        let at = next!(realloc: fn(*mut c_void, size_t) -> *mut c_void)(old, bytes);
        note(at, bytes);
        at
    }
}

/// # Safety
/// As posix_memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    align: size_t,
    bytes: size_t,
) -> c_int {
    unsafe {
        let r =
            next!(posix_memalign: fn(*mut *mut c_void, size_t, size_t) -> c_int)(out, align, bytes);
        if r == 0 {
            note(*out, bytes);
        }
        r
    }
}

/// # Safety
/// As aligned_alloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    unsafe {
        let at = next!(aligned_alloc: fn(size_t, size_t) -> *mut c_void)(align, bytes);
        note(at, bytes);
        at
    }
}

/// # Safety
/// As memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: size_t, bytes: size_t) -> *mut c_void {
    unsafe {
        let at = next!(memalign: fn(size_t, size_t) -> *mut c_void)(align, bytes);
        note(at, bytes);
        at
    }
}

/// # Safety
/// As valloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    unsafe {
        let at = next!(valloc: fn(size_t) -> *mut c_void)(bytes);
        note(at, bytes);
        at
    }
}
