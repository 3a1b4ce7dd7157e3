//! Figures of a run: latencies, provisioning, moves.

use crate::workload::Workload;
use crate::world::{Run, TICK_NS};

/// The figures of one run from `warm_ns` on. Latency is the time from arrival to completion.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 75th percentile.
    pub p75_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// 75th percentile of flows that stay below a tenth of a unit in every millisecond.
    pub mice_p75_us: f64,
    /// 99th percentile of the same flows.
    pub mice_p99_us: f64,
    /// Share of packets that belong to those flows.
    pub mice_share: f64,
    /// Capacity of the units that accepted, drained or held in each ms, divided by the bytes
    /// offered.
    pub provisioning: f64,
    /// The same over bins of 100 ms.
    pub provisioning_100ms: f64,
    /// Flowlets per flow.
    pub flowlets_per_flow: f64,
    /// Share of flowlets that moved.
    pub moved: f64,
    /// Share of moved flowlets that did not wait.
    pub seamless: f64,
    /// States pushed per second.
    pub pushes_per_s: f64,
    /// States pulled per second.
    pub pulls_per_s: f64,
    /// Bytes of all pushes over those of all packets.
    pub pushed_share: f64,
    /// Longest wait of a packet for its flow's state, in milliseconds.
    pub held_max_ms: f64,
}

/// Returns the percentile `p` (0 to 1) of unsorted values, or 0 without values.
pub fn percentile(values: &mut [u64], p: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let at = ((values.len() as f64 * p).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable(at).1
}

/// Returns for each flow whether it stays below a tenth of a unit in every millisecond.
pub fn mice(load: &Workload, unit_bytes_per_tick: f64) -> Vec<bool> {
    let mut is_mouse = vec![true; load.flows as usize];
    let mut bin = vec![(u64::MAX, 0u64); load.flows as usize];
    for p in &load.packets {
        let tick = p.at_ns / TICK_NS;
        let (at, bytes) = &mut bin[p.flow as usize];
        *bytes = if *at == tick { *bytes } else { 0 } + u64::from(p.bytes);
        *at = tick;
        is_mouse[p.flow as usize] &= *bytes as f64 <= unit_bytes_per_tick / 10.0;
    }
    is_mouse
}

/// Returns the figures of a run of a window. `unit_bytes_per_tick` is the capacity of a unit.
pub fn figures(
    load: &Workload,
    run: &Run,
    window_ns: u64,
    warm_ns: u64,
    unit_bytes_per_tick: f64,
) -> Figures {
    let first = load.packets.partition_point(|p| p.at_ns < warm_ns);
    let bytes: u64 = load.packets[first..].iter().map(|p| u64::from(p.bytes)).sum();
    let is_mouse = mice(load, unit_bytes_per_tick);
    let mut all = run.latency_ns[first..].to_vec();
    let of_mice =
        |(p, l): (&crate::workload::Packet, &u64)| is_mouse[p.flow as usize].then_some(*l);
    let mut small: Vec<u64> =
        load.packets[first..].iter().zip(&run.latency_ns[first..]).filter_map(of_mice).collect();
    let us = |v: u64| v as f64 / 1000.0;
    let seconds = window_ns as f64 / 1e9;
    let provided = |units: &[u32], from: u64, ticks: f64| -> f64 {
        let skipped = (from as f64 / (TICK_NS as f64 * ticks)).round() as usize;
        let sum: u64 = units.iter().skip(skipped).map(|&u| u64::from(u)).sum();
        sum as f64 * ticks * unit_bytes_per_tick / bytes.max(1) as f64
    };
    Figures {
        mean_us: all.iter().sum::<u64>() as f64 / all.len().max(1) as f64 / 1000.0,
        p50_us: us(percentile(&mut all, 0.5)),
        p75_us: us(percentile(&mut all, 0.75)),
        p90_us: us(percentile(&mut all, 0.9)),
        p99_us: us(percentile(&mut all, 0.99)),
        p999_us: us(percentile(&mut all, 0.999)),
        mice_p75_us: us(percentile(&mut small, 0.75)),
        mice_p99_us: us(percentile(&mut small, 0.99)),
        mice_share: small.len() as f64 / all.len().max(1) as f64,
        provisioning: provided(&run.units, warm_ns, 1.0),
        provisioning_100ms: provided(&run.units_100ms, warm_ns, 100.0),
        flowlets_per_flow: run.flowlets as f64 / f64::from(load.flows.max(1)),
        moved: run.moves as f64 / run.flowlets.max(1) as f64,
        seamless: if run.moves == 0 { 1.0 } else { run.seamless as f64 / run.moves as f64 },
        pushes_per_s: run.pushes as f64 / seconds,
        pulls_per_s: run.pulls as f64 / seconds,
        pushed_share: run.pushed_bytes as f64
            / load.packets.iter().map(|p| u64::from(p.bytes)).sum::<u64>().max(1) as f64,
        held_max_ms: run.held_max_ns as f64 / 1e6,
    }
}

/// Returns the median of each figure over several runs.
pub fn median(runs: &[Figures]) -> Figures {
    let of = |get: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(get).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    Figures {
        p50_us: of(|f| f.p50_us),
        p75_us: of(|f| f.p75_us),
        p90_us: of(|f| f.p90_us),
        p99_us: of(|f| f.p99_us),
        p999_us: of(|f| f.p999_us),
        mean_us: of(|f| f.mean_us),
        mice_p75_us: of(|f| f.mice_p75_us),
        mice_p99_us: of(|f| f.mice_p99_us),
        mice_share: of(|f| f.mice_share),
        provisioning: of(|f| f.provisioning),
        provisioning_100ms: of(|f| f.provisioning_100ms),
        flowlets_per_flow: of(|f| f.flowlets_per_flow),
        moved: of(|f| f.moved),
        seamless: of(|f| f.seamless),
        pushes_per_s: of(|f| f.pushes_per_s),
        pulls_per_s: of(|f| f.pulls_per_s),
        pushed_share: of(|f| f.pushed_share),
        held_max_ms: of(|f| f.held_max_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        let mut v: Vec<u64> = (1..=100).rev().collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|p| percentile(&mut v, p)), [1, 50, 99, 100]);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }
}
