//! Lost copies: suspects are probed, a host that failed is given up, and a spare is filled in its
//! place.

use super::{Hosts, REBUILDING, SPARE, WHOLE};
use crate::lane::Ports;
use crate::sys;
use crate::transport::{Broken, LONG};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::stats::{Stats, add};
use memory_core::wire::Hello;

/// How long a suspect has to answer a probe. The tender asks the other hosts between two probes, so
/// this is short enough for their answers to count as steady on a busy machine.
const PROBE_NS: u64 = LONG / 2;

impl Hosts {
    /// Probes the hosts other than `h`.
    pub fn ask_others(&self, ports: &mut Ports, h: usize) {
        for o in (0..self.config.hosts_len)
            .filter(|&o| o != h && self.all[o].state() != SPARE && !self.all[o].shared.is_mapped())
        {
            if self.probe(ports, o).is_ok() {
                self.all[o].answers(o);
            }
        }
    }

    /// Whether a host takes a new connection to its lease.
    pub fn probe(&self, ports: &mut Ports, h: usize) -> Result<(), Broken> {
        ports[h].close();
        self.port(ports, h, PROBE_NS).map(|_| ())
    }

    /// Enters the result of a probe. In the evictor's turn.
    pub fn judged(&self, stats: &Stats, h: usize, probed: Result<(), Broken>) {
        let since = self.all[h].silent_since_ns.load(SeqCst);
        if probed.is_ok() {
            self.all[h].suspect.store(0, SeqCst);
            self.all[h].answers(h);
        } else if matches!(probed, Err(Broken::Silent(_)))
            && (since == 0 || !self.is_outlived(h, since))
        {
            // It remains a suspect, and the tender probes it again.
        } else if self.all[h].state() == REBUILDING
            || self.all[h].state() == WHOLE && self.whole() > 1
        {
            self.give_up(stats, h);
        }
    }

    /// Gives up the copy on a host. In the evictor's turn.
    pub fn give_up(&self, stats: &Stats, h: usize) {
        self.all[h].state.store(SPARE, SeqCst);
        self.all[h].waited_for.store(0, SeqCst);
        self.all[h].silent_since_ns.store(0, SeqCst);
        self.all[h].steady_ns.store(0, SeqCst);
        stats.copies_now.store(self.whole() as u64, SeqCst);
        add(&stats.hosts_lost, 1);
        sys::say(format_args!("memory host {} is lost; {} whole copy left", h + 1, self.whole()));
    }

    /// Returns a spare that lends, and its new lease, if a copy is missing.
    pub fn find_spare(&self, ports: &mut Ports) -> Option<(usize, u64)> {
        let have = (0..self.config.hosts_len).filter(|&h| self.all[h].state() != SPARE).count();
        if have >= self.config.copies {
            return None;
        }
        (0..self.config.hosts_len).find_map(|h| {
            if self.all[h].state() != SPARE || self.config.hosts[h].family() == libc::AF_UNIX {
                return None;
            }
            ports[h].patience = LONG;
            // The new lease replaces the one that was given up on this host, or the random number
            // that the launcher chose for a spare.
            let hello =
                Hello { slots: self.config.slots, ..self.hello(self.all[h].lease.load(SeqCst)) };
            let (w, _) = ports[h].open(&self.config.hosts[h], &hello).ok()?;
            Some((h, w.lease))
        })
    }

    /// Returns how many percent of its slots the host has that is being rebuilt: at least 1. 0 =
    /// there is no such host.
    pub fn filled(&self) -> u64 {
        self.rebuilding().map_or(0, |h| {
            (self.all[h].rebuilt.load(SeqCst) as u64 * 100 / self.config.slots).max(1)
        })
    }

    /// Returns the host that is being rebuilt, if any.
    pub fn rebuilding(&self) -> Option<usize> {
        (0..self.config.hosts_len).find(|&h| self.all[h].state() == REBUILDING)
    }
}
