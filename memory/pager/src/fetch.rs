//! Fetches: one round trip for the pages in a lane's list, a check of each, and a move without
//! copying.

use crate::handler::Lead;
use crate::lane::Lane;
use crate::pager::{Guard, Pager};
use crate::sys;
use memory_core::PAGE_BYTES;
use memory_core::stats::add;

impl Pager {
    /// Fetches those of the first `n` pages in the lane's list that are remote; returns how many.
    /// Releases the lock during the transfer.
    pub fn fetch(&self, mut g: Guard, lane: &mut Lane, n: usize, guided: bool, lead: &mut Lead) -> usize {
        let landing = self.landing(lane);
        let n = g.heart.begin_fetch(&mut lane.pages[..n], landing, &mut lane.frames);
        for i in 0..n {
            lane.slots[i] = g.heart.pages[lane.pages[i] as usize].slot;
            lane.sums[i] = g.heart.sum(lane.pages[i]);
            lane.memory[i] = self.frame(lane.frames[i]);
        }
        self.look_ahead(&g);
        let signals = g.signals.take();
        drop(g);
        if n == 0 {
            if let Some(mask) = signals {
                sys::restore_signals(mask);
            }
            return 0;
        }
        self.transfer(lane, n, lead);
        let mut g = self.lock_blocked();
        self.install(&mut g, lane, n, guided);
        add(&self.stats.rounds, 1);
        add(&self.stats.pages_fetched, n as u64);
        drop(g);
        self.done(&lane.pages[..n]);
        if let Some(mask) = signals {
            sys::restore_signals(mask);
        }
        n
    }

    /// Reads the lane's slots into its frames and checks every page. Reads a wrong page again from
    /// the other copy.
    fn transfer(&self, lane: &mut Lane, n: usize, lead: &mut Lead) {
        let Lane { slots, memory, sums, ports, .. } = lane;
        let from = self.hosts.read(ports, self.stats, &slots[..n], &memory[..n], usize::MAX, || {
            lead.pass_if_crowded();
            self.evictor.ahead(self)
        });
        for i in 0..n {
            if self.fingerprint_at(memory[i]) == sums[i] {
                continue;
            }
            add(&self.stats.pages_bad, 1);
            if self.hosts.whole() < 2 {
                sys::die(format_args!(
                    "memory host {} returned a page that is not what was stored (checksum). The program is stopped before it reads it",
                    from + 1
                ));
            }
            self.hosts.read(ports, self.stats, &slots[i..=i], &memory[i..=i], from, || {});
            if self.fingerprint_at(memory[i]) != sums[i] {
                sys::die(format_args!(
                    "both memory hosts returned a page that is not what was stored (checksum). The program is stopped before it reads it"
                ));
            }
        }
    }

    fn install(&self, g: &mut Guard, lane: &mut Lane, n: usize, guided: bool) {
        let mut i = 0;
        while i < n {
            if i > 0 && self.leave_as_probe(g, lane.pages[i], lane.frames[i], guided) {
                i += 1;
                continue;
            }
            let mut k = 1;
            while i + k < n && lane.pages[i + k] == lane.pages[i] + k as u32 && lane.frames[i + k] == lane.frames[i] + k as u32 {
                k += 1;
            }
            self.put(self.at(lane.pages[i]), lane.frames[i], k);
            for j in i..i + k {
                g.heart.fetched(lane.pages[j], lane.frames[j]);
            }
            i += k;
        }
        self.count_probes(g);
    }

    fn leave_as_probe(&self, g: &mut Guard, page: u32, frame: u32, guided: bool) -> bool {
        let probe = if guided { g.guide.probe_next() } else { g.prefetcher.accuracy.probe_next() };
        // A fork is being prepared, for which the second-chance list must be empty.
        if !probe || self.fork.is_wanted() {
            return false;
        }
        let Some(tail) = g.heart.can_probe() else { return false };
        let moved = unsafe { self.uffd().move_pages(self.frame(tail), self.frame(frame), PAGE_BYTES).is_ok() };
        if moved {
            g.heart.probed(page, frame, guided);
        }
        moved
    }

    fn count_probes(&self, g: &mut Guard) {
        let [plain, guided] = core::mem::take(&mut g.heart.probes_unused);
        for _ in 0..plain {
            g.prefetcher.accuracy.saw(false);
        }
        for _ in 0..guided {
            g.guide.saw(false);
        }
        add(&self.stats.probes_unused, plain as u64);
        add(&self.stats.guide_probes_unused, guided as u64);
    }
}
