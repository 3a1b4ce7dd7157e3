//! The order in which a unit serves waiting packets: first in first out, fair between flows, or by
//! virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The order of service of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First in, first out.
    Fifo,
    /// Start-time fair queueing between flows (Goyal, Vin, Cheng 1996).
    Fair,
    /// Virtual clock (Zhang 1990). It serves the packet that would finish first if each flow had a
    /// fixed part of the unit: 1 is the whole unit, 8 an eighth.
    Clock {
        /// Number of flows that a unit has room for.
        parts: u32,
    },
}

impl Discipline {
    /// The order that units use. Bursts below an eighth of a unit are served as they arrive. A flow
    /// that sends more is delayed by its own excess only. Tags are moments in time, so a packet
    /// never waits forever behind later ones. A fair queue instead makes every burst wait for all
    /// others.
    pub const DEFAULT: Discipline = Discipline::Clock { parts: 8 };
}

/// A packet that waits: its number, its flow and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Number of the packet.
    pub packet: u32,
    /// Its flow.
    pub flow: u32,
    /// Nanoseconds of work.
    pub cost_ns: u64,
}

/// The tags of so many flows are kept in any case.
const FLOWS_MIN: usize = 4096;

/// The waiting packets of a unit. Packets of one flow are never reordered.
#[derive(Debug)]
pub struct Queue {
    discipline: Discipline,
    fifo: VecDeque<Waiting>,
    /// Ordered by tag, then by arrival.
    heap: BinaryHeap<Reverse<(u64, u64, Item)>>,
    /// The tag at which each flow continues.
    finish: HashMap<u32, u64>,
    /// Start tag of the packet in service (fair).
    virtual_ns: u64,
    arrivals: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    packet: u32,
    flow: u32,
    cost_ns: u64,
}

impl Queue {
    /// An empty queue.
    pub fn new(discipline: Discipline) -> Queue {
        let (fifo, heap, finish) = (VecDeque::new(), BinaryHeap::new(), HashMap::new());
        Queue { discipline, fifo, heap, finish, virtual_ns: 0, arrivals: 0 }
    }

    /// Adds a packet that arrives at `now`, nanoseconds of a monotonic clock.
    pub fn push(&mut self, w: Waiting, now: u64) {
        let tag = match self.discipline {
            Discipline::Fifo => return self.fifo.push_back(w),
            Discipline::Fair => {
                let finish = self.finish.entry(w.flow).or_insert(0);
                let start = self.virtual_ns.max(*finish);
                *finish = start + w.cost_ns;
                start
            }
            Discipline::Clock { parts } => {
                let finish = self.finish.entry(w.flow).or_insert(0);
                *finish = now.max(*finish) + w.cost_ns * u64::from(parts);
                let tag = *finish;
                if self.finish.len() > FLOWS_MIN.max(2 * self.heap.len()) {
                    self.finish.retain(|_, finish| *finish > now);
                }
                tag
            }
        };
        self.arrivals += 1;
        let Waiting { packet, flow, cost_ns } = w;
        self.heap.push(Reverse((tag, self.arrivals, Item { packet, flow, cost_ns })));
    }

    /// Removes and returns the next packet to serve.
    pub fn pop(&mut self, now: u64) -> Option<Waiting> {
        if self.discipline == Discipline::Fifo {
            return self.fifo.pop_front();
        }
        let Some(Reverse((tag, _, item))) = self.heap.pop() else {
            // The unit is idle: drop tags that no longer affect later packets.
            let fair = self.discipline == Discipline::Fair;
            self.finish.retain(|_, finish| !fair && *finish > now);
            return None;
        };
        self.virtual_ns = tag;
        let Item { packet, flow, cost_ns } = item;
        Some(Waiting { packet, flow, cost_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(packet: u32, flow: u32, cost_ns: u64) -> Waiting {
        Waiting { packet, flow, cost_ns }
    }

    #[test]
    fn a_flow_that_sends_little_does_not_wait_for_one_that_sends_much() {
        for discipline in [Discipline::Fair, Discipline::DEFAULT] {
            let mut q = Queue::new(discipline);
            (0..100).for_each(|i| q.push(packet(i, 1, 10), 0));
            assert_eq!(q.pop(0).unwrap().packet, 0);
            q.push(packet(100, 2, 10), 10);
            let next = [q.pop(10).unwrap().packet, q.pop(20).unwrap().packet];
            assert!(next.contains(&100), "{discipline:?} served {next:?}");
        }
    }

    #[test]
    fn by_virtual_clock_nothing_waits_for_what_comes_after_its_tag() {
        let mut q = Queue::new(Discipline::Clock { parts: 2 });
        (0..100).for_each(|i| q.push(packet(i, 1, 10), 0));
        let last_tag = 100 * 10 * 2;
        (0..100).for_each(|i| q.push(packet(100 + i, 2 + i, 10), last_tag));
        let first: Vec<u32> = (0..100).map(|_| q.pop(last_tag).unwrap().packet).collect();
        assert!(first.iter().all(|&p| p < 100));
    }

    /// A unit that is never idle meets new flows for years.
    #[test]
    fn the_tags_of_past_flows_are_forgotten_while_packets_wait() {
        let mut q = Queue::new(Discipline::DEFAULT);
        for n in 0..100_000 {
            q.push(packet(n, n, 10), u64::from(n) * 10);
            if n > 10 {
                q.pop(u64::from(n) * 10).unwrap();
            }
        }
        assert!(q.finish.len() <= FLOWS_MIN + 1, "{} tags", q.finish.len());
    }

    proptest! {
        #[test]
        fn no_flow_is_reordered_and_nothing_is_lost(
            clock in 0..3u32,
            costs in
                proptest::collection::vec((0..4u32, 1..100u64, 0..200u64, any::<bool>()), 1..300),
        ) {
            let discipline = [Discipline::Fifo, Discipline::Fair, Discipline::Clock { parts: 8 }]
                [clock as usize];
            let (mut q, mut now, mut last, mut served) = (Queue::new(discipline), 0, [None; 4], 0);
            let mut check = |w: Waiting| {
                prop_assert!(last[w.flow as usize].is_none_or(|l| l < w.packet));
                last[w.flow as usize] = Some(w.packet);
                served += 1;
                Ok(())
            };
            for (i, &(flow, cost_ns, pause, serve)) in costs.iter().enumerate() {
                now += pause;
                q.push(packet(i as u32, flow, cost_ns), now);
                if serve {
                    q.pop(now).map(&mut check).transpose()?;
                }
            }
            while let Some(w) = q.pop(now) {
                check(w)?;
            }
            prop_assert_eq!(served, costs.len());
        }

        /// While two flows wait, the service they received differs by at most one packet of each
        /// (Goyal et al., theorem 1).
        #[test]
        fn two_waiting_flows_are_served_alike(
            costs in proptest::collection::vec((0..2u32, 1..100u64), 1..300),
        ) {
            let mut q = Queue::new(Discipline::Fair);
            for (i, &(flow, cost_ns)) in costs.iter().enumerate() {
                q.push(packet(i as u32, flow, cost_ns), 0);
            }
            let mut left = [0, 1].map(|f| costs.iter().filter(|c| c.0 == f).count());
            let mut served = [0i64; 2];
            while let Some(w) = q.pop(0) {
                served[w.flow as usize] += w.cost_ns as i64;
                left[w.flow as usize] -= 1;
                if left[0] > 0 && left[1] > 0 {
                    prop_assert!((served[0] - served[1]).abs() <= 200, "{served:?}");
                }
            }
            prop_assert_eq!(left, [0, 0]);
        }
    }
}
