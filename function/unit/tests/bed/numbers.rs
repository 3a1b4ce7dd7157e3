//! Traffic for a group with a function that numbers the packets of each flow. The output shows a
//! packet that was processed twice, or on an old state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::group::Bench;

/// The number of flows.
pub const FLOWS: u16 = 24;

/// Returns the bed of a group, with the functions `count` and `eat`.
pub fn bench(name: &str) -> Option<Bench> {
    super::group::bench(name, &["count", "eat"])
}

/// Returns a UDP packet of a flow.
pub fn frame(flow: u16, sequence: u32, length: usize) -> Vec<u8> {
    let [high, low] = flow.to_be_bytes();
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    f.extend((length as u16 - 14).to_be_bytes());
    f.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9, 16 + high, low, 0, 53]);
    f.extend((length as u16 - 34).to_be_bytes());
    f.extend([0; 6]);
    f.extend(sequence.to_be_bytes());
    f.resize(length, 0);
    f
}

/// The numbers that each flow's packets got, in the order of their output.
pub type Numbers = BTreeMap<u16, Vec<u32>>;

impl Bench {
    /// Starts a group with the function that numbers packets.
    pub fn start(&self, more: &[&str]) {
        self.start_chain(&[&self.module("count")], more);
    }

    /// Plays rounds of bursts. The next round starts when the previous one has come out or nothing
    /// has for a while.
    pub fn play(
        &mut self,
        rounds: std::ops::Range<u32>,
        numbers: &mut Numbers,
        mut after: impl FnMut(&Bench, u32),
    ) -> u64 {
        let mut sent = 0;
        for round in rounds {
            let burst = 1 + round % 5;
            let flows: Vec<u16> =
                (0..FLOWS).filter(|flow| (u32::from(*flow) + round) % 3 < 2).collect();
            let frames: Vec<Vec<u8>> = (0..burst)
                .flat_map(|n| flows.iter().map(move |&flow| frame(flow, round * 8 + n, 900)))
                .collect();
            assert_eq!(
                self.inner.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                frames.len()
            );
            sent += frames.len() as u64;
            self.drain(frames.len(), numbers);
            after(self, round);
        }
        sent
    }

    /// Receives the output until `most` packets came, or none for a while.
    pub fn drain(&mut self, most: usize, numbers: &mut Numbers) {
        let (mut came, mut last) = (0, Instant::now());
        while came < most && last.elapsed() < self.patience {
            let mut slots = Vec::new();
            self.outer.receive(64, &mut slots);
            for slot in &slots {
                let frame = self.outer.frame(slot).frame;
                assert_eq!(frame.len(), 900, "something else came out: {frame:x?}");
                let flow = u16::from_be_bytes([frame[34] - 16, frame[35]]);
                numbers
                    .entry(flow)
                    .or_default()
                    .push(u32::from_be_bytes(frame[42..46].try_into().unwrap()));
                (came, last) = (came + 1, Instant::now());
            }
            self.outer.release(slots.len());
            std::thread::yield_now();
        }
    }

    /// Waits for this time and checks that nothing arrives.
    pub fn silence(&mut self, time: Duration) {
        let (patience, mut none) = (std::mem::replace(&mut self.patience, time), Numbers::new());
        self.drain(usize::MAX, &mut none);
        self.patience = patience;
        assert_eq!(came(&none), 0, "more came than was sent: {none:?}");
    }
}

/// Returns the number of packets that came out.
pub fn came(numbers: &Numbers) -> u64 {
    numbers.values().map(|n| n.len() as u64).sum()
}

/// Checks that each number occurs once, as from a single unit with the same packets.
pub fn assert_as_from_one_unit(numbers: &Numbers) {
    for (flow, numbers) in numbers {
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            (1..=numbers.len() as u32).collect::<Vec<_>>(),
            "flow {flow}: {numbers:?}"
        );
    }
}

/// Returns a count of the handover between units.
pub fn handed_over(status: &serde_json::Value, what: &str) -> u64 {
    status["handover"][what].as_u64().unwrap()
}

/// Waits for a status of the group, and calls `meanwhile` until then.
pub fn until(
    bench: &mut Bench,
    such: impl Fn(&serde_json::Value) -> bool,
    mut meanwhile: impl FnMut(&mut Bench),
) -> serde_json::Value {
    let deadline = Instant::now() + Duration::from_secs(90);
    let control = bench.directory.join("run/g/control.sock");
    loop {
        let status = pando_unit::unit::request(&control, "status").unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        if such(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status}");
        meanwhile(bench);
    }
}
