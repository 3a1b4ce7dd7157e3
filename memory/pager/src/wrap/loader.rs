//! Memory for the dynamic loader's own allocations, above all the tables of thread-local storage.
//! The C library reads and frees them with every signal blocked, as a thread ends: a page of them
//! that was away could not be brought in there. So they are never far (nor is what its own threads
//! read before anything else), and to give them back takes neither a lock nor the allocator, whose
//! own notes may be away.

use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use memory_core::blocks::Blocks;

const GRAIN_BYTES: usize = 64;
const GRAINS: usize = 1 << 20;

/// Where the grains are; before that, where no program has memory.
static BASE: AtomicUsize = AtomicUsize::new(1 << 63);
static BLOCKS: AtomicPtr<Blocks<'static>> = AtomicPtr::new(core::ptr::null_mut());

/// Before the pager runs; until then the loader's memory is the allocator's.
pub unsafe fn begin() {
    let blocks = sys::reserve(size_of::<Blocks>()).cast::<Blocks>();
    blocks.write(Blocks::new(sys::reserve_slice(GRAINS)));
    BASE.store(sys::reserve(GRAINS * GRAIN_BYTES) as usize, SeqCst);
    BLOCKS.store(blocks, SeqCst);
}

pub fn owns(at: *mut u8) -> bool {
    (at as usize).wrapping_sub(BASE.load(SeqCst)) < GRAINS * GRAIN_BYTES
}

fn block(at: *mut u8) -> usize {
    (at as usize - BASE.load(SeqCst)) / GRAIN_BYTES
}

/// A block; null if there is none so large.
pub unsafe fn take(bytes: usize) -> *mut u8 {
    let taken = BLOCKS.load(SeqCst).as_ref().and_then(|b| b.take(bytes.div_ceil(GRAIN_BYTES)));
    taken.map_or(core::ptr::null_mut(), |block| (BASE.load(SeqCst) + block * GRAIN_BYTES) as *mut u8)
}

/// # Safety
/// A block that [`take`] gave.
pub unsafe fn give(at: *mut u8) {
    (*BLOCKS.load(SeqCst)).give(block(at));
}

/// Bytes that fit into a block.
///
/// # Safety
/// A block that [`take`] gave.
pub unsafe fn room(at: *mut u8) -> usize {
    (*BLOCKS.load(SeqCst)).grains(block(at)) * GRAIN_BYTES
}
