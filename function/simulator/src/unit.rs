//! A unit: one packet in service, the others waiting.

use pando_assign::queue::{Discipline, Queue, Waiting};

/// A unit with its queue and its packet in service.
#[derive(Debug)]
pub struct Unit {
    /// The waiting packets.
    pub queue: Queue,
    /// The packet in service.
    pub serving: Option<Waiting>,
    /// Work in the queue and in service, in nanoseconds, as if service had just begun.
    pub work_ns: u64,
    /// When service of the current packet began.
    pub begun_ns: u64,
    /// Packets that wait here for their state.
    pub held: u32,
    /// Work of the packets that wait for their state, in nanoseconds.
    pub held_ns: u64,
    /// When it last finished a packet.
    pub done_ns: u64,
    /// Bytes that it has finished.
    pub drained_bytes: u64,
}

impl Unit {
    /// An idle unit.
    pub fn new(discipline: Discipline) -> Unit {
        Unit {
            queue: Queue::new(discipline),
            serving: None,
            work_ns: 0,
            begun_ns: 0,
            held: 0,
            held_ns: 0,
            done_ns: 0,
            drained_bytes: 0,
        }
    }

    /// Returns the time to finish its assigned work, including held packets.
    pub fn backlog_ns(&self, now: u64) -> u64 {
        let begun = if self.serving.is_some() { now - self.begun_ns } else { 0 };
        (self.work_ns + self.held_ns).saturating_sub(begun)
    }
}
