//! Numbers that a unit hands out to flows, each to one at a time: the block of ports that it was leased (SNF §8, NAT).

use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// A pool of numbers. The one that was given back first is given out first, so a port rests before its next flow.
#[derive(Clone, Debug)]
pub struct Leases {
    free: VecDeque<u32>,
}

impl Leases {
    /// All numbers of a block.
    pub fn new(block: RangeInclusive<u32>) -> Leases {
        Leases { free: block.collect() }
    }

    /// The next free number.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// A number that no flow has any more.
    pub fn give_back(&mut self, number: u32) {
        self.free.push_back(number);
    }

    /// A number that was offered and not taken: it is the next again.
    pub fn decline(&mut self, number: u32) {
        self.free.push_front(number);
    }

    /// Takes a given number out of the pool: a flow that came from elsewhere has it.
    pub fn claim(&mut self, number: u32) {
        self.free.retain(|&n| n != number);
    }

    /// Numbers that are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}
