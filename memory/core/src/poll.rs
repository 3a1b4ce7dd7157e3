//! Decides whether a thread polls for an answer or sleeps. If the processor has gone idle, a sleep
//! and a wake-up cost more than the fetch of a page. Polling is waste if the other side is far or
//! slow, or if another thread needs the processor.

/// A wait that ends while polling saves one wake-up, ns.
const SAVED_NS: i64 = 25_000;
/// One wait changes the balance by this part.
const SHARE: i64 = 16;
/// Most waits that sleep before the next attempt to poll.
const SKIP_MAX: u16 = 255;

/// The balance of the last waits. Memory of zeros is a state that polls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
    /// Mean gain of polling, ns. A single wait for a busy processor costs as much as many wake-ups.
    balance_ns: i64,
    skip: u16,
    left: u16,
}

impl Poll {
    /// Whether to poll this time. The caller then reports the result.
    pub fn now(&mut self) -> bool {
        let sleeps = self.left > 0;
        self.left -= sleeps as u16;
        !sleeps
    }

    /// Records that the answer came during polling.
    pub fn came(&mut self) {
        self.account(SAVED_NS);
        self.settle(self.skip);
    }

    /// Records that polling failed, or that other threads had the processor, with the lost time.
    /// With a negative balance, each failure doubles the waits that sleep.
    pub fn lost(&mut self, ns: u64) {
        self.account(-(ns as i64));
        self.settle((2 * self.skip + 1).min(SKIP_MAX));
    }

    /// Sleeps for this many waits, if the balance is negative.
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
        // After a while, a side that answers in time again is polled again.
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
