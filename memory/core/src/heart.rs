//! The decisions of the pager: the needs of a fault, the next page to leave, and the frames that
//! are reused.
//!
//! The second-chance list is a ring of frames. Pages leave the program oldest first, in a queue
//! with up to three second chances, after S3-FIFO. They wait unmapped in the ring, and are written
//! to the hosts in the background. They give up their frame only when a fetch needs one: `head ≤
//! cleaned ≤ tail`.
//!
//! ```text
//!        head            cleaned              tail
//!   ──────┬─────────────────┬───────────────────┬──────
//!    free │ stored: reusable│ not yet stored    │ free
//!   ──────┴─────────────────┴───────────────────┴──────
//!      ▲ a fetch takes frames here   an eviction adds here ▲
//! ```

mod leave;

use crate::fifo::Fifo;
use crate::page::{NONE, Page, State, flag};
use crate::slots::Slots;
pub use leave::Clean;

/// A free frame of the ring, without memory.
const FREE: u32 = NONE;
/// A frame that a fetch is filling.
const FILLING: u32 = NONE - 1;
/// A frame with unused memory: its page was dropped.
const WASTE: u32 = NONE - 2;

/// Second chances of a page of small objects. Programs touch these pages again more often than
/// pages of large objects.
const HEAT_SMALL: u8 = 1;
const HEAT_MAX: u8 = 3;
/// Pages of small objects never leave while they fit into this share of the limit.
const SMALL_SHARE: usize = 8;

/// The need of a fault on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The page is present.
    Nothing,
    /// Another thread works on the page: wait for progress, then call again.
    Wait,
    /// Map a page of zeros.
    Zeros,
    /// Map its frame back.
    Rescue(u32),
    /// Fetch the page.
    Fetch,
}

/// The state of far memory of one process. All methods assume that the caller serialises them.
pub struct Heart<'a> {
    /// The page table, by page of the region.
    pub pages: &'a mut [Page],
    /// The slots on the memory hosts.
    pub slots: Slots<'a>,
    sums: &'a mut [u64],
    fifo: Fifo<'a>,
    /// For each frame: its page, or `FREE`, `FILLING`, `WASTE`.
    ring: &'a mut [u32],
    head: u64,
    cleaned: u64,
    /// End of the batch that is being stored. Equals `cleaned` if there is no batch.
    cleaning: u64,
    tail: u64,
    /// Frames between `head` and `cleaned` that hold memory.
    reusable: usize,
    /// Pages of memory that the pager holds: resident, in the ring, or being filled.
    held: usize,
    /// Pages that the pager may hold.
    limit: usize,
    busy: usize,
    /// Pages with content other than zeros.
    in_use: usize,
    pub(crate) small: usize,
    /// Probes that left unused: of the prefetcher, and of the guide. The caller resets them.
    pub probes_unused: [u32; 2],
}

impl<'a> Heart<'a> {
    /// Makes a heart. `pages` and `fifo` have one entry for each page of the region, `sums` for
    /// each slot, `ring` for each frame. All but `pages` must be zeroed. `pages` may be zeroed
    /// memory, which reads as "never touched". Unused entries are never touched.
    pub fn new(
        pages: &'a mut [Page],
        slots: Slots<'a>,
        sums: &'a mut [u64],
        fifo: &'a mut [u32],
        ring: &'a mut [u32],
        limit: usize,
    ) -> Self {
        assert!(sums.len() >= slots.count());
        ring.fill(FREE);
        Heart {
            pages,
            slots,
            sums,
            fifo: Fifo::new(fifo, 2 * limit + 4096),
            ring,
            head: 0,
            cleaned: 0,
            cleaning: 0,
            tail: 0,
            reusable: 0,
            held: 0,
            limit,
            busy: 0,
            in_use: 0,
            small: 0,
            probes_unused: [0; 2],
        }
    }

    /// Returns the pages that are local now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns the most pages that may be local.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the pages that a transfer uses now.
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Returns the pages that hold content, in any place.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the resident pages of small objects.
    pub fn small(&self) -> usize {
        self.small
    }

    /// Returns the pages in the second-chance list, holes included.
    pub fn limbo(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Sets the most pages that may be local.
    pub fn set_limit(&mut self, pages: usize) {
        self.limit = pages;
    }

    /// Returns how many pages could be fetched right now.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.held) + self.reusable
    }

