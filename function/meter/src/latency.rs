//! A histogram of nanoseconds. The width of each bucket is an eighth of its value.

/// Counts of latencies.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u64>,
    total: u64,
}

const STEPS: u64 = 8;

impl Default for Latencies {
    fn default() -> Self {
        Latencies { counts: vec![0; 64 * STEPS as usize], total: 0 }
    }
}

impl Latencies {
    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.total += 1;
    }

    /// Returns the upper bound of the bucket that holds the quantile `share` (0 to 1). Returns 0 if
    /// the histogram is empty.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let mut left = (self.total as f64 * share).ceil() as u64;
        for (n, &count) in self.counts.iter().enumerate() {
            if count >= left && left > 0 {
                return upper(n);
            }
            left -= count.min(left);
        }
        0
    }

    /// Returns the number of counted latencies.
    pub fn count(&self) -> u64 {
        self.total
    }
}

#[inline]
fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(STEPS);
    let power = 63 - u64::from(value.leading_zeros());
    (power * STEPS + (value >> (power - 3)) - STEPS) as usize
}

fn upper(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    ((u128::from(STEPS + step + 1) << power >> 3) - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bound of a bucket is not below its values, up to the largest value.
    #[test]
    fn buckets_cover_all_numbers() {
        for power in 3..64u32 {
            for value in
                [1u64 << power, (1 << power) + 1, (1u64 << power).wrapping_mul(2).wrapping_sub(1)]
            {
                let bound = upper(bucket(value));
                assert!(bound >= value && bound - value <= value / 8, "{bound} for {value}");
            }
        }
        let mut latencies = Latencies::default();
        [0, 7, u64::MAX].into_iter().for_each(|value| latencies.record(value));
        assert_eq!(latencies.count(), 3);
        assert_eq!([0.0, 0.5, 1.0].map(|q| latencies.quantile_ns(q)), [0, 8, u64::MAX]);
        assert_eq!(Latencies::default().quantile_ns(0.5), 0);
    }

    proptest! {
        #[test]
        fn a_quantile_is_right_to_an_eighth(
            mut values in proptest::collection::vec(8..1u64 << 40, 1..200),
            share in 0.01..1.0f64,
        ) {
            let mut latencies = Latencies::default();
            values.iter().for_each(|&v| latencies.record(v));
            values.sort_unstable();
            let exact = values[((values.len() as f64 * share).ceil() as usize).max(1) - 1];
            let found = latencies.quantile_ns(share);
            prop_assert!(found >= exact && found <= exact + exact / 8 + 1, "{found} for {exact}");
        }
    }
}
