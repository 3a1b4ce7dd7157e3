//! Batches of pages that the evictor stores on the hosts.

use super::{Batch, CLEAN_BATCH, Evictor};
use crate::hosts::write::{Wait, Writing};
use crate::lane::Lane;
use crate::sys;
use memory_core::PAGE_BYTES;
use memory_core::heart::{Clean, Need};
use memory_core::stats::add;

impl Evictor {
    /// Stores the oldest unstored pages of the list, unless the hosts have them already. Returns
    /// how many pages were acknowledged. A batch that is not acknowledged within `wait` continues;
    /// the next call ends it.
    pub fn clean(&mut self, lag: usize, wait: Wait) -> usize {
        let before = self.acknowledged(wait);
        if self.batch.is_some() || before > 0 && wait != Wait::Long {
            return before;
        }
        self.begin(lag);
        before + self.acknowledged(wait)
    }

    /// Ends the current batch, if it is acknowledged within `wait`. Returns how many pages became
    /// reusable.
    pub fn acknowledged(&mut self, wait: Wait) -> usize {
        let Some(mut b) = self.batch.take() else { return 0 };
        let pager = self.pager;
        if b.writes > 0 {
            let Lane { slots, memory, ports, .. } = &mut *self.lane;
            if !pager.hosts.end_write(
                ports,
                pager.stats,
                &mut b.writing,
                &slots[..b.writes],
                &memory[..b.writes],
                wait,
            ) {
                self.batch = Some(b);
                return 0;
            }
            add(&pager.stats.pages_written, b.writes as u64);
        }
        pager.lock_blocked().heart.end_clean(&b.pages[..b.len], &b.sums[..b.len]);
        pager.room.made();
        b.len
    }

    /// Begins a batch.
    fn begin(&mut self, lag: usize) {
        let pager = self.pager;
        let mut pages = [0u32; CLEAN_BATCH];
        let mut frames = [0u32; CLEAN_BATCH];
        let mut sums = [0u64; CLEAN_BATCH];
        let mut g = pager.lock_blocked();
        let n = g.heart.begin_clean(lag, &mut pages);
        for i in 0..n {
            frames[i] = g.heart.pages[pages[i] as usize].frame;
        }
        drop(g);
        for i in 0..n {
            sums[i] = pager.fingerprint(pager.memory.frame(frames[i]));
        }
        let (mut kept, mut writes, mut full) = (0, 0, 0);
        let mut g = pager.lock_blocked();
        for i in 0..n {
            if !g.heart.is_cleaning(pages[i]) {
                continue;
            }
            // A child does not write: the slots belong to its parent.
            let need = if pager.fork.is_child() && !g.heart.holds(pages[i], sums[i]) {
                Clean::Full
            } else {
                g.heart.clean(pages[i], sums[i])
            };
            if need == Clean::Full {
                if g.heart.fault(pages[i]) == Need::Rescue(frames[i]) {
                    pager.memory.put(pager.memory.at(pages[i]), frames[i], 1);
                }
                g.heart.restored(pages[i]);
                full += 1;
                continue;
            }
            if let Clean::Write(slot) = need {
                self.lane.slots[writes] = slot;
                self.lane.memory[writes] = pager.memory.frame(frames[i]);
                writes += 1;
            }
            (pages[kept], sums[kept]) = (pages[i], sums[i]);
            kept += 1;
        }
        drop(g);
        self.seal(writes);
        let writing = if writes > 0 {
            let Lane { slots, memory, ports, .. } = &mut *self.lane;
            pager.hosts.begin_write(ports, &slots[..writes], &memory[..writes])
        } else {
            Writing::default()
        };
        self.batch = Some(Batch { pages, sums, len: kept, writes, writing });
        if full > 0 {
            self.full(full);
        }
    }

    /// Encrypts copies of the batch's pages, which the lane then has in their place. A frame keeps
    /// its content, because a fault may map it again.
    fn seal(&mut self, writes: usize) {
        if !self.pager.seals() {
            return;
        }
        for (i, page) in self.lane.memory[..writes].iter_mut().enumerate() {
            let copy = self.sealed.wrapping_add(i * PAGE_BYTES);
            unsafe { copy.copy_from_nonoverlapping(*page, PAGE_BYTES) };
            *page = copy;
        }
        self.pager.close(&self.lane.slots[..writes], &self.lane.memory[..writes]);
    }

    fn full(&mut self, pages: usize) {
        if !self.pager.fork.is_child() {
            let g = self.pager.lock_blocked();
            let (limit, used, slots) =
                (g.heart.limit(), g.heart.in_use() / 256, g.heart.slots.count() / 256);
            drop(g);
            if limit > 2 * self.budget.pages() {
                sys::die(format_args!(
                    "far memory is full: the program uses {used} MiB, {slots} MiB are leased. It \
                     is stopped at twice its --local; start it with a larger --far"
                ));
            }
            if !core::mem::replace(&mut self.is_full, true) {
                sys::say(format_args!(
                    "far memory is full: {slots} MiB are leased. What is more stays local, over \
                     the budget, up to twice --local; a larger --far would keep it"
                ));
            }
        }
        self.pager.room.overdraw(&mut self.pager.lock_blocked().heart, pages);
    }
}
