//! Whether to stay awake for the other side. To sleep and be woken takes longer than to fetch a page where the processor has
//! gone idle meanwhile; to stay awake is wasted where the other side is far or slow, or somebody else wants this very processor.

/// What a wait that ends while awake saves: the wake-up, ns.
const SAVED_NS: i64 = 25_000;
/// The part of the balance that one wait makes up.
const SHARE: i64 = 16;
/// Waits that are slept through at most before the next try.
const SKIP_MAX: u16 = 255;

/// What the last waits have taught. Memory of zeros is one that tries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
    /// What staying awake saves in the mean, ns: a single wait behind another program costs as much as many wake-ups.
    balance_ns: i64,
    skip: u16,
    left: u16,
}

impl Poll {
    /// Whether to stay awake this time; the caller then says how it went.
    pub fn now(&mut self) -> bool {
        let sleeps = self.left > 0;
        self.left -= sleeps as u16;
        !sleeps
    }

    /// What was waited for came while awake.
    pub fn came(&mut self) {
        self.account(SAVED_NS);
        self.settle(self.skip);
    }

    /// It did not, or others had the processor for so long, and this was lost. Each failure in the red doubles the waits that
    /// are slept through.
    pub fn lost(&mut self, ns: u64) {
        self.account(-(ns as i64));
        self.settle((2 * self.skip + 1).min(SKIP_MAX));
    }

    /// In the red, so many waits are slept through.
    fn settle(&mut self, skip: u16) {
        self.skip = if self.balance_ns < 0 { skip } else { 0 };
        self.left = self.skip;
    }

    fn account(&mut self, ns: i64) {
        self.balance_ns += (ns - self.balance_ns) / SHARE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits that are awake, of so many of which each `every`th loses so much.
    fn awake(poll: &mut Poll, waits: usize, every: usize, ns: u64) -> usize {
        let mut tries = 0;
        for _ in 0..waits {
            if poll.now() {
                tries += 1;
                if tries % every == 0 {
                    poll.lost(ns);
                } else {
                    poll.came();
                }
            }
        }
        tries
    }

    #[test]
    fn what_never_comes_in_time_is_slept_through() {
        let mut poll = Poll::default();
        let tries = awake(&mut poll, 100_000, 1, 50_000);
        assert!((380..420).contains(&tries), "{tries} of 100,000 waits were awake");
        // And what comes in time again is waited for again, after a while.
        awake(&mut poll, 10_000, usize::MAX, 0);
        assert_eq!(awake(&mut poll, 1000, usize::MAX, 0), 1000);
    }

    #[test]
    fn what_loses_more_now_and_then_than_it_saves_is_mostly_slept_through() {
        let mut poll = Poll::default();
        let tries = awake(&mut poll, 100_000, 10, 1_000_000);
        assert!(tries < 2000, "{tries} of 100,000 waits were awake");
    }

    #[test]
    fn a_small_loss_now_and_then_is_worth_it() {
        let mut poll = Poll::default();
        let tries = awake(&mut poll, 100_000, 10, 50_000);
        assert!(tries > 95_000, "{tries} of 100,000 waits were awake");
    }
}
