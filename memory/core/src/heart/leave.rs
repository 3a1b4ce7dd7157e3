//! Eviction: which pages leave the program, which ones must be sent to the hosts, and when their
//! frames are free.

use super::{FREE, HEAT_MAX, Heart, SMALL_SHARE, WASTE};
use crate::page::{NONE, State, flag};

/// The work that is needed to clean a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clean {
    /// The hosts hold the same content.
    Already,
    /// Store it in this slot.
    Write(u32),
    /// No slot is free.
    Full,
}

impl Heart<'_> {
    /// Returns up to `out.len()` pages that should leave, and the first of as many adjacent free
    /// frames.
    pub fn victims(&mut self, out: &mut [u32]) -> (usize, u32) {
        let n = self.ring.len();
        let first = (self.tail % n as u64) as usize;
        let mut free = 0;
        while free < out.len()
            && first + free < n
            && self.ring[first + free] == FREE
            && self.tail + (free as u64) < self.head + n as u64
        {
            free += 1;
        }
        let mut scan = self.fifo.len() * (HEAT_MAX as usize + 1);
        let (mut k, mut small) = (0, self.small);
        while k < free && scan > 0 {
            scan -= 1;
            let Some(page) = self.fifo.pop() else { break };
            let p = &mut self.pages[page as usize];
            if p.state != State::Resident || p.flags & flag::STICKY != 0 {
                p.flags &= !flag::QUEUED; // a page that is kept for good is not looked at again
            } else if p.heat > 0
                || p.pins > 0
                || p.is_small_here() && small <= self.limit / SMALL_SHARE
            {
                p.heat = p.heat.saturating_sub(1);
                self.fifo.push(page);
            } else {
                p.flags &= !flag::QUEUED;
                small -= p.is_small_here() as usize;
                out[k] = page;
                k += 1;
            }
        }
        (k, first as u32)
    }

    /// Records that a victim was unmapped into the frame at the tail. The caller keeps the order of
    /// [`Heart::victims`].
    pub fn unmapped(&mut self, page: u32) {
        let at = (self.tail % self.ring.len() as u64) as u32;
        self.ring[at as usize] = page;
        self.tail += 1;
        let p = &mut self.pages[page as usize];
        self.small -= p.is_small_here() as usize;
        p.state = State::Limbo;
        p.frame = at;
    }

    /// Keeps a victim that could not be unmapped: it is shared with a child, or pinned by the
    /// kernel.
    pub fn stays(&mut self, page: u32) {
        self.enqueue(page);
    }

    /// Skips the frame at the tail, which a failed move left empty.
    pub fn skip_frame(&mut self) {
        self.tail += 1;
    }

    /// Returns the oldest pages that are not stored yet, except for the newest `lag`. Their frames
    /// keep their content until [`Heart::end_clean`], even if the pages change their state.
    pub fn begin_clean(&mut self, lag: usize, out: &mut [u32]) -> usize {
        debug_assert_eq!(self.cleaned, self.cleaning);
        let end = self.tail.saturating_sub(lag as u64);
        let mut n = 0;
        while self.cleaning < end && n < out.len() {
            let owner = self.ring[(self.cleaning % self.ring.len() as u64) as usize];
            if owner != WASTE && owner != FREE {
                self.pages[owner as usize].flags |= flag::CLEANING;
                out[n] = owner;
                n += 1;
            }
            self.cleaning += 1;
        }
        n
    }

    /// Whether a page of the batch still has its state. The program may have dropped it meanwhile.
    pub fn is_cleaning(&self, page: u32) -> bool {
        self.pages[page as usize].flags & flag::CLEANING != 0
    }

    /// Whether the page's slot has this content already.
    pub fn holds(&self, page: u32, sum: u64) -> bool {
        let slot = self.pages[page as usize].slot;
        slot != NONE && self.sums[slot as usize] == sum
    }

    /// Returns whether a page on its way out needs a write, and to which slot. Call it only between
    /// `begin_clean` and `end_clean`.
    pub fn clean(&mut self, page: u32, sum: u64) -> Clean {
        let old = self.pages[page as usize].slot;
        if old != NONE && self.sums[old as usize] == sum {
            return Clean::Already;
        }
        if old != NONE && !self.slots.is_frozen(old) {
            return Clean::Write(old);
        }
        let hint = match page.checked_sub(1).map(|before| &self.pages[before as usize]) {
            Some(p) if p.state != State::Zero && p.slot != NONE => p.slot + 1,
            _ => NONE,
        };
        let Some(slot) = self.slots.take(page, hint) else { return Clean::Full };
        if old != NONE {
            self.slots.free(old);
        }
        self.pages[page as usize].slot = slot;
        Clean::Write(slot)
    }

    /// Records that every copy has these contents. Their frames become reusable.
    pub fn end_clean(&mut self, pages: &[u32], sums: &[u64]) {
        for (&page, &sum) in pages.iter().zip(sums) {
            if self.is_cleaning(page) {
                let p = &mut self.pages[page as usize];
                p.flags &= !flag::CLEANING;
                self.sums[p.slot as usize] = sum;
            }
        }
        while self.cleaned < self.cleaning {
            self.reusable +=
                (self.ring[(self.cleaned % self.ring.len() as u64) as usize] != FREE) as usize;
            self.cleaned += 1;
        }
    }

    /// Records that a page of the batch cannot be stored. If it still waited in its frame, the
    /// caller has mapped that again.
    pub fn restored(&mut self, page: u32) {
        self.pages[page as usize].flags &= !flag::CLEANING;
        let p = self.pages[page as usize];
        if p.state == State::Limbo && self.is_written_from(p.frame) {
            self.ring[p.frame as usize] = FREE;
            self.resident(page, HEAT_MAX);
        }
    }

    /// Removes reusable frames from the list, so that the kernel can have their memory; returns how
    /// many.
    pub fn shed(&mut self, out: &mut [u32]) -> usize {
        let mut n = 0;
        while n < out.len() && self.head < self.cleaned {
            let at = (self.head % self.ring.len() as u64) as usize;
            let owner = self.ring[at];
            if owner != FREE {
                self.forget_owner(owner);
                self.ring[at] = FREE;
                self.reusable -= 1;
                self.held -= 1;
                out[n] = at as u32;
                n += 1;
            }
            self.head += 1;
        }
        n
    }
}
