//! Numbers that a unit hands out to flows, each to one at a time: the block of ports that it was leased (SNF §8, NAT).

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

/// When each number last was a flow's that had packets, whichever unit of a group it was at. Flows take their numbers along,
/// and units and their copies of flows come and go: only this says which numbers are free.
pub trait Uses {
    /// In seconds of the packets' time; 0: never.
    fn last_s(&self, number: u32) -> u32;
    /// A packet of the flow that has the number came.
    fn note(&self, number: u32, now_s: u32);
}

/// Numbers that are looked at for a free one, before the next packet goes on.
const TRIES: usize = 256;

/// A pool of numbers. The one that was given back first is given out first, so a port rests before its next flow.
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
    /// In a group, with the seconds for which a number rests behind the last packet of its flow.
    uses: Option<(Box<dyn Uses>, u32)>,
}

fn seconds(ns: u64) -> u32 {
    (ns / 1_000_000_000) as u32
}

impl Leases {
    /// All numbers of a block.
    pub fn new(block: RangeInclusive<u32>) -> Leases {
        let fresh = *block.start()..block.end() + 1;
        // Written, so that a claim does not wait for its page.
        let mut claimed = vec![u64::MAX; fresh.len().div_ceil(64)];
        claimed.fill(0);
        Leases { declined: Vec::new(), fresh, back: VecDeque::new(), block, claimed, claims: 0, uses: None }
    }

    /// Shares the numbers with others that may have flows with some of them. A flow is forgotten after `idle_ns`.
    pub fn share(&mut self, uses: Box<dyn Uses>, idle_ns: u64) {
        self.uses = Some((uses, seconds(idle_ns).saturating_add(2)));
    }

    /// The next free number.
    pub fn take(&mut self, now_ns: u64) -> Option<u32> {
        for _ in 0..TRIES {
            let number = self.next()?;
            if !self.is_used(number, seconds(now_ns)) {
                return Some(number);
            }
            self.back.push_back(number);
        }
        None
    }

    fn is_used(&self, number: u32, now_s: u32) -> bool {
        self.uses.as_ref().is_some_and(|(uses, rest_s)| match uses.last_s(number) {
            0 => false,
            last_s => now_s < last_s.saturating_add(*rest_s),
        })
    }

    fn next(&mut self) -> Option<u32> {
        loop {
            let number = self.declined.pop().or_else(|| self.fresh.next()).or_else(|| self.back.pop_front())?;
            if self.claims == 0 || !self.unclaim(number) {
                return Some(number);
            }
        }
    }

    /// A packet of the flow that has the number came.
    pub fn note(&self, number: u32, now_ns: u64) {
        if let Some((uses, _)) = &self.uses
            && uses.last_s(number) != seconds(now_ns)
        {
            uses.note(number, seconds(now_ns));
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
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_claimed_number_is_not_given_out_until_it_comes_back() {
        let mut leases = Leases::new(1..=3);
        leases.claim(1);
        leases.claim(9);
        assert_eq!(leases.free(), 2);
        leases.give_back(1);
        leases.claim(1);
        assert_eq!([leases.take(0), leases.take(0), leases.take(0)], [Some(2), Some(3), None]);
        leases.give_back(1);
        leases.give_back(9);
        assert_eq!([leases.take(0), leases.take(0), leases.take(0)], [Some(1), Some(9), None]);
    }

    #[derive(Clone, Default)]
    struct Table(Rc<RefCell<[u32; 10]>>);

    impl Uses for Table {
        fn last_s(&self, number: u32) -> u32 {
            self.0.borrow()[number as usize]
        }

        fn note(&self, number: u32, now_s: u32) {
            self.0.borrow_mut()[number as usize] = now_s;
        }
    }

    /// Two units with the same numbers, as when the second replaces one that died: a flow of the first one's is at a third.
    #[test]
    fn a_number_that_a_flow_uses_anywhere_is_not_given_out() {
        const S: u64 = 1_000_000_000;
        let table = Table::default();
        let leases = || {
            let mut leases = Leases::new(1..=2);
            leases.share(Box::new(table.clone()), 10 * S);
            leases
        };
        let (mut dead, mut next, elsewhere) = (leases(), leases(), leases());
        assert_eq!(dead.take(100 * S), Some(1));
        elsewhere.note(1, 100 * S);
        assert_eq!([next.take(101 * S), next.take(101 * S)], [Some(2), None]);
        elsewhere.note(1, 110 * S);
        // Who has an old copy of the flow forgets it: the number is the flow's all the same.
        dead.give_back(1);
        assert_eq!([dead.take(121 * S), next.take(121 * S)], [Some(2), None]);
        assert_eq!([dead.take(122 * S), next.take(122 * S)], [Some(1), Some(1)], "nobody has used it since");
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
                    let number = leases.take(0);
                    assert_eq!(number, queue.pop_front());
                    given.extend(number);
                }
            }
            assert_eq!(leases.free(), queue.len());
        }
    }
}
