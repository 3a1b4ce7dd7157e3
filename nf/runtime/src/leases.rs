//! Numbers that a unit hands out to flows, each to one at a time: the block of ports that it was leased (SNF §8, NAT).

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

/// A pool of numbers. The one that was given back first is given out first, so a port rests before its next flow.
#[derive(Clone, Debug)]
pub struct Leases {
    block: RangeInclusive<u32>,
    /// Free numbers, and perhaps some of the claimed: those that were declined, the last first; those that nobody ever had;
    /// those that came back. Nothing is written down for the second, so that a block of any size costs nothing to begin with.
    declined: Vec<u32>,
    fresh: Range<u32>,
    back: VecDeque<u32>,
    /// A bit per number of the block: it went to a flow from elsewhere and is still among the free.
    claimed: Vec<u64>,
    claims: usize,
}

impl Leases {
    /// All numbers of a block.
    pub fn new(block: RangeInclusive<u32>) -> Leases {
        let fresh = *block.start()..block.end() + 1;
        // Written, so that a claim does not wait for its page.
        let mut claimed = vec![u64::MAX; fresh.len().div_ceil(64)];
        claimed.fill(0);
        Leases { declined: Vec::new(), fresh, back: VecDeque::new(), block, claimed, claims: 0 }
    }

    /// The next free number.
    pub fn take(&mut self) -> Option<u32> {
        loop {
            let number = self.declined.pop().or_else(|| self.fresh.next()).or_else(|| self.back.pop_front())?;
            if self.claims == 0 || !self.unclaim(number) {
                return Some(number);
            }
        }
    }

    /// A number that no flow has any more.
    pub fn give_back(&mut self, number: u32) {
        if !self.unclaim(number) {
            self.back.push_back(number);
        }
    }

    /// A number that was offered and not taken: it is the next again.
    pub fn decline(&mut self, number: u32) {
        self.declined.push(number);
    }

    /// Takes a free number of the block out of the pool: a flow that came from elsewhere has it. The pool is not searched
    /// for it, so that many can be claimed at once; it is skipped when its turn comes.
    pub fn claim(&mut self, number: u32) {
        if let Some((word, bit)) = self.place(number) {
            self.claims += usize::from(self.claimed[word] & bit == 0);
            self.claimed[word] |= bit;
        }
    }

    fn unclaim(&mut self, number: u32) -> bool {
        let Some((word, bit)) = self.place(number).filter(|&(word, bit)| self.claimed[word] & bit != 0) else { return false };
        self.claimed[word] &= !bit;
        self.claims -= 1;
        true
    }

    fn place(&self, number: u32) -> Option<(usize, u64)> {
        let at = self.block.contains(&number).then(|| number - self.block.start())?;
        Some((at as usize / 64, 1 << (at % 64)))
    }

    /// Numbers that are free.
    pub fn free(&self) -> usize {
        (self.declined.len() + self.fresh.len() + self.back.len()).saturating_sub(self.claims)
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

    /// Whatever is done to it, it gives out what a queue of all its numbers would.
    #[test]
    fn it_is_the_queue_that_it_does_not_write_down() {
        let (mut leases, mut queue) = (Leases::new(10..=19), (10..=19).collect::<VecDeque<u32>>());
        let (mut given, mut random) = (Vec::new(), 7u32);
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match random >> 24 & 3 {
                0 if !given.is_empty() => {
                    let number = given.swap_remove((random >> 8) as usize % given.len());
                    leases.give_back(number);
                    queue.push_back(number);
                }
                1 if !given.is_empty() => {
                    let number = given.pop().expect("it is not empty");
                    leases.decline(number);
                    queue.push_front(number);
                }
                _ => {
                    let number = leases.take();
                    assert_eq!(number, queue.pop_front());
                    given.extend(number);
                }
            }
            assert_eq!(leases.free(), queue.len());
        }
    }
}
