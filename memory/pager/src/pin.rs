//! Pins: pages that a system call uses. The kernel does not raise SIGBUS for its own accesses but
//! fails the call with EFAULT. So the pages are fetched first, and stay until the call has ended.

use crate::pager::{Pager, pager};
use crate::{fault, mode, sys};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use memory_core::PAGE_BYTES;
use memory_core::page::{State, flag};
use memory_core::stats::add;

/// A pinned range of far memory.
pub struct Pin {
    first: u32,
    pages: u32,
}

/// Most bytes that are pinned at a time. A call with more transfers less, as the kernel itself may
/// do.
pub const PIN_BYTES_MAX: usize = 256 << 10;

/// Whether a range has a byte in far memory.
pub fn is_far(at: *const u8, bytes: usize) -> bool {
    pager().is_some_and(|p| p.memory.overlaps(at as usize, bytes))
}

/// Whether the page of a byte is away. Reads without the lock: the table may be behind the kernel's
/// state.
pub fn is_away(at: *const u8) -> bool {
    pager()
        .is_some_and(|p| p.memory.page_of(at as usize).is_some_and(|page| p.memory.is_away(page)))
}

impl Pin {
    /// Fetches the range and pins it, in sigbus mode. In thread mode, handler threads serve the
    /// kernel's accesses.
    pub fn new(at: *const u8, bytes: usize) -> Option<Pin> {
        if mode::is_sigbus() { Pin::always(at, bytes) } else { None }
    }

    /// Fetches the range and pins it, in every mode.
    fn always(at: *const u8, bytes: usize) -> Option<Pin> {
        let pager = pager()?;
        if !is_far(at, bytes) {
            return None;
        }
        let first = pager.memory.page_of(at as usize)?;
        let last = pager.memory.page_of(at as usize + bytes - 1)?;
        add(&pager.stats.syscalls_retried, 1);
        for page in first..=last {
            hold(pager, page);
        }
        Some(Pin { first, pages: last - first + 1 })
    }

    /// Whether this pin covers all of a range.
    pub fn covers(&self, at: *const u8, bytes: usize) -> bool {
        let inside = |at: usize| {
            pager()
                .and_then(|p| p.memory.page_of(at))
                .is_some_and(|page| (self.first..self.first + self.pages).contains(&page))
        };
        inside(at as usize) && inside(at as usize + bytes - 1)
    }
}

fn hold(pager: &Pager, page: u32) {
    loop {
        let mut g = pager.lock();
        let p = &mut g.heart.pages[page as usize];
        if p.state == State::Resident {
            if p.pins == u8::MAX {
                // The count is at its maximum: the page stays for good.
                p.flags |= flag::STICKY;
            } else {
                p.pins += 1;
            }
            return;
        }
        drop(g);
        fault::bring_in(pager, page);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(pager) = pager() else { return };
        let mut g = pager.lock();
        for page in self.first..self.first + self.pages {
            let p = &mut g.heart.pages[page as usize];
            p.pins = p.pins.saturating_sub(1);
        }
    }
}

/// Marks the blocks that stay as long as they are allocated: one bit for every 16 bytes of the
/// region, the smallest block of allocators. Only the used parts have memory; the rest is the
/// kernel's page of zeros.
static KEPT: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());
const GRAIN_BYTES: usize = 16;

/// Reserves the marks, before the pager runs.
pub unsafe fn begin(region_pages: usize) {
    unsafe {
        KEPT.store(sys::reserve(region_pages * (PAGE_BYTES / GRAIN_BYTES / 8)).cast(), SeqCst);
    }
}

/// Returns the byte and the bit of a block that begins in far memory.
fn kept(pager: &Pager, block: *mut u8) -> Option<(&'static AtomicU8, u8)> {
    pager.memory.page_of(block as usize)?;
    let grain = (block as usize - pager.memory.region as usize) / GRAIN_BYTES;
    Some((unsafe { &*KEPT.load(Relaxed).add(grain / 8) }, 1 << (grain % 8)))
}

/// Keeps an allocated block until [`release_block`].
///
/// # Safety
/// It is a block of the allocator's.
pub unsafe fn keep_block(block: *mut u8) {
    unsafe {
        let Some((byte, bit)) = pager().and_then(|p| kept(p, block)) else { return };
        if byte.fetch_or(bit, SeqCst) & bit == 0 {
            core::mem::forget(Pin::always(block, libc::malloc_usable_size(block.cast())));
        }
    }
}

/// Lets the pages of a block leave again, before the block is freed. Costs one read for other
/// blocks.
///
/// # Safety
/// It is a block of the allocator's.
pub unsafe fn release_block(block: *mut u8) {
    unsafe {
        let Some(pager) = pager() else { return };
        let Some((byte, bit)) = kept(pager, block) else { return };
        if byte.load(Relaxed) & bit == 0 {
            return;
        }
        let (at, bytes) = (block as usize, libc::malloc_usable_size(block.cast()));
        if let (Some(first), Some(last)) =
            (pager.memory.page_of(at), pager.memory.page_of(at + bytes - 1))
        {
            drop(Pin { first, pages: last - first + 1 });
        }
        byte.fetch_and(!bit, SeqCst);
    }
}

/// Keeps a page for good: the kernel waits on a word in it (a mutex, a condition). A fault there
/// would be an error that the C library does not survive. Later calls cost two loads.
pub fn keep(at: *const u8) {
    let Some(pager) = pager() else { return };
    let Some(page) = pager.memory.page_of(at as usize) else { return };
    // The flag is cleared only when the memory is discarded, so a read without the lock is enough.
    if pager.memory.is_sticky(page) {
        return;
    }
    hold(pager, page);
    let mut g = pager.lock();
    let p = &mut g.heart.pages[page as usize];
    p.flags |= flag::STICKY;
    p.pins = p.pins.saturating_sub(1);
}

/// Pages that are kept for good because threads have waited in them, and their share of the budget.
static WAITED: AtomicUsize = AtomicUsize::new(0);
const WAITED_SHARE: usize = 64;

/// Keeps an object while a thread waits in it. The first such pages stay for good, because a
/// contended lock is likely to be contended again. Beyond their share of the budget, pages stay
/// only as long as the returned pin.
pub fn keep_waited(at: *const u8, bytes: usize) -> Option<Pin> {
    let pager = pager()?;
    let stays = |at: *const u8| {
        pager.memory.page_of(at as usize).is_none_or(|page| pager.memory.is_sticky(page))
    };
    if stays(at) && stays(at.wrapping_add(bytes - 1)) {
        return None;
    }
    let most = pager.hosts.config.local_bytes as usize / PAGE_BYTES / WAITED_SHARE;
    if WAITED.load(Relaxed) >= most {
        return Pin::new(at, bytes);
    }
    WAITED.fetch_add(1, Relaxed);
    keep_all(at, bytes);
    None
}

/// Keeps every page of a range for good.
pub fn keep_all(at: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        keep(at.wrapping_add(offset));
    }
    if bytes > 0 {
        keep(at.wrapping_add(bytes - 1));
    }
}

/// Pins a string of the program up to its end.
pub fn pin_text(text: *const libc::c_char) -> Option<Pin> {
    if text.is_null() || !is_far(text.cast(), 1) {
        return None;
    }
    Pin::new(text.cast(), unsafe { libc::strlen(text) } + 1)
}
