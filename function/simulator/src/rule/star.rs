//! Pando's rule: `bpf/assign.h` with the activation of units from Go.

use super::activation::Activation;
use super::{Choice, Report, Rule};
use pando_assign::{Config, Flow, Units};

/// The source of the number of active units.
#[derive(Clone, Debug)]
pub enum Count {
    /// Activation each millisecond, plus growth in the kernel.
    Activation(Activation),
    /// A given number of units for each tick, for the clairvoyant.
    Given(Vec<u32>),
}

/// The kernel's rule with the source of its number of units.
#[derive(Debug)]
pub struct Star {
    config: Config,
    units: Units,
    flows: Vec<Flow>,
    count: Count,
    ticks: usize,
    counted: u64,
}

impl Star {
    /// Returns the rule for `flows` flows. With a given count the kernel adds no units.
    pub fn new(config: Config, flows: u32, count: Count) -> Star {
        let ready = match &count {
            Count::Activation(a) => first(a.pool),
            Count::Given(_) => 0,
        };
        Star {
            config,
            units: Units { accepting: 1, ready, ..Units::default() },
            flows: vec![Flow::default(); flows as usize],
            count,
            ticks: 0,
            counted: 0,
        }
    }
}

/// Returns the mask of the first `n` units.
pub fn first(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

impl Rule for Star {
    fn place(&mut self, now: u64, flow: u32, bytes: u32) -> Choice {
        let flow = &mut self.flows[flow as usize];
        let outcome = self.units.assign(&self.config, flow, now, bytes);
        Choice { unit: flow.unit, begins: outcome.begins(), targets: flow.targets() }
    }

    fn tick(&mut self, now: u64, report: &Report) {
        for (finish, backlog) in self.units.finish.iter_mut().zip(&report.backlog_ns) {
            *finish = now + backlog;
        }
        let bytes = self.units.bytes - self.counted;
        self.counted = self.units.bytes;
        let n = match &mut self.count {
            Count::Activation(a) => a.tick(bytes, self.units.accepting.count_ones()),
            Count::Given(n) => n.get(self.ticks).or(n.last()).copied().unwrap_or(1),
        };
        self.units.accepting = first(n);
        self.ticks += 1;
    }

    fn accepting(&self) -> u64 {
        self.units.accepting
    }
}
