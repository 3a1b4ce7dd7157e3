//! The counters of one pager, in memory that `pando mem top` maps too. Only ever added to.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// First word of the counters; the low byte is the version of the layout.
pub const STATS_MAGIC: u64 = 0x7061_6e64_6f6d_6d03;
/// Buckets of the stall histogram: four per power of two of nanoseconds.
pub const STALL_BUCKETS: usize = 160;

/// All counters are since the start but those named `_now`.
#[repr(C)]
#[derive(Default)]
pub struct Stats {
    /// [`STATS_MAGIC`] once the counters are valid.
    pub magic: AtomicU64,
    /// All faults.
    pub faults: AtomicU64,
    /// First touches.
    pub faults_zero: AtomicU64,
    /// Second chances used.
    pub faults_rescue: AtomicU64,
    /// Faults that fetched the page from a memory host.
    pub faults_fetch: AtomicU64,
    /// Faults that waited for another thread's fetch or a write.
    pub faults_wait: AtomicU64,
    /// Faults that waited because nothing had been evicted ahead.
    pub faults_room: AtomicU64,
    /// Round trips to a memory host that something waited for.
    pub rounds: AtomicU64,
    /// Pages that came from a memory host.
    pub pages_fetched: AtomicU64,
    /// Pages that came along with the page of a fault.
    pub pages_prefetched: AtomicU64,
    /// Pages that a guide's call fetched.
    pub pages_guided: AtomicU64,
    /// Pages that left the program for the second-chance list.
    pub pages_evicted: AtomicU64,
    /// Pages that were stored on the memory hosts.
    pub pages_written: AtomicU64,
    /// Probes of the prefetcher that the program used.
    pub probes_used: AtomicU64,
    /// Probes of the prefetcher that left unused.
    pub probes_unused: AtomicU64,
    /// Probes of a guide that the program used.
    pub guide_probes_used: AtomicU64,
    /// Probes of a guide that left unused.
    pub guide_probes_unused: AtomicU64,
    /// Ranges that were pinned for a system call, resident or not.
    pub syscalls_retried: AtomicU64,
    /// Forks of the first process.
    pub forks: AtomicU64,
    /// Requests that a guide has counted.
    pub requests: AtomicU64,
    /// Calls by which a guide requested pages.
    pub guide_calls: AtomicU64,
    /// Memory hosts that were given up.
    pub hosts_lost: AtomicU64,
    /// Reads that another copy answered.
    pub reads_failed_over: AtomicU64,
    /// Pages with a wrong fingerprint.
    pub pages_bad: AtomicU64,
    /// Slots that were copied to a new copy.
    pub slots_rebuilt: AtomicU64,
    /// Times that the limit was raised beyond the reserved share of the budget.
    pub over_budget: AtomicU64,
    /// The budget, bytes.
    pub budget_now: AtomicU64,
    /// Pages of the program that are local now.
    pub held_now: AtomicU64,
    /// Pages in the second-chance list.
    pub limbo_now: AtomicU64,
    /// Pages that hold content, in any place.
    pub in_use_now: AtomicU64,
    /// Slots that hold a page.
    pub slots_now: AtomicU64,
    /// Slots that are leased.
    pub slots_total: AtomicU64,
    /// All anonymous memory of the process, bytes.
    pub anon_now: AtomicU64,
    /// Whole copies.
    pub copies_now: AtomicU64,
    /// Percent of the slots that a copy has which is being filled. 0 = there is no such copy.
    pub filling_now: AtomicU64,
    /// 1 while prefetching is paused.
    pub prefetch_paused_now: AtomicU64,
    /// Memory of the process that the pager cannot move, bytes.
    pub outside_now: AtomicU64,
    /// Memory of forked children beyond that at their birth, bytes.
    pub children_now: AtomicU64,
    /// Fault to resume, [`bucket`] by nanoseconds.
    pub stalls: Stalls,
}

/// Histogram of stalls.
#[repr(C)]
pub struct Stalls(pub [AtomicU64; STALL_BUCKETS]);

impl Default for Stalls {
    fn default() -> Self {
        Stalls([const { AtomicU64::new(0) }; STALL_BUCKETS])
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Bucket of a stall: four per power of two, so that a figure is at most 25 % off.
pub fn bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let octave = 63 - ns.leading_zeros() as usize;
    (octave * 4 + (ns >> (octave - 2) & 3) as usize).min(STALL_BUCKETS - 1)
}

/// Upper end of a bucket in nanoseconds.
pub fn bucket_end(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4, bucket as u64 % 4);
    if octave < 2 {
        return 4;
    }
    (4 + quarter + 1) << (octave - 2)
}

/// The stall that `share` (0..=1) of all stalls stayed below, ns; 0 without any.
pub fn quantile(counts: &[u64], share: f64) -> u64 {
    let all: u64 = counts.iter().sum();
    let mut left = ((all as f64 * share) as u64).min(all.saturating_sub(1));
    for (i, &n) in counts.iter().enumerate() {
        if n > left {
            return bucket_end(i);
        }
        left -= n;
    }
    0
}

/// The longest stall, as the end of its bucket, ns; 0 without any.
pub fn longest(counts: &[u64]) -> u64 {
    counts.iter().rposition(|&n| n > 0).map_or(0, bucket_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_it_says() {
        for ns in (4..10_000u64).chain([1 << 20, 3 << 20, 1 << 30]) {
            let b = bucket(ns);
            assert!(ns < bucket_end(b) && (b <= 8 || ns >= bucket_end(b - 1)), "{ns} in {b}");
        }
        let mut counts = [0; STALL_BUCKETS];
        counts[bucket(2_400)] = 99;
        counts[bucket(90_000)] = 1;
        assert!((2_400..3_100).contains(&quantile(&counts, 0.5)));
        assert!(quantile(&counts, 0.995) > 90_000);
        assert_eq!(longest(&counts), bucket_end(bucket(90_000)));
        assert_eq!(longest(&[0; STALL_BUCKETS]), 0);
    }
}
