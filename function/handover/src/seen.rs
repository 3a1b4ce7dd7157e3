//! The packets of a flow that a unit has processed. It detects repetitions and counts the packets
//! that may still come.

/// The last 64 clocks of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The highest clock so far.
    pub clock: u64,
    /// Bit n: clock - n was seen.
    bits: u64,
}

impl Seen {
    /// Returns the record in which every packet up to `clock` was seen, or will never come.
    pub fn all_up_to(clock: u64) -> Seen {
        Seen { clock, bits: u64::MAX }
    }

    /// Reports whether this packet is new. A packet 64 clocks late or more counts as seen.
    pub fn is_new(&self, clock: u64) -> bool {
        match self.clock.checked_sub(clock) {
            None => true,
            Some(back) => back < 64 && self.bits & 1 << back == 0,
        }
    }

    pub fn insert(&mut self, clock: u64) {
        match self.clock.checked_sub(clock) {
            None => {
                let ahead = clock - self.clock;
                self.bits = if ahead < 64 { self.bits << ahead } else { 0 };
                self.bits |= 1;
                self.clock = clock;
            }
            Some(back) => self.bits |= if back < 64 { 1 << back } else { 0 },
        }
    }

    /// Returns how many packets below the highest clock may still come.
    pub fn holes(&self) -> u32 {
        self.bits.count_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_knows_what_a_set_knows(
            start in 0..100u64,
            clocks in proptest::collection::vec(0..200u64, 0..60),
        ) {
            let (mut seen, mut set) =
                (Seen::all_up_to(start), (0..=start).collect::<BTreeSet<u64>>());
            for clock in clocks {
                let highest = *set.last().unwrap();
                prop_assert_eq!(seen.is_new(clock), !set.contains(&clock) && clock + 64 > highest);
                if seen.is_new(clock) {
                    seen.insert(clock);
                    set.insert(clock);
                }
                let highest = *set.last().unwrap();
                let holes =
                    (highest.saturating_sub(63)..highest).filter(|c| !set.contains(c)).count();
                prop_assert_eq!(seen.holes() as usize, holes);
            }
        }
    }
}
