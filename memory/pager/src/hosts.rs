//! The memory hosts of one program: which hold a complete copy, and what happens when one is lost.
//!
//! ```text
//!              joined, new lease            every slot copied
//!   Spare ────────────────────► Rebuilding ────────────────────► Whole
//!     ▲                            │                               │
//!     └────────────────────────────┴──── a write failed on it ◄────┘
//! ```
//! A host that missed a write is never read again before it was rebuilt. These states change in the evictor's turn only,
//! as all that is written; a reader that meets a broken connection reads the other copy and reports it.
//! Forked children share them, so that a child finds its snapshot on a host that was rebuilt after the fork.

use crate::config::{Config, HOSTS_MAX};
use crate::lane::Ports;
use crate::pager::{pager, Pager};
use crate::port::{Broken, Port, Shared, Transport, LONG, SHORT};
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::SeqCst};
use memory_core::stats::{add, Stats};
use memory_core::wire::{Hello, Status, TCP_RTO_MAX_MS};

pub const SPARE: u8 = 0;
pub const REBUILDING: u8 = 1;
pub const WHOLE: u8 = 2;

/// An acknowledgement that takes longer keeps no thread of the program waiting.
const LATE_AFTER_NS: u64 = 10_000_000;
/// How long nobody may listen where the only copy was before the program is stopped: a tunnel on the way may be restarting.
const GONE_AFTER_NS: u64 = 1_000_000_000;
/// Between two tries; and the longest one to read the only copy, for each may take twice as long as the one before.
const PAUSE_NS: u64 = 2_000_000;
const TRY_MAX_NS: u64 = 4_000_000_000;
/// An answer that came longer ago does not show that a host answers now; a silence that lasts longer is one of the link.
const FRESH_NS: u64 = LONG / 2;
/// A host that does not answer for so long does not answer steadily.
const GAP_NS: u64 = LONG;
/// How long a suspect has to answer a probe. Others are asked between two probes: they are to be steady on a busy machine, too.
const PROBE_NS: u64 = LONG / 2;
/// After a silence of all hosts, what was sent into it is sent again within this time.
const RESENT_NS: u64 = 1_000_000 * TCP_RTO_MAX_MS.1 as u64;

/// Whether asking again cannot help: the host answered, and has not what is asked for.
fn is_final(why: Broken) -> bool {
    matches!(why, Broken::Refused(s) if s != Status::BadRequest)
}

/// Of two copies that failed, whether the first is the one to hope for.
fn is_better(a: Broken, b: Broken) -> bool {
    let hope = |why| if is_final(why) { 0 } else { 1 + matches!(why, Broken::Silent(_)) as u8 };
    hope(a) >= hope(b)
}

/// What asking in vain has come to.
#[derive(Default)]
struct Vain {
    silent_ns: u64,
    /// Since when nobody listens; 0: somebody does.
    gone_since_ns: u64,
}

/// How long to wait for the acknowledgement of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Never,
    UntilLate,
    /// Until every copy that still counts has acknowledged.
    Long,
}

/// A write that is under way: where it was begun, and who has not acknowledged it yet.
#[derive(Default)]
pub struct Writing {
    begun: [bool; HOSTS_MAX],
    owed: [bool; HOSTS_MAX],
}

/// One memory host. Memory of zeros is a spare.
pub struct Host {
    pub state: AtomicU8,
    pub lease: AtomicU64,
    /// A reader met a broken connection: prefer another until the evictor has looked.
    pub suspect: AtomicU8,
    /// Since when all that is asked of it waits in vain; 0: nothing does, or something was answered since.
    silent_since_ns: AtomicU64,
    /// When it answered last, and since when it answers steadily.
    answered_ns: AtomicU64,
    steady_ns: AtomicU64,
    /// The program stands still because this one is silent, and has said so.
    waited_for: AtomicU8,
    pub shared: Shared,
    /// Next slot to copy while rebuilding.
    pub rebuilt: AtomicU32,
}

