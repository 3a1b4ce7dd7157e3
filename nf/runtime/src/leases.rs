//! Numbers that a unit hands out to flows, each to one at a time: the block of ports that it was leased (SNF §8, NAT).

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;

/// A pool of numbers. The one that was given back first is given out first, so a port rests before its next flow.
#[derive(Clone, Debug)]
pub struct Leases {
    block: RangeInclusive<u32>,
    /// Free numbers, and perhaps some of the claimed.
    free: VecDeque<u32>,
    /// Numbers that went to flows from elsewhere and are still among `free`.
    claimed: HashSet<u32, foldhash::fast::RandomState>,
}

impl Leases {
    /// All numbers of a block.
    pub fn new(block: RangeInclusive<u32>) -> Leases {
        Leases { free: block.clone().collect(), block, claimed: HashSet::default() }
    }

    /// The next free number.
    pub fn take(&mut self) -> Option<u32> {
        loop {
            let number = self.free.pop_front()?;
            if self.claimed.is_empty() || !self.claimed.remove(&number) {
                return Some(number);
            }
        }
    }

    /// A number that no flow has any more.
    pub fn give_back(&mut self, number: u32) {
        if !self.claimed.remove(&number) {
            self.free.push_back(number);
        }
    }

    /// A number that was offered and not taken: it is the next again.
    pub fn decline(&mut self, number: u32) {
        self.free.push_front(number);
    }

    /// Takes a free number of the block out of the pool: a flow that came from elsewhere has it. The pool is not searched
    /// for it, so that many can be claimed at once; it is skipped when its turn comes.
    pub fn claim(&mut self, number: u32) {
        if self.block.contains(&number) {
            self.claimed.insert(number);
        }
    }

    /// Numbers that are free.
    pub fn free(&self) -> usize {
        self.free.len().saturating_sub(self.claimed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_number_is_not_given_out_until_it_comes_back() {
        let mut leases = Leases::new(1..=3);
        leases.claim(1);
        leases.claim(9);
        assert_eq!(leases.free(), 2);
        leases.give_back(1);
        leases.claim(1);
        assert_eq!([leases.take(), leases.take(), leases.take()], [Some(2), Some(3), None]);
        leases.give_back(1);
        leases.give_back(9);
        assert_eq!([leases.take(), leases.take(), leases.take()], [Some(1), Some(9), None]);
    }
}
