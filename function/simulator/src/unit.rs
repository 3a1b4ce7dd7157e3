//! A unit: one packet in service, the others waiting.

use pando_assign::queue::{Discipline, Queue, Waiting};

/// A unit: one packet in service, the others waiting.
#[derive(Debug)]
pub struct Unit {
    /// What waits.
    pub queue: Queue,
    /// What is being served.
    pub serving: Option<Waiting>,
    /// Work that waits or is served, in nanoseconds, as if service had just begun.
    pub work_ns: u64,
    /// When the packet in service was begun.
    pub begun_ns: u64,
    /// Packets that were sent here and whose state is not here yet.
    pub held: u32,
    /// The same in nanoseconds of work.
    pub held_ns: u64,
    /// When it last finished a packet.
    pub done_ns: u64,
    /// Bytes that it has finished.
    pub drained_bytes: u64,
}

impl Unit {
    /// An idle unit.
    pub fn new(discipline: Discipline) -> Unit {
        Unit { queue: Queue::new(discipline), serving: None, work_ns: 0, begun_ns: 0, held: 0, held_ns: 0, done_ns: 0, drained_bytes: 0 }
    }

    /// How long it has to work on what it was given, held packets included.
    pub fn backlog_ns(&self, now: u64) -> u64 {
        let begun = if self.serving.is_some() { now - self.begun_ns } else { 0 };
        (self.work_ns + self.held_ns).saturating_sub(begun)
    }
}
