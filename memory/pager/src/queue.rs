//! Wait queues: one for lanes, one for room, and some for busy pages. With a single queue, every
//! page that arrives would wake all of 64 threads. Alarms: one for the evictor, one for the tender.

use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// A waiting thread wakes after this time at the latest, and checks again.
const LOOK_US: u64 = 10_000;
/// Wakes all waiters of the queue.
const ALL: usize = i32::MAX as usize;
/// Queues that all pages share.
const PAGES: usize = 32;

/// Threads that wait for one thing. Memory of zeros is an empty queue.
pub struct Queue {
    changes: AtomicU32,
    waiters: AtomicU32,
}

impl Queue {
    /// Returns an empty queue.
    pub const fn new() -> Queue {
        Queue { changes: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// Returns the count of changes. Read it before you check for the resource, then pass it to
    /// [`Queue::wait`]: a change after the check ends that wait at once.
    pub fn seen(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// Sleeps until the next change, unless one has happened since `seen`.
    pub fn wait(&self, seen: u32) {
        self.waiters.fetch_add(1, SeqCst);
        sys::futex_wait(&self.changes, seen, LOOK_US);
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Whether a thread waits.
    pub fn is_waited_in(&self) -> bool {
        self.waiters.load(SeqCst) > 0
    }

    /// Records a change, and wakes at most `most` waiters.
    pub fn wake(&self, most: usize) {
        self.changes.fetch_add(1, SeqCst);
        if self.is_waited_in() {
            sys::futex_wake(&self.changes, most as u32);
        }
    }

    /// Forgets the waiters, in a forked child: it has one thread.
    pub fn reset(&self) {
        self.waiters.store(0, SeqCst);
    }
}

/// Threads that wait for busy pages.
pub struct PageQueues([Queue; PAGES]);

impl PageQueues {
    /// Returns empty queues.
    pub const fn new() -> PageQueues {
        PageQueues([const { Queue::new() }; PAGES])
    }

    /// Returns the queue of a page.
    pub fn of(&self, page: u32) -> &Queue {
        &self.0[page as usize % PAGES]
    }

    /// Wakes the threads that wait for these pages.
    pub fn wake(&self, pages: &[u32]) {
        let which = pages.iter().fold(0u32, |set, page| set | 1 << (*page as usize % PAGES));
        for (i, queue) in self.0.iter().enumerate() {
            if which & 1 << i != 0 {
                queue.wake(ALL);
            }
        }
    }

    /// Forgets the waiters, in a forked child.
    pub fn reset(&self) {
        self.0.iter().for_each(Queue::reset);
    }
}

/// The alarm of a thread that sleeps between its rounds.
pub struct Alarm {
    /// The thread sleeps on this futex word; every ring adds one.
    rings: AtomicU32,
    sleeps: AtomicBool,
}

impl Alarm {
    /// Returns an alarm that has not rung.
    pub const fn new() -> Alarm {
        Alarm { rings: AtomicU32::new(0), sleeps: AtomicBool::new(false) }
    }

    /// Wakes the thread, or makes its next sleep return at once.
    pub fn ring(&self) {
        self.rings.fetch_add(1, SeqCst);
        if self.sleeps.load(SeqCst) {
            sys::futex_wake(&self.rings, 1);
        }
    }

    /// Returns the count of rings, for [`Alarm::sleep`].
    pub fn rings(&self) -> u32 {
        self.rings.load(SeqCst)
    }

    /// Sleeps until a ring after the `seen` ones, or the timeout.
    pub fn sleep(&self, seen: u32, timeout_us: u64) {
        self.sleeps.store(true, SeqCst);
        sys::futex_wait(&self.rings, seen, timeout_us);
        self.sleeps.store(false, SeqCst);
    }
}