pub struct Hosts {
    pub config: Config,
    pub all: &'static [Host; HOSTS_MAX],
    /// Spreads reads over the copies.
    turn: AtomicU32,
    /// When the write began that is under way; 0: none is.
    writing_since_ns: AtomicU64,
}

impl Hosts {
    /// The launcher has leased from the first `copies` hosts; the others are spares.
    pub fn new(config: Config) -> Hosts {
        let all = unsafe { &*sys::reserve_shared(size_of::<[Host; HOSTS_MAX]>()).cast::<[Host; HOSTS_MAX]>() };
        for (i, host) in all.iter().enumerate() {
            host.state.store(if i < config.copies.min(config.hosts_len) { WHOLE } else { SPARE }, SeqCst);
            host.lease.store(config.hosts[i].lease, SeqCst);
        }
        Hosts { config, all, turn: AtomicU32::new(0), writing_since_ns: AtomicU64::new(0) }
    }

    fn state(&self, h: usize) -> u8 {
        self.all[h].state.load(SeqCst)
    }

    pub fn whole(&self) -> usize {
        (0..self.config.hosts_len).filter(|&h| self.state(h) == WHOLE).count()
    }

    /// Hosts whose memory is mapped here, so that it counts as shared memory of this process.
    pub fn mapped(&self) -> usize {
        self.all.iter().filter(|host| host.shared.is_mapped()).count()
    }

    /// Whether an acknowledgement is overdue, so that nothing is evicted for a while.
    pub fn is_late(&self) -> bool {
        let since = self.writing_since_ns.load(SeqCst);
        since != 0 && sys::now_ns().saturating_sub(since) > LATE_AFTER_NS
    }

    /// What joins a lease.
    fn hello(&self, lease: u64) -> Hello {
        Hello { lease, slots: 0, token: self.config.token, share: false, last: false }
    }

    /// Tells the hosts that this process is about to end, so that its leases end with it and not only after a while.
    pub fn part(&self) {
        for h in (0..self.config.hosts_len).filter(|&h| self.state(h) != SPARE) {
            let mut port = Port::default();
            port.patience = SHORT;
            let _ = port.open(&self.config.hosts[h], &Hello { last: true, ..self.hello(self.all[h].lease.load(SeqCst)) });
            port.close();
        }
    }

