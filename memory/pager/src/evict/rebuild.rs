//! The copy of all slots to a host that is being rebuilt.

use super::{CLEAN_BATCH, Evictor};
use crate::hosts::WHOLE;
use crate::hosts::write::Wait;
use crate::lane::Lane;
use crate::sys;
use core::sync::atomic::Ordering::SeqCst;
use memory_core::stats::add;

impl Evictor {
    /// Copies a batch of slots to the host that is being rebuilt. Writes happen in the evictor's
    /// turn only, so the copy does not overwrite newer pages.
    pub fn rebuild(&mut self) {
        let pager = self.pager;
        let Some(h) = pager.hosts.rebuilding() else { return };
        self.acknowledged(Wait::Long);
        let host = &pager.hosts.all[h];
        let mut from = host.rebuilt.load(SeqCst) as usize;
        let mut n = 0;
        let landing = pager.memory.landing(self.lane);
        let g = pager.lock_blocked();
        while n < CLEAN_BATCH {
            let Some(slot) = g.heart.slots.next_taken(from) else { break };
            self.lane.slots[n] = slot;
            self.lane.sums[n] = g.heart.slot_sum(slot);
            self.lane.memory[n] = pager.memory.frame(landing + n as u32);
            from = slot as usize + 1;
            n += 1;
        }
        drop(g);
        if n == 0 {
            host.state.store(WHOLE, SeqCst);
            sys::say(format_args!("memory host {} holds a whole copy again", h + 1));
            return;
        }
        let Lane { slots, memory, sums, ports, .. } = &mut *self.lane;
        pager.hosts.read(ports, pager.stats, &slots[..n], &memory[..n], h, || {});
        pager.open(&slots[..n], &memory[..n]);
        if (0..n).any(|i| pager.fingerprint(memory[i]) != sums[i]) {
            sys::die(format_args!(
                "a page is wrong on the only whole copy (checksum). The program is stopped before \
                 it reads it"
            ));
        }
        pager.close(&slots[..n], &memory[..n]);
        if pager.hosts.write_to(ports, pager.stats, h, &slots[..n], &memory[..n]) {
            host.rebuilt.store(from as u32, SeqCst);
            add(&pager.stats.slots_rebuilt, n as u64);
        }
        pager.memory.empty(pager.memory.frame(landing), n);
    }
}
