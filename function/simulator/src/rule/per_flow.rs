//! The per-flow baseline for flowlets: a new flow goes to the shortest queue, and flows may be
//! reallocated at intervals.

use super::activation::Activation;
use super::star::first;
use super::{Choice, Report, Rule};
use crate::world::TICK_NS;

/// Shortest queue at true backlogs: per flow, per flow with reallocation, or per flowlet without
/// regard to state.
#[derive(Debug)]
pub struct Shortest {
    activation: Activation,
    grow_ns: u64,
    /// A longer silence begins a flowlet that may move. `u64::MAX`: flows never move by themselves.
    gap_ns: u64,
    /// More bytes than this begin such a flowlet.
    size_bytes: u32,
    /// Ticks between reallocations; 0: never.
    reallocate_ticks: u64,
    accepting: u64,
    grown_ns: u64,
    ticks: u64,
    bytes: u64,
    queues: Vec<u64>,
    flows: Vec<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    unit: u16,
    seen: u64,
    flowlet_bytes: u32,
    /// Bytes since the last reallocation.
    recent_bytes: u64,
}

impl Shortest {
    /// Returns the rule. It decides per flow if `gap_ns` is `u64::MAX`.
    pub fn new(
        flows: u32,
        activation: Activation,
        gap_ns: u64,
        size_bytes: u32,
        reallocate_ticks: u64,
    ) -> Shortest {
        let known = Known { unit: u16::MAX, seen: 0, flowlet_bytes: 0, recent_bytes: 0 };
        Shortest {
            activation,
            grow_ns: 100_000,
            gap_ns,
            size_bytes,
            reallocate_ticks,
            accepting: 1,
            grown_ns: 0,
            ticks: 0,
            bytes: 0,
            queues: vec![0; 64],
            flows: vec![known; flows as usize],
        }
    }

    fn shortest(&mut self, now: u64) -> u16 {
        let open = (0..64u16).filter(|&i| self.accepting >> i & 1 == 1);
        let unit = open.min_by_key(|&i| self.queues[i as usize]).unwrap_or(0);
        let n = self.accepting.count_ones();
        if self.queues[unit as usize] > self.grow_ns
            && now - self.grown_ns >= TICK_NS
            && n < self.activation.pool
        {
            self.accepting = first(n + 1);
            self.grown_ns = now;
        }
        unit
    }

    /// Moves flows from the most to the least loaded unit, largest suitable flow first. It stops
    /// when no move helps or the loads are within 5 % of their mean. Load is the bytes since the
    /// last reallocation plus the waiting bytes.
    fn reallocate(&mut self, report: &Report) {
        let n = self.accepting.count_ones() as usize;
        let mut load: Vec<f64> = report
            .backlog_ns
            .iter()
            .map(|&b| b as f64 / (TICK_NS as f64) * self.activation.unit_bytes)
            .collect();
        let mut at: Vec<Vec<(u64, usize)>> = vec![Vec::new(); 64];
        for (number, f) in self.flows.iter_mut().enumerate().filter(|(_, f)| f.recent_bytes > 0) {
            load[f.unit as usize] += f.recent_bytes as f64;
            at[f.unit as usize].push((f.recent_bytes, number));
            f.recent_bytes = 0;
        }
        at.iter_mut().for_each(|flows| flows.sort());
        for retired in n..64 {
            for (bytes, number) in std::mem::take(&mut at[retired]) {
                let to = least(&load[..n]);
                self.flows[number].unit = to as u16;
                load[to] += bytes as f64;
                at[to].push((bytes, number));
            }
        }
        let mean = load[..n].iter().sum::<f64>() / n as f64;
        for _ in 0..10_000 {
            let to = least(&load[..n]);
            let from = (0..n).max_by(|&a, &b| load[a].total_cmp(&load[b])).unwrap_or(0);
            if load[from] <= 1.05 * mean {
                return;
            }
            let room = load[from] - load[to];
            let Some(which) = at[from].iter().rposition(|&(bytes, _)| (bytes as f64) < room) else {
                return;
            };
            let (bytes, number) = at[from].remove(which);
            self.flows[number].unit = to as u16;
            load[from] -= bytes as f64;
            load[to] += bytes as f64;
            let place = at[to].partition_point(|&flow| flow < (bytes, number));
            at[to].insert(place, (bytes, number));
        }
    }
}

fn least(load: &[f64]) -> usize {
    (0..load.len()).min_by(|&a, &b| load[a].total_cmp(&load[b])).unwrap_or(0)
}

impl Rule for Shortest {
    fn place(&mut self, now: u64, flow: u32, bytes: u32) -> Choice {
        self.bytes += u64::from(bytes);
        let f = self.flows[flow as usize];
        let new = f.unit == u16::MAX;
        let flowlets = self.gap_ns != u64::MAX;
        let ends = now - f.seen > self.gap_ns || f.flowlet_bytes + bytes > self.size_bytes;
        let begins = new || (flowlets && ends);
        let unit = if begins { self.shortest(now) } else { f.unit };
        let flowlet_bytes = if begins { bytes } else { f.flowlet_bytes.saturating_add(bytes) };
        self.flows[flow as usize] = Known {
            unit,
            seen: now,
            flowlet_bytes,
            recent_bytes: f.recent_bytes + u64::from(bytes),
        };
        Choice { unit, begins, targets: 0 }
    }

    fn tick(&mut self, _now: u64, report: &Report) {
        let n = self.activation.tick(std::mem::take(&mut self.bytes), self.accepting.count_ones());
        self.accepting = first(n);
        self.ticks += 1;
        if self.reallocate_ticks > 0 && self.ticks.is_multiple_of(self.reallocate_ticks) {
            self.reallocate(report);
        }
    }

    fn accepting(&self) -> u64 {
        self.accepting
    }

    fn looks(&self) -> bool {
        true
    }

    fn see(&mut self, backlog_ns: &[u64]) {
        self.queues.copy_from_slice(backlog_ns);
    }
}
