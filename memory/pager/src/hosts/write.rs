//! Writes to the copies: to all of them at once. A copy that misses a write is given up if another
//! one has it.

use super::silence::Vain;
use super::{Hosts, SPARE, WHOLE};
use crate::config::HOSTS_MAX;
use crate::lane::Ports;
use crate::port::Port;
use crate::sys;
use crate::transport::{Broken, LONG, Transport};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::stats::Stats;

/// Threads of the program do not wait longer than this for an acknowledgement.
const LATE_AFTER_NS: u64 = 10_000_000;

/// How long to wait for the acknowledgement of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Never,
    UntilLate,
    /// Until every copy that still counts has acknowledged.
    Long,
}

/// A write that is under way: the hosts that were sent it, and those that have not acknowledged it
/// yet.
#[derive(Default)]
pub struct Writing {
    begun: [bool; HOSTS_MAX],
    owed: [bool; HOSTS_MAX],
}

impl Hosts {
    /// Whether an acknowledgement is overdue. Threads of the program do not evict then.
    pub fn is_late(&self) -> bool {
        let since = self.writing_since_ns.load(SeqCst);
        since != 0 && sys::now_ns().saturating_sub(since) > LATE_AFTER_NS
    }

    /// Whether a write would wait for acknowledgements only: every copy is connected, and no host
    /// is a suspect.
    pub fn is_ready(&self, ports: &Ports) -> bool {
        let ready = |h: usize| {
            self.all[h].shared.is_mapped()
                || ports[h].is_open(self.all[h].lease.load(SeqCst)) && !self.all[h].is_suspect()
        };
        (0..self.config.hosts_len).all(|h| self.all[h].state() == SPARE || ready(h))
    }

    /// Returns how long an acknowledgement may take, ns. A write to the only copy gets all of
    /// `--patience`: a second attempt could race with the first one, which may still arrive.
    fn write_patience(&self) -> u64 {
        if self.whole() > 1 { LONG } else { self.config.patience_ns }
    }

    /// Connects like [`Hosts::port`]. A copy that misses a write is given up, so the port waits for
    /// as long as no host answers.
    fn port_to_write<'l>(
        &self,
        ports: &'l mut Ports,
        h: usize,
        patience_ns: u64,
    ) -> Result<&'l mut Port, Broken> {
        let (port, lease) = (&mut ports[h], self.all[h].lease.load(SeqCst));
        (port.patience, port.spares) = (patience_ns, true);
        if !port.is_open(lease) {
            port.open(&self.config.hosts[h], &self.hello(lease))?;
        }
        Ok(port)
    }

    /// Sends pages to every copy.
    pub fn begin_write(&self, ports: &mut Ports, slots: &[u32], from: &[*mut u8]) -> Writing {
        self.writing_since_ns.store(sys::now_ns(), SeqCst);
        let patience = self.write_patience();
        let mut w = Writing::default();
        for h in (0..self.config.hosts_len).filter(|&h| self.all[h].state() != SPARE) {
            if self.all[h].shared.is_mapped() {
                let _ = (&self.all[h].shared).begin_write(slots, from);
            } else {
                w.owed[h] = true;
                w.begun[h] = self
                    .port_to_write(ports, h, patience)
                    .and_then(|p| p.begin_write(slots, from))
                    .is_ok();
            }
        }
        w
    }

    /// Whether each copy that still counts has acknowledged.
    pub fn end_write(
        &self,
        ports: &mut Ports,
        stats: &Stats,
        w: &mut Writing,
        slots: &[u32],
        from: &[*mut u8],
        wait: Wait,
    ) -> bool {
        for h in 0..self.config.hosts_len {
            if !w.owed[h] {
                continue;
            }
            let lease = self.all[h].lease.load(SeqCst);
            if self.all[h].state() == SPARE || w.begun[h] && !ports[h].is_open(lease) {
                // The host was given up in the meantime. If it was admitted again, its rebuild
                // copies these pages.
                ports[h].close();
            } else {
                let ns = match wait {
                    Wait::Never => 0,
                    _ => (self.writing_since_ns.load(SeqCst) + LATE_AFTER_NS)
                        .saturating_sub(sys::now_ns()),
                };
                if wait != Wait::Long && w.begun[h] && !ports[h].answers_within(ns) {
                    return false;
                }
                // This host may hold the only copy by now.
                (ports[h].patience, ports[h].spares) = (self.write_patience(), true);
                self.see_acknowledged(ports, w, h);
                match if w.begun[h] { ports[h].end_write() } else { Err(Broken::Away) } {
                    Ok(()) => self.all[h].answers(h),
                    // No host has answered within `--patience`.
                    Err(why @ Broken::Silent(ns))
                        if ns >= self.config.patience_ns && self.whole() > 1 =>
                    {
                        self.lost_by(h, why)
                    }
                    Err(_) => self.missed(ports, stats, h, slots, from),
                }
            }
            w.owed[h] = false;
        }
        self.writing_since_ns.store(0, SeqCst);
        true
    }

    /// Records the hosts that have acknowledged already, before the caller waits for host `h`.
    fn see_acknowledged(&self, ports: &Ports, w: &Writing, h: usize) {
        for o in (h + 1..self.config.hosts_len)
            .filter(|&o| w.owed[o] && w.begun[o] && self.all[o].state() != SPARE)
        {
            if ports[o].answers_within(0) {
                self.all[o].answers(o);
            }
        }
    }

    /// Handles a missed write. If another whole copy exists, the host is given up and is rebuilt
    /// later under a new lease: a late write to the old lease cannot overwrite newer pages. Writes
    /// to the only copy are retried until it is lost.
    fn missed(&self, ports: &mut Ports, stats: &Stats, h: usize, slots: &[u32], from: &[*mut u8]) {
        ports[h].close();
        if self.all[h].state() != WHOLE || self.whole() > 1 {
            return self.give_up(stats, h);
        }
        let mut vain = Vain::default();
        loop {
            let patience = self.config.patience_ns;
            let again = self
                .port(ports, h, patience)
                .and_then(|p| p.begin_write(slots, from).and_then(|()| p.end_write()));
            let Err(why) = again else { return self.all[h].answers(h) };
            if vain.is_over(self, h, why) {
                self.lost_by(h, why);
            }
        }
    }

    /// Stores pages on the host that is being rebuilt only.
    pub fn write_to(
        &self,
        ports: &mut Ports,
        stats: &Stats,
        h: usize,
        slots: &[u32],
        from: &[*mut u8],
    ) -> bool {
        self.writing_since_ns.store(sys::now_ns(), SeqCst);
        let done = self
            .port_to_write(ports, h, LONG)
            .and_then(|p| p.begin_write(slots, from).and_then(|()| p.end_write()));
        self.writing_since_ns.store(0, SeqCst);
        match done {
            Ok(()) => self.all[h].answers(h),
            Err(_) => self.give_up(stats, h),
        }
        done.is_ok()
    }
}
