//! The evictor: a thread that makes room ahead of need and keeps the budget.

mod batch;
mod rebuild;

use crate::budget::Budget;
use crate::hosts::Host;
use crate::hosts::write::{Wait, Writing};
use crate::lane::Lane;
use crate::pager::{Pager, running};
use crate::room::{high_water, low_water};
use crate::sys;
use crate::sys::Lock;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;
use memory_core::PAGE_BYTES;
use memory_core::stats::add;

/// Pages that are unmapped, or stored, in one batch.
const UNMAP_BATCH: usize = 32;
const CLEAN_BATCH: usize = 64;
/// The newest pages of the second-chance list, which are not stored yet: the program is likeliest
/// to touch these again.
const LAG: usize = 64;
/// Time between two ticks, ns: as short as this near the limit, and up to this far from it.
const TICK_NS: u64 = 10_000_000;
const TICK_MAX_NS: u64 = 100_000_000;
/// Memory of a program grows by less than this, bytes in a nanosecond.
const GROWTH_BYTES: u64 = 4;
/// Time between wake-ups of the tender, ns.
const TEND_NS: u64 = 200_000_000;

/// Runs the evictor's thread.
pub extern "C" fn evictor() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-evictor".as_ptr()) };
    let pager = running();
    loop {
        let seen = pager.room.evictor.rings();
        round(pager);
        if !pager.fork.is_wanted() && (pager.fork.is_child() || pager.hosts.rebuilding().is_none())
        {
            pager.room.evictor.sleep(seen, turn(|e| e.tick_ns) / 1000);
        }
    }
}

/// Runs one round of the evictor. Threads that find no room share the work, so turns are short.
fn round(pager: &'static Pager) {
    if pager.fork.is_wanted() {
        turn(Evictor::flush);
        pager.fork.park(|| turn(Evictor::flush));
    }
    while turn(|e| {
        e.tick();
        e.make_room()
    }) {
        // Let other threads run after each turn, not after all of them.
        unsafe { sys!(libc::SYS_sched_yield) };
    }
    if !pager.fork.is_child() {
        turn(Evictor::rebuild);
    }
}

/// The evictor's state, and the lock that guards it. A thread that finds no room evicts for itself:
/// on a busy machine, scheduling the evictor takes longer than a fetch.
struct Turns {
    lock: Lock,
    work: UnsafeCell<Option<Evictor>>,
}

// The lock guards the state.
unsafe impl Sync for Turns {}

static TURNS: Turns = Turns { lock: Lock::new(), work: UnsafeCell::new(None) };

impl Turns {
    /// Returns the state. The caller holds the lock.
    #[allow(clippy::mut_from_ref)]
    unsafe fn work(&self) -> &mut Evictor {
        unsafe { (*self.work.get()).as_mut().expect("begun") }
    }
}

/// Makes the evictor's state, before any thread starts.
pub unsafe fn begin(pager: &'static Pager) {
    unsafe {
        *TURNS.work.get() = Some(Evictor {
            pager,
            lane: pager.lanes.evictor(),
            budget: Budget::open(pager),
            batch: None,
            ticked_ns: 0,
            tick_ns: TICK_NS,
            tended_ns: 0,
            sealed: sys::reserve(CLEAN_BATCH * PAGE_BYTES),
            is_full: false,
        });
    }
}

/// Frees the evictor's turn in a forked child.
pub fn become_child() {
    TURNS.lock.reset();
}

/// Runs `f` in the evictor's turn. Signals are blocked.
pub fn turn<T>(f: impl FnOnce(&mut Evictor) -> T) -> T {
    TURNS.lock.take();
    let r = f(unsafe { TURNS.work() });
    TURNS.lock.give();
    r
}

/// Runs `f` in the evictor's turn if the turn is free. Otherwise does nothing: the evictor may be
/// waiting for the caller's result. The caller retries on its next round.
pub fn try_turn(f: impl FnOnce()) {
    if TURNS.lock.try_take() {
        f();
        TURNS.lock.give();
    }
}

