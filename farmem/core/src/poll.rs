//! Whether to stay awake for the other side. To sleep and be woken takes longer than to fetch a page where the processor has
//! gone idle meanwhile; to stay awake is wasted where the other side is far or slow, or wants this very processor.

/// Waits that are slept through at most before the next try.
const SKIP_MAX: u16 = 1023;

/// What the last waits have taught. Memory of zeros is one that tries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
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

    /// `in_time`: what was waited for came while awake. Each failure doubles the waits that are slept through.
    pub fn went(&mut self, in_time: bool) {
        self.skip = if in_time { 0 } else { (2 * self.skip + 1).min(SKIP_MAX) };
        self.left = self.skip;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_in_time_is_slept_through() {
        let mut poll = Poll::default();
        let mut awake = 0;
        for _ in 0..100_000 {
            if poll.now() {
                awake += 1;
                poll.went(false);
            }
        }
        assert!((90..120).contains(&awake), "{awake} of 100,000 waits were awake");
        while !poll.now() {}
        poll.went(true);
        assert!((0..1000).all(|_| {
            let awake = poll.now();
            poll.went(true);
            awake
        }));
    }
}
