//! The counters of one pager, in memory that `pando mem top` maps too. Only ever added to.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// First word of the counters; the low byte is the version of the layout.
pub const STATS_MAGIC: u64 = 0x7061_6e64_6f6d_6d02;
/// Buckets of the stall histogram: four per power of two of nanoseconds.
pub const STALL_BUCKETS: usize = 160;

/// All counters are since the start but those named `_now`.
#[repr(C)]
#[derive(Default)]
pub struct Stats {
    /// [`STATS_MAGIC`].
    pub magic: AtomicU64,
    /// Page faults that the pager served.
    pub faults: AtomicU64,
    /// First touches.
    pub faults_zero: AtomicU64,
    /// Second chances used.
    pub faults_rescue: AtomicU64,
    /// Faults that fetched their page.
    pub faults_fetch: AtomicU64,
    /// Faults that waited for another thread's fetch or a write.
    pub faults_wait: AtomicU64,
    /// Faults that waited because nothing had been evicted ahead.
    pub faults_room: AtomicU64,
    /// Round trips to a memory host that something waited for.
    pub rounds: AtomicU64,
    /// Pages fetched, in all ways.
    pub pages_fetched: AtomicU64,
    /// Pages fetched together with a missing one.
    pub pages_prefetched: AtomicU64,
    /// Pages fetched for a guide.
    pub pages_guided: AtomicU64,
    /// Pages that left.
    pub pages_evicted: AtomicU64,
    /// Pages written to a memory host.
    pub pages_written: AtomicU64,
    /// Probes of the prefetcher that the program used.
    pub probes_used: AtomicU64,
    /// Probes of the prefetcher that left unused.
    pub probes_unused: AtomicU64,
    /// Probes of the guide that the program used.
    pub guide_probes_used: AtomicU64,
    /// Probes of the guide that left unused.
    pub guide_probes_unused: AtomicU64,
    /// System calls that met a page that was away.
    pub syscalls_retried: AtomicU64,
    /// Forks of the program.
    pub forks: AtomicU64,
    /// Requests that a guide has counted.
    pub requests: AtomicU64,
    /// Prefetches that a guide requested.
    pub guide_calls: AtomicU64,
    /// Memory hosts given up.
    pub hosts_lost: AtomicU64,
    /// Reads that the other copy answered.
    pub reads_failed_over: AtomicU64,
    /// Pages with a wrong fingerprint.
    pub pages_bad: AtomicU64,
    /// Pages copied to a memory host that joined.
    pub slots_rebuilt: AtomicU64,
    /// Times that the process exceeded its budget because no page could leave.
    pub over_budget: AtomicU64,
    /// The budget of the process, bytes.
    pub budget_now: AtomicU64,
    /// Pages of the program that are local now.
    pub held_now: AtomicU64,
    /// Pages in the second-chance list, holes included.
    pub limbo_now: AtomicU64,
    /// Pages that hold content, in any place.
    pub in_use_now: AtomicU64,
    /// Taken slots.
    pub slots_now: AtomicU64,
    /// Slots of the lease.
    pub slots_total: AtomicU64,
    /// All anonymous memory of the process, bytes.
    pub anon_now: AtomicU64,
    /// Memory hosts with a whole copy.
    pub copies_now: AtomicU64,
    /// 1 while prefetching is paused.
    pub prefetch_paused_now: AtomicU64,
    /// Memory of the process that the pager cannot move, bytes.
    pub outside_now: AtomicU64,
    /// Memory of forked children since their fork, bytes.
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

/// The stall that `share` (0..1) of all stalls stayed below, ns; 0 without any.
pub fn quantile(counts: &[u64], share: f64) -> u64 {
    let all: u64 = counts.iter().sum();
    let mut left = (all as f64 * share) as u64;
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