/// Evicts a batch in the calling thread. Returns false if another thread has the turn, or if there
/// is nothing to evict. Signals are blocked.
pub fn help(pager: &Pager) -> bool {
    if pager.fork.is_wanted() || !TURNS.lock.try_take() {
        return false;
    }
    let work = unsafe { TURNS.work() };
    // The budget must hold even if the evictor's thread is not scheduled.
    work.tick();
    // Only the evictor's thread waits for a host that does not answer.
    let mut evicted = work.unmap();
    if work.batch.is_some() || pager.hosts.is_ready(&work.lane.ports) {
        evicted += work.clean(0, Wait::UntilLate);
    }
    TURNS.lock.give();
    evicted > 0
}

/// Makes room during the network wait of a fetch. This needs no wake-up of a thread, and no
/// interrupt to another processor for pages that leave. Does not wait for an answer. Signals are
/// blocked.
pub fn ahead(pager: &Pager) {
    if !TURNS.lock.try_take() {
        return;
    }
    unsafe { TURNS.work() }.ahead(pager);
    TURNS.lock.give();
}

/// Pages that are being stored, and their fingerprints. The lane holds the slots and the memory.
struct Batch {
    pages: [u32; CLEAN_BATCH],
    sums: [u64; CLEAN_BATCH],
    len: usize,
    writes: usize,
    writing: Writing,
}

/// The evictor's state.
pub struct Evictor {
    pager: &'static Pager,
    lane: &'static mut Lane,
    budget: Budget,
    batch: Option<Batch>,
    ticked_ns: u64,
    /// Time until the next tick.
    tick_ns: u64,
    tended_ns: u64,
    /// Room for the encrypted copies of a batch.
    sealed: *mut u8,
    /// The user has the message that far memory is full.
    is_full: bool,
}

impl Evictor {
    /// Runs the periodic work, once in `tick_ns`.
    fn tick(&mut self) {
        let now = sys::now_ns();
        if now - self.ticked_ns < self.tick_ns {
            return;
        }
        self.ticked_ns = now;
        self.budget.sample(self.pager);
        if now - self.tended_ns >= TEND_NS || self.pager.hosts.all.iter().any(Host::is_suspect) {
            self.tended_ns = now;
            self.pager.hosts.tender.ring();
        }
        if !self.pager.fork.is_child() {
            self.reap();
            self.publish();
        }
        self.tick_ns = self.pace();
    }

    /// Returns the time until the next tick. It is short unless the program's memory cannot fill
    /// the budget before it.
    fn pace(&self) -> u64 {
        let Pager { fork, hosts, .. } = self.pager;
        if self.batch.is_some() || fork.is_shared() || hosts.all.iter().any(Host::is_suspect) {
            return TICK_NS;
        }
        (self.budget.slack_bytes() / GROWTH_BYTES).clamp(TICK_NS, TICK_MAX_NS)
    }

    /// Notices children that are gone, and thaws their slots.
    fn reap(&self) {
        let fork = &self.pager.fork;
        let (gone, is_sharing) = (fork.reap(), fork.is_sharing());
        if gone == 0 && !is_sharing {
            return;
        }
        let mut g = self.pager.lock_blocked();
        for _ in 0..gone {
            g.heart.slots.thaw();
        }
        if is_sharing {
            fork.unshare();
        }
    }

    fn publish(&self) {
        let s = self.pager.stats;
        let g = self.pager.lock_blocked();
        let (held, limbo, used, slots, paused) = (
            g.heart.held(),
            g.heart.limbo(),
            g.heart.in_use(),
            g.heart.slots.used(),
            g.prefetcher.accuracy.is_paused(),
        );
        drop(g);
        s.held_now.store(held as u64, Relaxed);
        s.limbo_now.store(limbo as u64, Relaxed);
        s.in_use_now.store(used as u64, Relaxed);
        s.slots_now.store(slots as u64, Relaxed);
        s.prefetch_paused_now.store(paused as u64, Relaxed);
        s.copies_now.store(self.pager.hosts.whole() as u64, Relaxed);
        s.filling_now.store(self.pager.hosts.filled(), Relaxed);
    }

