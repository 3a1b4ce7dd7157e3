//! Memory for the dynamic loader's own allocations, such as the tables of thread-local storage.
//! glibc frees these tables at the end of a thread, with all signals blocked, so they must be
//! resident. The threads of the C library itself read theirs under the same condition. Freeing must
//! not take a lock or call the allocator, because the allocator's own data may be away.

use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use memory_core::blocks::Blocks;

const GRAIN_BYTES: usize = 64;
const GRAINS: usize = 1 << 20;

/// The address of the grains. Before `begin`, an address that no program has.
static BASE: AtomicUsize = AtomicUsize::new(1 << 63);
static BLOCKS: AtomicPtr<Blocks<'static>> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the memory, before the pager runs. Until then the loader uses the allocator.
pub unsafe fn begin() {
    unsafe {
        let blocks = sys::reserve(size_of::<Blocks>()).cast::<Blocks>();
        blocks.write(Blocks::new(sys::reserve_slice(GRAINS)));
        BASE.store(sys::reserve(GRAINS * GRAIN_BYTES) as usize, SeqCst);
        BLOCKS.store(blocks, SeqCst);
    }
}

pub fn owns(at: *mut u8) -> bool {
    (at as usize).wrapping_sub(BASE.load(SeqCst)) < GRAINS * GRAIN_BYTES
}

fn block(at: *mut u8) -> usize {
    (at as usize - BASE.load(SeqCst)) / GRAIN_BYTES
}

/// Returns a block, or null if no free one is large enough.
pub unsafe fn take(bytes: usize) -> *mut u8 {
    unsafe {
        let taken = BLOCKS.load(SeqCst).as_ref().and_then(|b| b.take(bytes.div_ceil(GRAIN_BYTES)));
        taken.map_or(core::ptr::null_mut(), |block| {
            (BASE.load(SeqCst) + block * GRAIN_BYTES) as *mut u8
        })
    }
}

/// # Safety
/// A block that [`take`] gave.
pub unsafe fn give(at: *mut u8) {
    unsafe {
        (*BLOCKS.load(SeqCst)).give(block(at));
    }
}

/// Returns the size of a block, bytes.
///
/// # Safety
/// A block that [`take`] gave.
pub unsafe fn room(at: *mut u8) -> usize {
    unsafe { (*BLOCKS.load(SeqCst)).grains(block(at)) * GRAIN_BYTES }
}
