//! Numbers that a unit leases to flows, each to one flow at a time: the ports of a NAT (SNF §8).
//!
//! A unit on its own has its own block. The units of a group share one block. The first unit to
//! record the use of a number owns it.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use crate::ends::CLOSED_NS;

/// The time of the last use of each number, by any unit of a group. Flows take their numbers along
/// to other units, and copies of flows vanish. Only these times show which numbers are free.
pub trait Uses {
    /// Takes a number for one unit alone, if `is_free` accepts the second of its last use. Second 0
    /// means never used.
    fn claim(&self, number: u32, is_free: &dyn Fn(u32) -> bool, now_s: u32) -> bool;
    /// Records a packet of the number's flow at `now_s`, in seconds of packet time. Second 0 frees
    /// the number.
    fn note(&self, number: u32, now_s: u32);
}

/// The numbers of a group, as one unit uses them.
struct Common {
    uses: Box<dyn Uses>,
    /// Seconds for which a number rests after the last packet of its flow.
    rest_s: u32,
    /// Start of the next search, from the beginning of the block.
    next: u32,
    /// The second in which no number was free. The next search waits for the next second.
    none_s: u32,
}

/// A pool of numbers. The number that returned first is leased first, so a port rests before its
/// next flow.
pub struct Leases {
    block: RangeInclusive<u32>,
    /// Free numbers, including some claimed ones. `take` uses the latest declined number first,
    /// then `fresh` (never used), then `back` (returned). `fresh` is a range, so that a block of
    /// any size starts at once.
    declined: Vec<u32>,
    fresh: Range<u32>,
    back: VecDeque<u32>,
    /// Bit per number of the block: a flow from elsewhere has it, and the pool still lists it.
    claimed: Vec<u64>,
    claims: usize,
    /// In a group, the free numbers are here.
    common: Option<Common>,
}

fn seconds(ns: u64) -> u32 {
    (ns / 1_000_000_000) as u32
}

impl Common {
    /// Returns the next number of the block that no unit uses, and claims it.
    fn take(&mut self, block: &RangeInclusive<u32>, now_s: u32) -> Option<u32> {
        let (first, count) = (*block.start(), block.end() - block.start() + 1);
        if self.none_s == now_s {
            return None;
        }
        let is_free = |last_s: u32| last_s == 0 || now_s >= last_s.saturating_add(self.rest_s);
        for _ in 0..count {
            let number = first + self.next % count;
            self.next = (self.next + 1) % count;
            if self.uses.claim(number, &is_free, now_s) {
                return Some(number);
            }
        }
        self.none_s = now_s;
        None
    }

    /// Records a use. The number of a closed connection rests for [`CLOSED_NS`] and 2 s, any other
    /// for `rest_s`.
    fn note(&self, number: u32, now_s: u32, closed: bool) {
        let early_s = if closed { self.rest_s.saturating_sub(seconds(CLOSED_NS) + 2) } else { 0 };
        self.uses.note(number, now_s.saturating_sub(early_s).max(1));
    }
}

impl Leases {
    /// Returns a pool of all numbers of a block.
    pub fn new(block: RangeInclusive<u32>) -> Leases {
        let fresh = *block.start()..block.end() + 1;
        // Write every page now, so that a claim does not wait for it.
        let mut claimed = vec![u64::MAX; fresh.len().div_ceil(64)];
        claimed.fill(0);
        Leases {
            declined: Vec::new(),
            fresh,
            back: VecDeque::new(),
            block,
            claimed,
            claims: 0,
            common: None,
        }
    }

    /// Shares the numbers with units that have the same block. Flows are forgotten after `idle_ns`.
    /// This unit starts its search at part `part` of `parts`, so that units seldom try the same
    /// number.
    pub fn share(&mut self, uses: Box<dyn Uses>, idle_ns: u64, part: usize, parts: usize) {
        let next = (self.fresh.len() * part / parts) as u32;
        self.common =
            Some(Common { uses, rest_s: seconds(idle_ns).saturating_add(2), next, none_s: 0 });
    }