    /// Whether [`Heart::take_frame`] would return a frame.
    pub fn has_frame(&self) -> bool {
        self.held < self.limit || self.held == self.limit && self.reusable > 0
    }

    /// Returns how many frames the ring has.
    pub fn frames(&self) -> usize {
        self.ring.len()
    }

    /// Returns the need of a fault on `page`. `Zeros` and `Fetch` still need a frame.
    pub fn fault(&self, page: u32) -> Need {
        let p = &self.pages[page as usize];
        match p.state {
            State::Resident => Need::Nothing,
            State::Busy => Need::Wait,
            State::Zero => Need::Zeros,
            State::Limbo => Need::Rescue(p.frame),
            State::Remote => Need::Fetch,
        }
    }

    /// Returns a frame to fill: one of the ring that holds memory, or else `fresh` if the limit
    /// allows one more page.
    pub fn take_frame(&mut self, fresh: u32) -> Option<u32> {
        while self.head < self.cleaned {
            let at = (self.head % self.ring.len() as u64) as usize;
            match self.ring[at] {
                FREE => self.head += 1,
                FILLING => unreachable!("a frame in the list is never being filled"),
                owner => {
                    if self.held > self.limit {
                        return None;
                    }
                    self.forget_owner(owner);
                    self.ring[at] = FILLING;
                    self.head += 1;
                    self.reusable -= 1;
                    return Some(at as u32);
                }
            }
        }
        if self.held < self.limit {
            self.held += 1;
            return Some(fresh);
        }
        None
    }

    fn forget_owner(&mut self, owner: u32) {
        if owner != WASTE {
            let p = &mut self.pages[owner as usize];
            debug_assert!(p.state == State::Limbo && p.slot != NONE);
            p.state = State::Remote;
            p.frame = NONE;
            if p.flags & flag::PROBE != 0 {
                self.probes_unused[(p.flags & flag::GUIDED != 0) as usize] += 1;
                p.flags &= !(flag::PROBE | flag::GUIDED);
            }
        }
    }

    /// Records that the frame's memory now belongs to a page of the program.
    fn frame_moved(&mut self, frame: u32) {
        if (frame as usize) < self.ring.len() {
            self.ring[frame as usize] = FREE;
        }
    }

    /// Records that a page of zeros is mapped. Its memory came from `frame`.
    pub fn zeroed(&mut self, page: u32, frame: u32) {
        self.frame_moved(frame);
        self.in_use += 1;
        self.resident(page, 0);
    }

    /// Marks the remote pages of `want` busy and gives each a frame, as far as there is room. Moves
    /// them to the front of `want`, and returns how many. `fresh` is the first of as many private
    /// frames of the caller.
    pub fn begin_fetch(&mut self, want: &mut [u32], fresh: u32, frames: &mut [u32]) -> usize {
        let mut n = 0;
        for k in 0..want.len() {
            let page = want[k];
            if self.pages[page as usize].state != State::Remote {
                continue;
            }
            let Some(frame) = self.take_frame(fresh + n as u32) else { break };
            self.pages[page as usize].state = State::Busy;
            self.busy += 1;
            want[n] = page;
            frames[n] = frame;
            n += 1;
        }
        n
    }

    /// Records that a fetched page is mapped.
    pub fn fetched(&mut self, page: u32, frame: u32) {
        debug_assert_eq!(self.pages[page as usize].state, State::Busy);
        self.frame_moved(frame);
        self.busy -= 1;
        self.resident(page, 0);
    }

    /// Records that a page of the second-chance list is mapped again. Returns the flags of a probe,
    /// a page that was fetched ahead and is now used, or 0.
    pub fn rescued(&mut self, page: u32) -> u8 {
        let (frame, probe) = {
            let p = &mut self.pages[page as usize];
            debug_assert_eq!(p.state, State::Limbo);
            let probe = p.flags & (flag::PROBE | flag::GUIDED);
            p.flags &= !(flag::PROBE | flag::GUIDED);
            (p.frame, probe)
        };
        if self.is_written_from(frame) {
            // The write still reads the frame, so the page received a copy.
            self.ring[frame as usize] = WASTE;
            self.held += 1;
        } else {
            self.reusable -= (self.position(frame) < self.cleaned) as usize;
            self.ring[frame as usize] = FREE;
        }
        self.resident(page, if probe != 0 { 0 } else { 2 });
        probe
    }