    /// Evicts one batch if room is short. Returns whether there is more to do.
    fn make_room(&mut self) -> bool {
        self.shed();
        let g = self.pager.lock_blocked();
        let (room, low, high, over) = (
            g.heart.room(),
            low_water(&g.heart),
            high_water(&g.heart),
            g.heart.held() > g.heart.limit(),
        );
        drop(g);
        if (room >= high && !over) || self.pager.fork.is_wanted() {
            self.acknowledged(Wait::Never);
            return false;
        }
        let unmapped = self.unmap();
        let cleaned = self.clean(if room < low || over { 0 } else { LAG }, Wait::Long);
        if unmapped + cleaned == 0 && room == 0 && self.pager.room.queue.is_waited_in() {
            self.pager.room.overdraw(&mut self.pager.lock_blocked().heart, CLEAN_BATCH);
        }
        unmapped + cleaned > 0
    }

    /// Evicts a batch if there is not enough room for one.
    fn ahead(&mut self, pager: &Pager) {
        self.tick();
        let g = pager.lock_blocked();
        let (room, high) = (g.heart.room(), high_water(&g.heart));
        drop(g);
        if room + UNMAP_BATCH > high || pager.fork.is_wanted() {
            return;
        }
        self.unmap();
        if self.batch.is_some() || pager.hosts.is_ready(&self.lane.ports) {
            self.clean(LAG, Wait::Never);
        }
    }

    /// Moves the oldest pages of the program to the second-chance list; returns how many.
    fn unmap(&mut self) -> usize {
        let pager = self.pager;
        let mut victims = [0u32; UNMAP_BATCH];
        let mut g = pager.lock_blocked();
        let (n, first) = g.heart.victims(&mut victims);
        let (mut i, mut done) = (0, 0);
        while i < n {
            let mut k = 1;
            while i + k < n && victims[i + k] == victims[i] + k as u32 {
                k += 1;
            }
            let moved = pager.memory.take_out(first + i as u32, victims[i], k);
            for &page in &victims[i..i + moved] {
                g.heart.unmapped(page);
            }
            if moved < k {
                g.heart.stays(victims[i + moved]);
                g.heart.skip_frame();
            }
            i += moved + (moved < k) as usize;
            done += moved;
        }
        drop(g);
        add(&pager.stats.pages_evicted, done as u64);
        done
    }

    /// Returns memory to the kernel when the program's other memory has grown into the budget.
    fn shed(&mut self) {
        let mut frames = [0u32; CLEAN_BATCH];
        loop {
            let mut g = self.pager.lock_blocked();
            let over = g.heart.held().saturating_sub(g.heart.limit()).min(CLEAN_BATCH);
            let n = g.heart.shed(&mut frames[..over]);
            self.release(&frames[..n]);
            drop(g);
            if n == 0 {
                return;
            }
            self.pager.room.made();
        }
    }

    fn release(&self, frames: &[u32]) {
        let mut i = 0;
        while i < frames.len() {
            let mut k = 1;
            while i + k < frames.len() && frames[i + k] == frames[i] + k as u32 {
                k += 1;
            }
            self.pager.memory.empty(self.pager.memory.frame(frames[i]), k);
            i += k;
        }
    }

    /// Empties the second-chance list before a fork. Its memory becomes the child's allowance.
    pub fn flush(&mut self) {
        loop {
            self.clean(0, Wait::Long);
            let mut frames = [0u32; CLEAN_BATCH];
            let mut g = self.pager.lock_blocked();
            let n = g.heart.shed(&mut frames);
            self.release(&frames[..n]);
            let left = g.heart.limbo();
            drop(g);
            if left == 0 {
                return;
            }
        }
    }
}
