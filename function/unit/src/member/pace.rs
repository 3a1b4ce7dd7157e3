//! The load of a unit without a limited rate, from the processor time and the packets that it
//! measures. Its nominal rate ignores small packets and slow functions.

/// Share of the newest batch in the average time of a packet: one of this number.
const WEIGHT: u64 = 8;

/// Measures of a unit's work.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Average time of a packet, with the time for which others had the processor.
    packet_ns: u64,
    /// Wait of the oldest frame in the ring, if the ring had more frames than were taken.
    behind_ns: u64,
    since_ns: u64,
}

impl Pace {
    /// Notes a look into the ring, which waited `waited_ns` for its oldest frame.
    pub fn took(&mut self, left_some: bool, waited_ns: u64) {
        self.behind_ns = if left_some { waited_ns } else { 0 };
    }

    /// Begins a batch.
    pub fn begin(&mut self) {
        self.since_ns = monotonic_ns();
    }

    /// Ends a batch of `packets`.
    pub fn end(&mut self, packets: usize) {
        let each_ns = monotonic_ns().saturating_sub(self.since_ns) / packets.max(1) as u64;
        self.packet_ns = (self.packet_ns * (WEIGHT - 1) + each_ns) / WEIGHT;
    }

    /// Returns how long the unit needs for `waiting` packets and those in its ring. A ring that
    /// grows holds at least as much work as its oldest frame waited.
    pub fn backlog_ns(&self, waiting: u64) -> u64 {
        self.behind_ns + waiting * self.packet_ns
    }
}

/// Returns the time of the kernel's monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the processor time that this thread used.
pub(super) fn worked_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_grows_counts_as_work() {
        let mut pace = Pace::default();
        pace.took(false, 5_000_000);
        assert_eq!(pace.backlog_ns(10), 0, "the ring is empty, and no packet was measured");
        pace.took(true, 5_000_000);
        assert_eq!(pace.backlog_ns(0), 5_000_000);
        pace.begin();
        while monotonic_ns() < pace.since_ns + 1_000_000 {}
        pace.end(10);
        assert!(pace.backlog_ns(8) >= 5_000_000 + 8 * 100_000 / WEIGHT);
    }
}