    /// Returns the next free number.
    #[inline]
    pub fn take(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(common) = &mut self.common {
            return common.take(&self.block, seconds(now_ns));
        }
        loop {
            let number = self
                .declined
                .pop()
                .or_else(|| self.fresh.next())
                .or_else(|| self.back.pop_front())?;
            if self.claims == 0 || !self.unclaim(number) {
                return Some(number);
            }
        }
    }

    /// Records a packet of the flow that has the number. `closed` means that its connection is
    /// over.
    pub fn note(&self, number: u32, now_ns: u64, closed: bool) {
        if let Some(common) = &self.common {
            common.note(number, seconds(now_ns), closed);
        }
    }

    /// Takes back the number of a flow that is gone. In a group, the number becomes free after its
    /// rest.
    pub fn give_back(&mut self, number: u32) {
        if self.common.is_none() && !self.unclaim(number) {
            self.back.push_back(number);
        }
    }

    /// Takes back a number that was offered and not taken. It is the next to be leased.
    pub fn decline(&mut self, number: u32) {
        match &mut self.common {
            Some(common) => {
                common.uses.note(number, 0);
                common.next = number - self.block.start();
            }
            None => self.declined.push(number),
        }
    }

    /// Takes a free number of the block out of the pool, because a flow from elsewhere has it. The
    /// pool skips the number later instead of searching for it now, so many can be claimed at once.
    pub fn claim(&mut self, number: u32) {
        if let Some((word, bit)) = self.place(number) {
            self.claims += usize::from(self.claimed[word] & bit == 0);
            self.claimed[word] |= bit;
        }
    }

    fn unclaim(&mut self, number: u32) -> bool {
        let Some((word, bit)) =
            self.place(number).filter(|&(word, bit)| self.claimed[word] & bit != 0)
        else {
            return false;
        };
        self.claimed[word] &= !bit;
        self.claims -= 1;
        true
    }

    fn place(&self, number: u32) -> Option<(usize, u64)> {
        let at = self.block.contains(&number).then(|| number - self.block.start())?;
        Some((at as usize / 64, 1 << (at % 64)))
    }

    /// Returns how many numbers are free.
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
        fn claim(&self, number: u32, is_free: &dyn Fn(u32) -> bool, now_s: u32) -> bool {
            let free = is_free(self.0.borrow()[number as usize]);
            if free {
                self.note(number, now_s);
            }
            free
        }

        fn note(&self, number: u32, now_s: u32) {
            self.0.borrow_mut()[number as usize] = now_s;
        }
    }

    const S: u64 = 1_000_000_000;

    fn unit(table: &Table, part: usize) -> Leases {
        let mut leases = Leases::new(1..=4);
        leases.share(Box::new(table.clone()), 20 * S, part, 2);
        leases
    }

    #[test]
    fn one_unit_of_a_group_has_all_numbers_and_two_never_the_same() {
        let table = Table::default();
        let (mut one, mut other) = (unit(&table, 0), unit(&table, 1));
        assert_eq!([one.take(100 * S), other.take(100 * S)], [Some(1), Some(3)]);
        one.decline(1);
        assert_eq!([(); 4].map(|()| one.take(100 * S)), [Some(1), Some(2), Some(4), None]);
        assert_eq!(other.take(100 * S), None);
        other.note(3, 110 * S, false);
        // A unit that forgets an old copy of a flow does not free its number.
        one.give_back(3);
        assert_eq!(
            [(); 4].map(|()| one.take(122 * S)),
            [Some(1), Some(2), Some(4), None],
            "3 still rests"
        );
        assert_eq!(other.take(132 * S), Some(3));
    }

    #[test]
    fn the_number_of_a_connection_that_is_over_is_free_soon() {
        let table = Table::default();
        let mut leases = unit(&table, 0);
        assert_eq!([(); 4].map(|()| leases.take(100 * S)), [1, 2, 3, 4].map(Some));
        leases.note(2, 101 * S, true);
        assert_eq!([leases.take(112 * S), leases.take(113 * S)], [None, Some(2)]);
    }

    /// The pool leases the same numbers as a queue of all its numbers.
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
