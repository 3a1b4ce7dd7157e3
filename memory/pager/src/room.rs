//! Room: the pages that far memory may still bring in, the threads that wait for more, and the
//! overdraft on the budget while a memory host is late.

use crate::config::TRANSFERS;
use crate::queue::{Alarm, Queue};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use memory_core::PAGE_BYTES;
use memory_core::heart::Heart;
use memory_core::stats::{Stats, add};

/// Pages of one overdraft while a memory host is late, and the share of the budget that is reserved
/// for that.
pub const OVERDRAFT_PAGES: usize = 64;
const OVERDRAFT_SHARE: usize = 64;

/// Room below which the evictor is woken, pages.
pub fn low_water(heart: &Heart) -> usize {
    (heart.limit() / 16).clamp(32, 2048)
}

/// Room up to which the evictor works, pages.
pub fn high_water(heart: &Heart) -> usize {
    (heart.limit() / 8).clamp(64, 4096).min(heart.frames() / 2)
}

/// Whether room is so short that a fetch of an object would be cut.
pub fn is_short(heart: &Heart) -> bool {
    heart.room() < low_water(heart) / 2
}

/// Limits a fetch of `n` pages to half of the room.
pub fn clip(heart: &Heart, n: usize) -> usize {
    n.min((heart.room() / 2).max(1))
}

/// The room of a pager, and the evictor that makes it.
pub struct Room {
    /// Threads that wait for room.
    pub queue: Queue,
    /// Pages by which the limit exceeds the budget.
    overdrawn: AtomicUsize,
    overdraft_max: usize,
    stats: &'static Stats,
    /// Wakes the evictor.
    pub evictor: Alarm,
}

impl Room {
    /// Returns the room of a pager with this budget.
    pub fn new(local_bytes: u64, stats: &'static Stats) -> Room {
        Room {
            queue: Queue::new(),
            overdrawn: AtomicUsize::new(0),
            overdraft_max: local_bytes as usize / PAGE_BYTES / OVERDRAFT_SHARE,
            stats,
            evictor: Alarm::new(),
        }
    }

    /// Reports that there may be room. Wakes as many threads as can fetch at once; each of them
    /// wakes the next.
    pub fn made(&self) {
        self.queue.wake(TRANSFERS);
    }

    /// Wakes the evictor when room runs low.
    pub fn look_ahead(&self, heart: &Heart) {
        if heart.room() < low_water(heart) {
            self.evictor.ring();
        }
    }

    /// Returns the pages of the budget that are reserved for times when a memory host is late.
    pub fn overdraft_max(&self) -> usize {
        self.overdraft_max
    }

    /// Whether the reserved share has pages for another overdraft.
    pub fn may_overdraw(&self) -> bool {
        self.overdrawn.load(SeqCst) + OVERDRAFT_PAGES <= self.overdraft_max
    }

    /// Raises the limit above the budget, so that the program is not blocked. Counts in
    /// `over_budget`, which `top` shows, once the reserved share is used up.
    pub fn overdraw(&self, heart: &mut Heart, pages: usize) {
        let limit = heart.limit().max(heart.held()) + pages;
        heart.set_limit(limit);
        if self.overdrawn.fetch_add(pages, SeqCst) + pages > self.overdraft_max {
            add(&self.stats.over_budget, 1);
        }
        self.made();
    }

    /// Returns the pages of the overdraft, and reduces it by one step.
    pub fn repay(&self) -> usize {
        let overdrawn = self.overdrawn.load(SeqCst);
        self.overdrawn.store(overdrawn - overdrawn / 16 - (overdrawn > 0) as usize, SeqCst);
        overdrawn
    }

    /// Forgets the threads that wait, in a forked child.
    pub fn become_child(&self) {
        self.queue.reset();
    }
}
