//! Tests chains of functions that are written in Rust: batches against a plain model, flows that
//! move between units, fragments, and bytes of strangers.

mod codec;
mod fragments;
mod full;
mod handed;
mod model;
mod scripted;

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};

use scripted::Scripted;

/// The numbers that a stage of a test may lease.
pub const BLOCK: std::ops::RangeInclusive<u32> = 40_000..=40_005;

/// Returns a chain of functions with 16 bytes of state each.
pub fn chain(stages: usize, policy: Policy) -> Chain<Scripted> {
    let stage = |n| Stage::new(Scripted::new(n, 16), Leases::new(BLOCK));
    Chain::new((0..stages).map(stage).collect(), policy)
}

/// Sends frames through a chain in one batch; returns the fate and the output of each.
pub fn through(
    chain: &mut Chain<Scripted>,
    frames: &[Vec<u8>],
    now_ns: u64,
) -> Vec<(Fate, Vec<u8>)> {
    let arrivals: Vec<Arrival> = frames
        .iter()
        .map(|frame| Arrival { frame, time_ns: now_ns, outer: false, steered: None })
        .collect();
    assert_eq!(chain.process(&arrivals), frames.len());
    chain.outputs(&arrivals).map(|(fate, out)| (fate, out.concat())).collect()
}

/// Returns the count in the state of a flow at a stage, and its number.
pub fn state(chain: &Chain<Scripted>, client: u8, stage: usize) -> Option<(u64, u32)> {
    let id = chain.flows.find(&scripted::key(client))?;
    let state = chain.flows.state(id, stage);
    let (count, rest) = state.split_first_chunk().expect("8 bytes");
    Some((u64::from_le_bytes(*count), u32::from_le_bytes(*rest.first_chunk().expect("4 bytes"))))
}