    /// Connects a lane's port to a host's lease, if it is not.
    fn port<'l>(&self, ports: &'l mut Ports, h: usize, patience_ns: u64) -> Result<&'l mut Port, Broken> {
        let (port, lease) = (&mut ports[h], self.all[h].lease.load(SeqCst));
        (port.patience, port.spares) = (patience_ns, false);
        if !port.is_open(lease) {
            port.open(&self.config.hosts[h], &self.hello(lease))?;
        }
        Ok(port)
    }

    /// Joins the leases that the launcher has opened: maps the memory of hosts on unix sockets, connects to the others. The
    /// connections stay, for a lease ends soon after its last one.
    pub unsafe fn attach(&self, ports: &mut Ports) {
        for h in 0..self.config.hosts_len {
            if self.state(h) != WHOLE {
                continue;
            }
            if self.config.hosts[h].family() != libc::AF_UNIX {
                let mut vain = Vain::default();
                while let Err(e) = self.port(ports, h, LONG) {
                    if self.is_over(&mut vain, h, e) {
                        sys::die(format_args!("memory host {} does not take this program back ({e:?})", h + 1));
                    }
                }
                self.answers(h);
                continue;
            }
            let lease = self.all[h].lease.load(SeqCst);
            ports[h].patience = self.config.patience_ns;
            match ports[h].open(&self.config.hosts[h], &Hello { share: true, ..self.hello(lease) }) {
                Ok((w, fd)) if fd >= 0 && self.all[h].shared.map(fd, w.slots) => {}
                e => sys::die(format_args!("memory host {} does not hand its memory over ({e:?})", h + 1)),
            }
        }
    }

    /// Connects to every whole copy that these ports have no connection to: a lease ends soon after its last one, also under a
    /// forked child that outlives its parent. A host that is away is met again by whoever reads; a suspect is probed.
    pub fn hold(&self, ports: &mut Ports) {
        for h in 0..self.config.hosts_len {
            if self.state(h) == WHOLE && !self.all[h].shared.is_mapped() && !self.is_suspect(h) {
                let _ = self.port(ports, h, LONG);
            }
        }
    }

    /// The same for what is written: a copy that misses it is given up, so it is waited for as long as no host answers.
    fn port_to_write<'l>(&self, ports: &'l mut Ports, h: usize, patience_ns: u64) -> Result<&'l mut Port, Broken> {
        let (port, lease) = (&mut ports[h], self.all[h].lease.load(SeqCst));
        (port.patience, port.spares) = (patience_ns, true);
        if !port.is_open(lease) {
            port.open(&self.config.hosts[h], &self.hello(lease))?;
        }
        Ok(port)
    }

    /// Whether another host answers while this one is silent: since then, and for long enough to give it up.
    pub fn is_outlived(&self, h: usize, silent_since_ns: u64) -> bool {
        let now = sys::now_ns();
        let outlives = |o: usize| {
            let other = &self.all[o];
            let since = other.steady_ns.load(SeqCst).max(silent_since_ns);
            let fresh = now.saturating_sub(other.answered_ns.load(SeqCst)) < FRESH_NS;
            other.shared.is_mapped() || fresh && now.saturating_sub(since) >= LONG
        };
        (0..self.config.hosts_len).any(|o| o != h && self.state(o) != SPARE && outlives(o))
    }

    /// A write to this host waits: the tender asks the others, for there may just have been nothing to ask.
    pub fn is_slow(&self, h: usize, pager: &Pager) {
        self.all[h].suspect.store(1, SeqCst);
        pager.tender_wake.fetch_add(1, SeqCst);
        sys::futex_wake(&pager.tender_wake, 1);
    }

    /// Asks the other hosts for a sign of life.
    pub fn ask_others(&self, ports: &mut Ports, h: usize) {
        for o in (0..self.config.hosts_len).filter(|&o| o != h && self.state(o) != SPARE && !self.all[o].shared.is_mapped()) {
            if self.probe(ports, o).is_ok() {
                self.answers(o);
            }
        }
    }

    /// The `attempt`-th time, from 0. `meanwhile` is what is done while the answer is on its way.
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
        // Another copy can answer instead; if all are slow to, they are given more time by turns. On a machine that is too busy
        // to answer, being asked anew would only be more of the same.
        let other = (0..self.config.hosts_len).any(|o| o != h && self.state(o) == WHOLE);
        let (first, most) = if other { (SHORT, LONG) } else { (LONG, TRY_MAX_NS.min(self.config.patience_ns)) };
        let port = self.port(ports, h, most.min(first << attempt.min(8)))?;
        port.begin_read(slots)?;
        meanwhile();
        port.end_read(slots, into)
    }

    /// Reads slots from a whole copy other than `not`, whichever answers first. Ends the program if none ever does.
    /// Returns the host that answered.
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
                if h == not || self.state(h) != WHOLE || late != self.is_suspect(h) {
                    continue;
                }
                let Err(why) = self.read_from(ports, h, slots, into, attempt, &mut meanwhile) else {
                    if failed.is_some() {
                        add(&stats.reads_failed_over, 1);
                    }
                    self.answers(h);
                    return h;
                };
                self.all[h].suspect.store(1, SeqCst);
                failed = failed.filter(|&(_, other)| is_better(other, why)).or(Some((h, why)));
            }
            match failed {
                None => self.lost(not, format_args!("no other copy of the page is whole")),
                Some((h, why)) if self.is_over(&mut vain, h, why) => self.lost_by(h, why),
                Some(_) => {}
            }
        }
        unreachable!("it is lost before it was asked so often")
    }

    /// Whether asking a host has been in vain for good: it forgot the lease, is gone, or is silent for longer than the program
    /// has patience. Else it may be asked again now.
    fn is_over(&self, vain: &mut Vain, h: usize, why: Broken) -> bool {
        if is_final(why) {
            return true;
        }
        if let Broken::Silent(ns) = why {
            (vain.silent_ns, vain.gone_since_ns) = (vain.silent_ns + ns.max(PAUSE_NS), 0);
            self.is_silent(h, vain.silent_ns);
        } else if vain.gone_since_ns == 0 {
            vain.gone_since_ns = sys::now_ns();
        }
        let gone_ns = if vain.gone_since_ns > 0 { sys::now_ns() - vain.gone_since_ns } else { 0 };
        if vain.silent_ns >= self.config.patience_ns || gone_ns > GONE_AFTER_NS {
            return true;
        }
        let never = AtomicU32::new(0);
        sys::futex_wait(&never, 0, PAUSE_NS / 1000);
        false
    }

    /// Whoever asks a host has waited in vain for so long. Says so, once, if the program stands still for it: when nobody else
    /// was answered meanwhile, who would have been over another connection.
    pub fn is_silent(&self, h: usize, ns: u64) {
        let (host, now, long) = (&self.all[h], sys::now_ns(), self.config.patience_ns / 12);
        let since = host.silent_since_ns.compare_exchange(0, now, SeqCst, SeqCst).err().unwrap_or(now);
        if ns < long || now.saturating_sub(since) < long {
            return;
        }
        let is_whole = |o: usize| self.state(o) == WHOLE;
        // Another copy answers, or has been said to be waited for.
        let other = |o: usize| {
            let Host { shared, answered_ns, waited_for, .. } = &self.all[o];
            shared.is_mapped() || now.saturating_sub(answered_ns.load(SeqCst)) < long || waited_for.load(SeqCst) == 1
        };
        if !is_whole(h) || (0..self.config.hosts_len).any(|o| o != h && is_whole(o) && other(o)) {
            return;
        }
        if host.waited_for.swap(1, SeqCst) == 1 {
            return;
        }
        let seconds = self.config.patience_ns / 1_000_000_000;
        if self.whole() > 1 {
            return sys::say(format_args!(
                "the program stands still: no memory host answers. They are waited for, {seconds} s in all (--patience)"
            ));
        }
        sys::say(format_args!(
            "the program stands still: memory host {} holds the only copy and does not answer. It is waited for, {seconds} s in all (--patience)",
            h + 1
        ));
    }

    /// A host has answered.
    fn answers(&self, h: usize) {
        let Host { silent_since_ns, waited_for, answered_ns, steady_ns, .. } = &self.all[h];
        let (now, since) = (sys::now_ns(), silent_since_ns.load(SeqCst));
        if now.saturating_sub(answered_ns.swap(now, SeqCst)) > GAP_NS {
            steady_ns.store(now, SeqCst);
        }
        if since != 0 {
            if now.saturating_sub(since) > FRESH_NS {
                steady_ns.store(now + RESENT_NS, SeqCst);
            }
            silent_since_ns.store(0, SeqCst);
        }
        if waited_for.load(SeqCst) == 1 && waited_for.swap(0, SeqCst) == 1 {
            sys::say(format_args!("memory host {} answers again: the program goes on", h + 1));
        }
    }

    fn lost_by(&self, h: usize, why: Broken) -> ! {
        match why {
            Broken::Refused(s) => self.lost(h, format_args!("{}", s.text())),
            Broken::Away => self.lost(h, format_args!("is gone: nobody listens there")),
            Broken::Silent(_) => self.lost(h, format_args!("has not answered for {} s", self.config.patience_ns / 1_000_000_000)),
        }
    }

    pub fn lost(&self, h: usize, why: core::fmt::Arguments) -> ! {
        let what = if pager().is_some_and(|p| p.fork.is_child()) { "forked child" } else { "program" };
        if self.whole() > 1 {
            sys::die(format_args!("far memory is lost: no copy answers; memory host {}: {why}. The {what} is stopped", h + 1))
        }
        sys::die(format_args!(
            "far memory is lost: memory host {} held the only copy and {why}. The {what} is stopped before it reads a wrong byte; name two hosts in --from to survive this",
            h + 1
        ))
    }

    /// Whether a write would keep nobody waiting but for its acknowledgements: every copy is connected and none is suspect.
    pub fn is_ready(&self, ports: &Ports) -> bool {
        let ready = |h: usize| self.all[h].shared.is_mapped() || ports[h].is_open(self.all[h].lease.load(SeqCst)) && !self.is_suspect(h);
        (0..self.config.hosts_len).all(|h| self.state(h) == SPARE || ready(h))
    }

    /// How long an acknowledgement may take. A write to the only copy is not begun again beside one that may still arrive.
    fn write_patience(&self) -> u64 {
        if self.whole() > 1 {
            LONG
        } else {
            self.config.patience_ns
        }
    }

    /// Sends pages to every copy.
    pub fn begin_write(&self, ports: &mut Ports, slots: &[u32], from: &[*mut u8]) -> Writing {
        self.writing_since_ns.store(sys::now_ns(), SeqCst);
        let patience = self.write_patience();
        let mut w = Writing::default();
        for h in (0..self.config.hosts_len).filter(|&h| self.state(h) != SPARE) {
            if self.all[h].shared.is_mapped() {
                let _ = (&self.all[h].shared).begin_write(slots, from);
            } else {
                w.owed[h] = true;
                w.begun[h] = self.port_to_write(ports, h, patience).and_then(|p| p.begin_write(slots, from)).is_ok();
            }
        }
        w
    }

    /// Whether each copy that still counts has acknowledged.
    pub fn end_write(&self, ports: &mut Ports, stats: &Stats, w: &mut Writing, slots: &[u32], from: &[*mut u8], wait: Wait) -> bool {
        for h in 0..self.config.hosts_len {
            if !w.owed[h] {
                continue;
            }
            let lease = self.all[h].lease.load(SeqCst);
            if self.state(h) == SPARE || w.begun[h] && !ports[h].is_open(lease) {
                // Given up meanwhile, and perhaps admitted again: then it is filled with this, too.
                ports[h].close();
            } else {
                let ns = match wait {
                    Wait::Never => 0,
                    _ => (self.writing_since_ns.load(SeqCst) + LATE_AFTER_NS).saturating_sub(sys::now_ns()),
                };
                if wait != Wait::Long && w.begun[h] && !ports[h].answers_within(ns) {
                    return false;
                }
                // By now it may be the only one.
                (ports[h].patience, ports[h].spares) = (self.write_patience(), true);
                self.see_acknowledged(ports, w, h);
                match if w.begun[h] { ports[h].end_write() } else { Err(Broken::Away) } {
                    Ok(()) => self.answers(h),
                    // No host has answered for as long as the program has patience.
                    Err(why @ Broken::Silent(ns)) if ns >= self.config.patience_ns && self.whole() > 1 => self.lost_by(h, why),
                    Err(_) => self.missed(ports, stats, h, slots, from),
                }
            }
            w.owed[h] = false;
        }
        self.writing_since_ns.store(0, SeqCst);
        true
    }

    /// Those that have acknowledged already show that they answer, before another one is waited for.
    fn see_acknowledged(&self, ports: &Ports, w: &Writing, h: usize) {
        for o in (h + 1..self.config.hosts_len).filter(|&o| w.owed[o] && w.begun[o] && self.state(o) != SPARE) {
            if ports[o].answers_within(0) {
                self.answers(o);
            }
        }
    }

    /// A host missed a write. With another whole copy it is out, and is filled again under a new lease: what may still be under
    /// way to the old one cannot overtake anything. The only copy is asked again until it is lost.
    fn missed(&self, ports: &mut Ports, stats: &Stats, h: usize, slots: &[u32], from: &[*mut u8]) {
        ports[h].close();
        if self.state(h) != WHOLE || self.whole() > 1 {
            return self.give_up(stats, h);
        }
        let mut vain = Vain::default();
        loop {
            let patience = self.config.patience_ns;
            let again = self.port(ports, h, patience).and_then(|p| p.begin_write(slots, from).and_then(|()| p.end_write()));
            let Err(why) = again else { return self.answers(h) };
            if self.is_over(&mut vain, h, why) {
                self.lost_by(h, why);
            }
        }
    }

    pub fn give_up(&self, stats: &Stats, h: usize) {
        self.all[h].state.store(SPARE, SeqCst);
        self.all[h].waited_for.store(0, SeqCst);
        self.all[h].silent_since_ns.store(0, SeqCst);
        self.all[h].steady_ns.store(0, SeqCst);
        stats.copies_now.store(self.whole() as u64, SeqCst);
        add(&stats.hosts_lost, 1);
        sys::say(format_args!("memory host {} is lost; {} whole copy left", h + 1, self.whole()));
    }

    pub fn is_suspect(&self, h: usize) -> bool {
        self.all[h].suspect.load(SeqCst) != 0 && self.state(h) != SPARE
    }

    pub fn any_suspect(&self) -> bool {
        (0..self.config.hosts_len).any(|h| self.is_suspect(h))
    }

    /// Whether a host takes a new connection to its lease.
    pub fn probe(&self, ports: &mut Ports, h: usize) -> Result<(), Broken> {
        ports[h].close();
        self.port(ports, h, PROBE_NS).map(|_| ())
    }

    /// Enters what a probe has shown. In the evictor's turn.
    pub fn judged(&self, stats: &Stats, h: usize, probed: Result<(), Broken>) {
        let since = self.all[h].silent_since_ns.load(SeqCst);
        if probed.is_ok() {
            self.all[h].suspect.store(0, SeqCst);
            self.answers(h);
        } else if matches!(probed, Err(Broken::Silent(_))) && (since == 0 || !self.is_outlived(h, since)) {
            // It stays a suspect, and is asked again.
        } else if self.state(h) == REBUILDING || self.state(h) == WHOLE && self.whole() > 1 {
            self.give_up(stats, h);
        }
    }

    /// If a copy is missing: a spare that lends, and its new lease.
    pub fn find_spare(&self, ports: &mut Ports) -> Option<(usize, u64)> {
        let have = (0..self.config.hosts_len).filter(|&h| self.state(h) != SPARE).count();
        if have >= self.config.copies {
            return None;
        }
        (0..self.config.hosts_len).find_map(|h| {
            if self.state(h) != SPARE || self.config.hosts[h].family() == libc::AF_UNIX {
                return None;
            }
            ports[h].patience = LONG;
            // In place of the one that was given up there, or of a number that stands for none.
            let hello = Hello { slots: self.config.slots, ..self.hello(self.all[h].lease.load(SeqCst)) };
            let (w, _) = ports[h].open(&self.config.hosts[h], &hello).ok()?;
            Some((h, w.lease))
        })
    }

    /// A spare begins to be filled. In the evictor's turn.
    pub fn admit(&self, h: usize, lease: u64) {
        self.all[h].lease.store(lease, SeqCst);
        self.all[h].rebuilt.store(0, SeqCst);
        self.all[h].suspect.store(0, SeqCst);
        self.all[h].state.store(REBUILDING, SeqCst);
    }

    /// The host that is being rebuilt, if any.
    pub fn rebuilding(&self) -> Option<usize> {
        (0..self.config.hosts_len).find(|&h| self.state(h) == REBUILDING)
    }

    /// Stores pages on the host that is being rebuilt only.
    pub fn write_to(&self, ports: &mut Ports, stats: &Stats, h: usize, slots: &[u32], from: &[*mut u8]) -> bool {
        self.writing_since_ns.store(sys::now_ns(), SeqCst);
        let done = self.port_to_write(ports, h, LONG).and_then(|p| p.begin_write(slots, from).and_then(|()| p.end_write()));
        self.writing_since_ns.store(0, SeqCst);
        match done {
            Ok(()) => self.answers(h),
            Err(_) => self.give_up(stats, h),
        }
        done.is_ok()
    }
}
