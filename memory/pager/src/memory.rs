//! The address space of a pager: the region, which the program's memory is from, and the pool of
//! frames.

use crate::lane::{LANES, Lane};
use crate::sys;
use crate::uffd::Uffd;
use memory_core::page::{Page, State, flag};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};

/// The region and the pool, and the page table for reads without the lock.
pub struct Memory {
    /// The first byte of the region.
    pub region: *mut u8,
    /// Pages of the region.
    pub region_pages: usize,
    /// The ring's frames, then each lane's landing frames.
    pub pool: *mut u8,
    /// Frames of the pool.
    pub pool_pages: usize,
    /// The first frames of the pool are the ring.
    pub ring_pages: usize,
    /// The page table.
    pub pages: *const Page,
}

impl Memory {
    /// Returns a page's entry. The table may be behind the kernel's state, and another thread may
    /// change the entry at any time.
    fn look(&self, page: u32) -> Page {
        unsafe { self.pages.add(page as usize).read_volatile() }
    }

    /// Whether these pages are recorded as one allocation already: allocators reuse the same
    /// addresses. Reads without the lock, because an extent is only a hint.
    pub fn knows_extent(&self, first: u32, last: u32) -> bool {
        let (a, z) = (self.look(first), self.look(last));
        a.is_in_extent()
            && z.is_in_extent()
            && a.extent_pages as u32 == last - first + 1
            && a.extent_back == 0
            && z.extent_back as u32 == last - first
    }

    /// Returns the first page after the allocation that a page belongs to. Reads without the lock,
    /// because an extent is only a hint.
    pub fn extent_end(&self, page: u32) -> Option<u32> {
        let p = self.look(page);
        let first = page.checked_sub(p.extent_back as u32).filter(|_| p.is_in_extent())?;
        let end = first + self.look(first).extent_pages as u32;
        (page < end && end as usize <= self.region_pages).then_some(end)
    }

    /// Whether a page is recorded as part of an allocation of more than a page.
    pub fn is_in_extent(&self, page: u32) -> bool {
        self.look(page).is_in_extent()
    }

    /// Whether a page is recorded as a page of small objects already.
    pub fn knows_small(&self, page: u32) -> bool {
        self.flags(page) & flag::SMALL != 0
    }

    /// Whether a page stays for good.
    pub fn is_sticky(&self, page: u32) -> bool {
        self.flags(page) & flag::STICKY != 0
    }

    fn flags(&self, page: u32) -> u8 {
        unsafe { (&raw const (*self.pages.add(page as usize)).flags).read_volatile() }
    }

    /// Returns the state of a page.
    fn state(&self, page: u32) -> State {
        unsafe { (&raw const (*self.pages.add(page as usize)).state).read_volatile() }
    }

    /// Whether a page may hold other bytes than zeros. Reads without the lock: only the caller may
    /// use the page.
    pub fn is_used(&self, page: u32) -> bool {
        self.state(page) != State::Zero
    }

    /// Whether a page is away. The table may be behind the kernel's state.
    pub fn is_away(&self, page: u32) -> bool {
        self.state(page) != State::Resident
    }

    /// Whether a range has a byte in the region.
    pub fn overlaps(&self, at: usize, bytes: usize) -> bool {
        bytes > 0
            && at < self.region as usize + self.region_pages * PAGE_BYTES
            && at.saturating_add(bytes) > self.region as usize
    }

    /// Returns the page of an address in the region.
    pub fn page_of(&self, at: usize) -> Option<u32> {
        let offset = at.wrapping_sub(self.region as usize);
        (offset < self.region_pages * PAGE_BYTES).then_some((offset / PAGE_BYTES) as u32)
    }

    /// Returns the first page and the pages of a range that begins at a page and lies in the region.
    pub fn whole(&self, at: *const u8, bytes: usize) -> Option<(u32, u32)> {
        let first = self.page_of(at as usize)?;
        let pages = bytes.div_ceil(PAGE_BYTES);
        ((at as usize).is_multiple_of(PAGE_BYTES)
            && pages > 0
            && first as usize + pages <= self.region_pages)
            .then_some((first, pages as u32))
    }

    /// Returns the address of a page.
    pub fn at(&self, page: u32) -> *mut u8 {
        self.region.wrapping_add(page as usize * PAGE_BYTES)
    }

    /// Returns the address of a frame.
    pub fn frame(&self, frame: u32) -> *mut u8 {
        self.pool.wrapping_add(frame as usize * PAGE_BYTES)
    }

    /// Returns the first of a lane's landing frames, which have no memory before a transfer.
    pub fn landing(&self, lane: &Lane) -> u32 {
        (self.pool_pages - (LANES - lane.number) * BATCH_PAGES_MAX) as u32
    }

    /// Has the userfaultfd serve the region and the ring. The kernel gives landing frames memory as
    /// data arrives, so they are not registered.
    pub unsafe fn register(&self) {
        unsafe {
            Uffd.register(self.region, self.region_pages * PAGE_BYTES);
            Uffd.register(self.pool, self.ring_pages * PAGE_BYTES);
        }
    }

    /// Sets whether a new process inherits the region. A process that bypasses the fork handlers
    /// must not: it would read absent pages as zeros.
    pub fn inherit(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        unsafe { sys!(libc::SYS_madvise, self.region, self.region_pages * PAGE_BYTES, advice) };
    }

    /// Leaves the pool out of core dumps: it holds pages of the program for a while.
    pub fn leave_out_pool(&self) {
        let bytes = self.pool_pages * PAGE_BYTES;
        unsafe { sys!(libc::SYS_madvise, self.pool, bytes, libc::MADV_DONTDUMP) };
    }

    /// Returns `n` pages to the kernel, also if the program has locked them; they read as zeros
    /// afterwards.
    pub fn empty(&self, at: *mut u8, n: usize) {
        unsafe { sys!(libc::SYS_madvise, at, n * PAGE_BYTES, libc::MADV_DONTNEED_LOCKED) };
    }
}
