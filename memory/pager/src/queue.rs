//! Who waits for what. A thread that finds no lane, no room, or a page that another is at, sleeps in the queue of just that: with
//! one queue for everything, all of 64 threads would wake for each page that comes.

use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Nobody sleeps for longer without looking again.
const LOOK_US: u64 = 10_000;
/// Whoever waits for a page of the queue.
const ALL: usize = i32::MAX as usize;
/// Pages share so many queues.
const PAGES: usize = 32;

/// Threads that wait for one thing. Memory of zeros is an empty queue.
pub struct Queue {
    changes: AtomicU32,
    waiters: AtomicU32,
}

impl Queue {
    pub const fn new() -> Queue {
        Queue { changes: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// To be taken before the look that finds nothing: what changes after it is not slept through.
    pub fn seen(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// Sleeps unless something has changed since.
    pub fn wait(&self, seen: u32) {
        self.waiters.fetch_add(1, SeqCst);
        sys::futex_wait(&self.changes, seen, LOOK_US);
        self.waiters.fetch_sub(1, SeqCst);
    }

    pub fn is_waited_in(&self) -> bool {
        self.waiters.load(SeqCst) > 0
    }

    /// Something has changed, which is enough for so many.
    pub fn wake(&self, most: usize) {
        self.changes.fetch_add(1, SeqCst);
        if self.is_waited_in() {
            sys::futex_wake(&self.changes, most as u32);
        }
    }

    /// In a forked child, where nobody else is.
    pub fn reset(&self) {
        self.waiters.store(0, SeqCst);
    }
}

/// Threads that wait for pages that others are at.
pub struct PageQueues([Queue; PAGES]);

impl PageQueues {
    pub const fn new() -> PageQueues {
        PageQueues([const { Queue::new() }; PAGES])
    }

    pub fn of(&self, page: u32) -> &Queue {
        &self.0[page as usize % PAGES]
    }

    /// These pages are there.
    pub fn wake(&self, pages: &[u32]) {
        let which = pages.iter().fold(0u32, |set, page| set | 1 << (*page as usize % PAGES));
        for (i, queue) in self.0.iter().enumerate() {
            if which & 1 << i != 0 {
                queue.wake(ALL);
            }
        }
    }

    pub fn reset(&self) {
        self.0.iter().for_each(Queue::reset);
    }
}