    /// Whether a frame of the list is being written to the hosts. Its page must then be mapped
    /// again by a copy.
    pub fn is_written_from(&self, frame: u32) -> bool {
        (self.cleaned..self.cleaning).contains(&self.position(frame))
    }

    /// Returns the position in the ring of a frame that is in the list.
    fn position(&self, frame: u32) -> u64 {
        let n = self.ring.len() as u64;
        let base = self.head - self.head % n + frame as u64;
        if base < self.head { base + n } else { base }
    }

    fn resident(&mut self, page: u32, warmth: u8) {
        let p = &mut self.pages[page as usize];
        if p.state == State::Zero {
            // Table memory that was never written reads as slot 0.
            p.slot = NONE;
        }
        p.state = State::Resident;
        p.frame = NONE;
        let small = if p.flags & flag::IN_EXTENT == 0 { HEAT_SMALL } else { 0 };
        p.heat = (p.heat + warmth).max(small).min(HEAT_MAX);
        self.small += p.is_small_here() as usize;
        self.enqueue(page);
    }

    fn enqueue(&mut self, page: u32) {
        if self.pages[page as usize].flags & flag::QUEUED != 0 {
            return;
        }
        self.pages[page as usize].flags |= flag::QUEUED;
        if self.fifo.is_full() {
            self.prune();
        }
        let there = self.fifo.push(page);
        debug_assert!(there, "no page is queued twice, and there is room for all");
    }

    /// Removes dropped pages from the queue. If many pages are left, the queue grows, so that this
    /// is rare.
    fn prune(&mut self) {
        for _ in 0..self.fifo.len() {
            let Some(page) = self.fifo.pop() else { break };
            if self.pages[page as usize].state == State::Resident {
                self.fifo.push(page);
            } else {
                self.pages[page as usize].flags &= !flag::QUEUED;
            }
        }
        if self.fifo.len() > self.fifo.capacity() / 2 {
            self.fifo.grow();
        }
    }

    /// Leaves a fetched page unmapped in the list, in the frame at the tail, to see whether the
    /// program uses it. The caller moves its memory there. None = no frame is free.
    pub fn can_probe(&self) -> Option<u32> {
        let n = self.ring.len() as u64;
        let at = (self.tail % n) as usize;
        (self.tail < self.head + n && self.ring[at] == FREE).then_some(at as u32)
    }

    /// Records that a fetched page went to the frame that [`Heart::can_probe`] returned.
    pub fn probed(&mut self, page: u32, frame: u32, guided: bool) {
        self.frame_moved(frame);
        self.busy -= 1;
        self.pages[page as usize].flags |= flag::PROBE | if guided { flag::GUIDED } else { 0 };
        self.unmapped(page);
    }

    /// Returns the fingerprint that a fetch of this page must have.
    pub fn sum(&self, page: u32) -> u64 {
        self.sums[self.pages[page as usize].slot as usize]
    }

    /// Returns the fingerprint of a slot.
    pub fn slot_sum(&self, slot: u32) -> u64 {
        self.sums[slot as usize]
    }

    /// Drops a page that the program gave up. Returns false if it is busy: wait, then call again.
    /// The caller unmaps the memory of a resident page.
    pub fn drop_page(&mut self, page: u32) -> bool {
        let p = self.pages[page as usize];
        match p.state {
            State::Busy => return false,
            State::Zero => {}
            State::Resident => self.held -= (p.flags & flag::INHERITED == 0) as usize,
            State::Limbo => self.ring[p.frame as usize] = WASTE,
            State::Remote => {}
        }
        self.small -= p.is_small_here() as usize;
        if p.state != State::Zero {
            self.in_use -= 1;
            if p.slot != NONE {
                self.slots.free(p.slot);
            }
        }
        self.pages[page as usize] =
            Page { flags: p.flags & flag::QUEUED, pins: p.pins, ..Page::default() };
        true
    }

    /// Prepares the state for a forked child. It evicts only pages that it fetches itself, none of
    /// its parent's resident pages. The list must be empty and nothing busy.
    pub fn become_child(&mut self, limit: usize) {
        assert!(self.limbo() == 0 && self.busy == 0);
        while let Some(page) = self.fifo.pop() {
            let p = &mut self.pages[page as usize];
            p.flags &= !flag::QUEUED;
            if p.state == State::Resident {
                p.flags |= flag::INHERITED;
            }
        }
        self.ring.fill(FREE);
        self.held = 0;
        self.small = 0;
        self.limit = limit;
    }
}
