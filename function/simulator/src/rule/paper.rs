//! SNF's Pseudocode 1 and 2 as printed, and the same per flow ("vanilla flow allocation", §9.1).
//! Each value that the paper leaves open is a constant that names the gap.

use super::star::first;
use super::{Choice, Report, Rule};
use pando_traffic::random::Random;
use std::collections::VecDeque;

/// Load is the measured drain over the last 100 ms (§8).
const LOAD_TICKS: usize = 100;
/// "Inactive if they do not receive any packets for a fixed amount of time" (§4.2). The paper
/// leaves the time open.
const INACTIVE_TICKS: u64 = 100;
/// Weight of the last flowlet in the demand estimate (Pseudocode 1, line 49). The paper leaves it
/// open.
const ALPHA: f64 = 0.5;

/// The paper's rule.
#[derive(Debug)]
pub struct Paper {
    /// Bytes that a unit serves per millisecond.
    unit_bytes: f64,
    by_flow: bool,
    gap_ns: u64,
    size_bytes: u32,
    lambda: f64,
    replicas: u32,
    accepting: u64,
    used_tick: [u64; 64],
    drained: VecDeque<Vec<u64>>,
    load: Vec<f64>,
    /// Sum and number of the loads of all flowlets so far.
    seen: (f64, u64),
    flows: Vec<Known>,
    random: Random,
    ticks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    unit: u16,
    targets: u64,
    seen: u64,
    began: u64,
    bytes: u32,
    /// Bytes per millisecond.
    demand: f64,
}

/// The parameters that the paper leaves to the operator.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    /// Whether a flow stays on its first unit. Flowlets then only measure demand.
    pub by_flow: bool,
    /// T.
    pub gap_ns: u64,
    /// B.
    pub size_bytes: u32,
    /// λ, 0 to 1.
    pub lambda: f64,
    /// K.
    pub replicas: u32,
}

impl Paper {
    /// Returns the rule over units of `unit_bytes` per millisecond. It starts with as many `units`
    /// as the load needs. Its load measure needs 100 ms to request each further unit, and this
    /// start-up is not compared.
    pub fn new(flows: u32, unit_bytes: f64, units: u32, knobs: Knobs, seed: u64) -> Paper {
        let known = Known { unit: u16::MAX, targets: 0, seen: 0, began: 0, bytes: 0, demand: 0.0 };
        Paper {
            unit_bytes,
            by_flow: knobs.by_flow,
            gap_ns: knobs.gap_ns,
            size_bytes: knobs.size_bytes,
            lambda: knobs.lambda,
            replicas: knobs.replicas,
            accepting: first(units),
            used_tick: [0; 64],
            drained: VecDeque::new(),
            load: vec![0.0; 64],
            seen: (0.0, 0),
            flows: vec![known; flows as usize],
            random: Random::new(seed),
            ticks: 0,
        }
    }

    /// Pseudocode 1, DemandEstimator: the average of all flowlets for a new flow, else the moving
    /// average. The load of a flowlet is its bytes over its duration, or over T if that is longer.
    fn estimate(&mut self, f: &Known, new: bool) -> f64 {
        if new {
            return self.seen.0 / self.seen.1.max(1) as f64;
        }
        let lasted_ns = (f.seen - f.began).max(self.gap_ns);
        let load = f64::from(f.bytes) * 1e6 / lasted_ns as f64;
        self.seen = (self.seen.0 + load, self.seen.1 + 1);
        ALPHA * load + (1.0 - ALPHA) * f.demand
    }

    /// Pseudocode 1, WorkloadAssigner: the largest utilisation + λ · has-state among the units with
    /// room. Without such a unit it activates one more.
    fn assign(&mut self, demand: f64, holds: u64) -> u16 {
        let mut best: Option<(f64, u16)> = None;
        for i in (0..64u16).filter(|&i| self.accepting >> i & 1 == 1) {
            let load = self.load[i as usize];
            if demand + load <= self.unit_bytes {
                let score =
                    load / self.unit_bytes + if holds >> i & 1 == 1 { self.lambda } else { 0.0 };
                if best.is_none_or(|(s, _)| score > s) {
                    best = Some((score, i));
                }
            }
        }
        if let Some((_, unit)) = best {
            return unit;
        }
        let next = (!self.accepting).trailing_zeros();
        if next < 64 {
            self.accepting |= 1 << next;
            self.used_tick[next as usize] = self.ticks;
            return next as u16;
        }
        (0..64u16)
            .min_by(|&a, &b| self.load[a as usize].total_cmp(&self.load[b as usize]))
            .unwrap_or(0)
    }

    /// Pseudocode 2, WeightedRandomizedReplicator: K active units, weighted inversely to their ids.
    fn replicate(&mut self) -> u64 {
        let active: Vec<u32> = (0..64).filter(|i| self.accepting >> i & 1 == 1).collect();
        let total: f64 = active.iter().map(|&i| 1.0 / f64::from(i + 1)).sum();
        let mut targets = 0;
        for _ in 0..self.replicas {
            let mut left = self.random.below(1 << 32) as f64 / (1u64 << 32) as f64 * total;
            let pick = active.iter().find(|&&i| {
                left -= 1.0 / f64::from(i + 1);
                left < 0.0
            });
            targets |= 1 << pick.or(active.last()).copied().unwrap_or(0);
        }
        targets
    }
}

impl Rule for Paper {
    fn place(&mut self, now: u64, flow: u32, bytes: u32) -> Choice {
        let mut f = self.flows[flow as usize];
        let new = f.unit == u16::MAX;
        let begins = new || now - f.seen > self.gap_ns || f.bytes + bytes > self.size_bytes;
        if begins {
            let demand = self.estimate(&f, new);
            let holds = if new { 0 } else { 1 << f.unit | f.targets };
            let stays = self.by_flow && !new;
            let unit = if stays { f.unit } else { self.assign(demand, holds) };
            let targets = if self.by_flow { 0 } else { self.replicate() };
            f = Known { unit, targets, seen: now, began: now, bytes: 0, demand };
        }
        f.seen = now;
        f.bytes = f.bytes.saturating_add(bytes);
        self.used_tick[f.unit as usize] = self.ticks;
        self.flows[flow as usize] = f;
        Choice { unit: f.unit, begins, targets: f.targets }
    }

    fn tick(&mut self, _now: u64, report: &Report) {
        self.ticks += 1;
        self.drained.push_back(report.drained_bytes.clone());
        if self.drained.len() > LOAD_TICKS + 1 {
            self.drained.pop_front();
        }
        let (old, new) = (&self.drained[0], &self.drained[self.drained.len() - 1]);
        let ticks = (self.drained.len() - 1).max(1) as f64;
        for i in 0..64 {
            self.load[i] = (new[i] - old[i]) as f64 / ticks;
            if i > 0 && self.ticks - self.used_tick[i] > INACTIVE_TICKS && report.backlog_ns[i] == 0
            {
                self.accepting &= !(1 << i);
            }
        }
    }

    fn accepting(&self) -> u64 {
        self.accepting
    }
}
