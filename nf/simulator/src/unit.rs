//! The queue of a unit: first come first served, or fair between flows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// In which order a unit serves what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
pub enum Discipline {
    /// First in, first out.
    Fifo,
    /// Start-time fair queueing between flows (Goyal, Vin, Cheng 1996).
    Fair,
}

/// A packet that waits: its number in the workload, its flow and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Number of the packet.
    pub packet: u32,
    /// Its flow.
    pub flow: u32,
    /// Nanoseconds of work.
    pub cost_ns: u64,
}

/// What waits at a unit.
#[derive(Debug)]
pub enum Queue {
    /// First in, first out.
    Fifo(VecDeque<Waiting>),
    /// By start tag.
    Fair(FairQueue),
}

/// Start-time fair queueing: a packet's start tag is the larger of the virtual time and its flow's last finish tag; the
/// least start tag is served next, and is the virtual time while it is.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// (start tag, order of arrival, packet, flow, cost)
    heap: BinaryHeap<Reverse<(u64, u64, u32, u32, u64)>>,
    /// Finish tag of the flows that are ahead of the virtual time.
    finish: HashMap<u32, u64>,
    virtual_ns: u64,
    arrivals: u64,
}

impl FairQueue {
    fn push(&mut self, w: Waiting) {
        let finish = self.finish.entry(w.flow).or_insert(0);
        let start = (*finish).max(self.virtual_ns);
        *finish = start + w.cost_ns;
        self.arrivals += 1;
        self.heap.push(Reverse((start, self.arrivals, w.packet, w.flow, w.cost_ns)));
    }

    fn pop(&mut self) -> Option<Waiting> {
        let Some(Reverse((start, _, packet, flow, cost_ns))) = self.heap.pop() else {
            self.finish.clear();
            return None;
        };
        self.virtual_ns = start;
        if self.finish.get(&flow).is_some_and(|&f| f <= start) {
            self.finish.remove(&flow);
        }
        Some(Waiting { packet, flow, cost_ns })
    }
}

impl Queue {
    /// An empty queue.
    pub fn new(discipline: Discipline) -> Queue {
        match discipline {
            Discipline::Fifo => Queue::Fifo(VecDeque::new()),
            Discipline::Fair => Queue::Fair(FairQueue::default()),
        }
    }

    /// Adds a packet.
    pub fn push(&mut self, w: Waiting) {
        match self {
            Queue::Fifo(q) => q.push_back(w),
            Queue::Fair(q) => q.push(w),
        }
    }

    /// Takes the next packet to serve.
    pub fn pop(&mut self) -> Option<Waiting> {
        match self {
            Queue::Fifo(q) => q.pop_front(),
            Queue::Fair(q) => q.pop(),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_flow_that_sends_little_does_not_wait_for_one_that_sends_much() {
        let mut q = Queue::new(Discipline::Fair);
        (0..100).for_each(|packet| q.push(Waiting { packet, flow: 1, cost_ns: 10 }));
        assert_eq!(q.pop().unwrap().packet, 0);
        q.push(Waiting { packet: 100, flow: 2, cost_ns: 10 });
        assert_eq!(q.pop().unwrap().packet, 100);
    }

    proptest! {
        /// While two flows both wait, what they were served differs by at most one packet of each (Goyal et al., theorem 1).
        #[test]
        fn two_waiting_flows_are_served_alike(costs in proptest::collection::vec((0..2u32, 1..100u64), 1..300)) {
            let mut q = Queue::new(Discipline::Fair);
            for (i, &(flow, cost_ns)) in costs.iter().enumerate() {
                q.push(Waiting { packet: i as u32, flow, cost_ns });
            }
            let mut left = [0, 1].map(|f| costs.iter().filter(|c| c.0 == f).count());
            let mut served = [0i64; 2];
            let mut last = [None; 2];
            while let Some(w) = q.pop() {
                let f = w.flow as usize;
                prop_assert!(last[f].is_none_or(|l| l < w.packet), "flow {f} was reordered");
                last[f] = Some(w.packet);
                served[f] += w.cost_ns as i64;
                left[f] -= 1;
                if left[0] > 0 && left[1] > 0 {
                    prop_assert!((served[0] - served[1]).abs() <= 200, "{served:?}");
                }
            }
            prop_assert_eq!(left, [0, 0]);
        }
    }
}
