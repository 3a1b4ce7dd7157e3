//! Reads from the copies: from one host at a time, and from the next one if it does not answer in
//! time.

use super::silence::{Vain, is_better};
use super::{Hosts, WHOLE};
use crate::lane::Ports;
use crate::transport::{Broken, LONG, SHORT, Transport};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::stats::{Stats, add};

/// The longest attempt to read the only copy. Each attempt takes up to twice as long as the last
/// one.
const TRY_MAX_NS: u64 = 4_000_000_000;

impl Hosts {
    /// Reads slots from a whole copy on any host but `not`, and returns the host that answered.
    /// Ends the program if every copy is lost.
    pub fn read(
        &self,
        ports: &mut Ports,
        stats: &Stats,
        slots: &[u32],
        into: &[*mut u8],
        not: usize,
        mut meanwhile: impl FnMut(),
    ) -> usize {
        let mut vain = Vain::default();
        let turn = self.turn.fetch_add(1, SeqCst) as usize;
        for attempt in 0.. {
            let mut failed = None;
            for k in 0..2 * self.config.hosts_len {
                let h = (k + turn) % self.config.hosts_len;
                // Suspects come last.
                let late = k >= self.config.hosts_len;
                if h == not || self.all[h].state() != WHOLE || late != self.all[h].is_suspect() {
                    continue;
                }
                let Err(why) = self.read_from(ports, h, slots, into, attempt, &mut meanwhile)
                else {
                    if failed.is_some() {
                        add(&stats.reads_failed_over, 1);
                    }
                    self.all[h].answers(h);
                    return h;
                };
                self.all[h].suspect.store(1, SeqCst);
                self.tender.ring();
                failed = failed.filter(|&(_, other)| is_better(other, why)).or(Some((h, why)));
            }
            match failed {
                None => self.lost(not, format_args!("no other copy of the page is whole")),
                Some((h, why)) if vain.is_over(self, h, why) => self.lost_by(h, why),
                Some(_) => {}
            }
        }
        unreachable!("it is lost before it was asked so often")
    }

    /// Reads from one host, for the `attempt`-th time, counted from 0. Runs `meanwhile` while the
    /// answer is on its way.
    fn read_from(
        &self,
        ports: &mut Ports,
        h: usize,
        slots: &[u32],
        into: &[*mut u8],
        attempt: u32,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), Broken> {
        if self.all[h].shared.is_mapped() {
            return (&self.all[h].shared).end_read(slots, into);
        }
        // If another copy can answer, wait briefly; if all are slow, double the time on each
        // attempt. Repeated requests would only add load to a busy host.
        let other = (0..self.config.hosts_len).any(|o| o != h && self.all[o].state() == WHOLE);
        let (first, most) =
            if other { (SHORT, LONG) } else { (LONG, TRY_MAX_NS.min(self.config.patience_ns)) };
        let port = self.port(ports, h, most.min(first << attempt.min(8)))?;
        port.begin_read(slots)?;
        meanwhile();
        port.end_read(slots, into)
    }
}
