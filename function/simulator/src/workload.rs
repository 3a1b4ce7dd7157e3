//! Workloads: overlays captures until they make a load.
//!
//! Each copy of a capture begins at a random moment. Its part beyond the window's end continues
//! from the window's start as a separate flow. So a window looks as if copies had been starting
//! forever. Every byte is played once per copy, and the load does not depend on the speed.

use crate::capture::Capture;
use pando_traffic::random::Random;
use std::collections::HashMap;

/// The parameters that turn captures into a load. Every figure states them.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Overlay {
    /// How many times each capture is played.
    pub copies: u32,
    /// Factor of time compression. Compression changes flowlets, so figures always state it.
    pub speed: f64,
    /// Upper limit of a flow's rate in bits per second; faster packets are delayed. 0: no limit.
    pub pace_bps: u64,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// Seed of the moments when copies begin.
    pub seed: u64,
    /// Every n-th flow gets an adversarial burst (SNF §9.3); 0: no flow.
    pub adversarial_every: u32,
}

/// One packet of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Arrival in nanoseconds from the start of the window.
    pub at_ns: u64,
    /// Its flow.
    pub flow: u32,
    /// Length in bytes.
    pub bytes: u32,
}

/// A load in order of time.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// In order of time.
    pub packets: Vec<Packet>,
    /// Number of flows.
    pub flows: u32,
}

/// Returns the bytes of all packets of the captures.
pub fn bytes_of(captures: &[Capture]) -> u64 {
    captures.iter().flat_map(|c| &c.packets).map(|p| u64::from(p.bytes)).sum()
}

/// Returns the number of copies that make a load of `bits_per_second` in a window.
pub fn copies_for(captures: &[Capture], bits_per_second: u64, window_ns: u64) -> u32 {
    let wanted = bits_per_second as f64 / 8.0 * window_ns as f64 / 1e9;
    (wanted / bytes_of(captures).max(1) as f64).round().max(1.0) as u32
}

/// Overlays copies of captures.
pub fn overlay(captures: &[Capture], how: &Overlay) -> Workload {
    let mut random = Random::new(how.seed);
    let mut load = Workload::default();
    for capture in captures {
        let times = play(capture, how);
        for _ in 0..how.copies {
            let begin = random.below(how.window_ns);
            let mut flows: HashMap<(u32, u64), u32> = HashMap::new();
            for (packet, at) in capture.packets.iter().zip(&times) {
                let at = at + begin;
                let next = load.flows;
                let flow = *flows.entry((packet.flow, at / how.window_ns)).or_insert(next);
                load.flows = load.flows.max(flow + 1);
                load.packets.push(Packet { at_ns: at % how.window_ns, flow, bytes: packet.bytes });
            }
        }
    }
    if how.adversarial_every > 0 {
        add_bursts(&mut load, how, &mut random);
    }
    load.packets.sort_by_key(|p| (p.at_ns, p.flow));
    load
}

/// Returns the send time of each packet of a capture, after speed and pace.
fn play(capture: &Capture, how: &Overlay) -> Vec<u64> {
    let mut free = vec![0u64; capture.flows as usize];
    let send = |p: &crate::capture::Seen| {
        let mut at = (p.at_ns as f64 / how.speed) as u64;
        if how.pace_bps > 0 {
            let own = &mut free[p.flow as usize];
            at = at.max(*own);
            *own = at + (f64::from(p.bytes) * 8e9 / how.pace_bps as f64) as u64;
        }
        at
    };
    capture.packets.iter().map(send).collect()
}

/// Adds a burst to every n-th flow: 10 to 30 packets of 1400 bytes at 10 Gbit/s, 20 on average.
fn add_bursts(load: &mut Workload, how: &Overlay, random: &mut Random) {
    const PACKET_NS: u64 = 1120;
    let mut first = vec![u64::MAX; load.flows as usize];
    for p in &load.packets {
        let at = &mut first[p.flow as usize];
        *at = (*at).min(p.at_ns);
    }
    for (flow, &at) in first.iter().enumerate().step_by(how.adversarial_every as usize) {
        for k in 0..10 + random.below(21) {
            let at_ns = (at + k * PACKET_NS).min(how.window_ns - 1);
            load.packets.push(Packet { at_ns, flow: flow as u32, bytes: 1400 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Seen;
    use proptest::prelude::*;

    fn capture() -> Capture {
        let packets = (0..100u32)
            .map(|i| Seen { at_ns: u64::from(i) * 7_000_000, flow: i % 3, bytes: 60 + i * 14 })
            .collect();
        Capture { name: "made".into(), packets, flows: 3 }
    }

    proptest! {
        #[test]
        fn every_byte_is_played_once_per_copy(
            copies in 1..5u32,
            speed in 1..30u32,
            pace in prop_oneof![Just(0), Just(1_000_000u64)],
            seed: u64,
        ) {
            let how = Overlay {
                copies,
                speed: f64::from(speed),
                pace_bps: pace,
                window_ns: 50_000_000,
                seed,
                adversarial_every: 0,
            };
            let load = overlay(&[capture()], &how);
            let bytes: u64 = load.packets.iter().map(|p| u64::from(p.bytes)).sum();
            prop_assert_eq!(bytes, u64::from(copies) * bytes_of(&[capture()]));
            prop_assert!(load.packets.is_sorted_by_key(|p| p.at_ns));
            prop_assert!(
                load.packets.iter().all(|p| p.at_ns < how.window_ns && p.flow < load.flows)
            );
            prop_assert_eq!(overlay(&[capture()], &how).packets, load.packets);
        }
    }

    #[test]
    fn copies_make_the_load() {
        let copies = copies_for(&[capture()], 1_000_000_000, 100_000_000);
        let bits = 8 * u64::from(copies) * bytes_of(&[capture()]);
        assert!((bits as f64 / 1e8 - 1.0).abs() < 0.01, "{bits} bits in 0.1 s");
    }
}
