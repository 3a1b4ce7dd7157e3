//! Flows as bytes, and the numbers that flows have: random ones against plain models.

use std::collections::{BTreeSet, HashMap};

use pando_chain::codec::{FlowHead, Malformed, Reader, put_flow, put_state};
use pando_chain::ends::Ends;
use pando_chain::flows::{Flows, STAGES_MAX};
use pando_chain::leases::Leases;
use pando_flow::{Direction, End, FlowKey};
use pando_traffic::random::Random;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Returns an end of few addresses and ports, so that ends are often equal.
fn end(version: u8) -> impl Strategy<Value = End> {
    (0..3u8, 0..3u8).prop_map(move |(address, port)| {
        End::new(&[address; 16][..if version == 4 { 4 } else { 16 }], [0, port])
    })
}

fn key(version: u8) -> impl Strategy<Value = FlowKey> {
    let protocol = prop_oneof![Just(6u8), Just(17)];
    (end(version), end(version), protocol)
        .prop_map(move |(one, other, protocol)| FlowKey::between(one, other, protocol, version).0)
}

fn heads() -> impl Strategy<Value = FlowHead> {
    let version = prop_oneof![Just(4u8), Just(6)];
    let keys = (version.clone(), version).prop_flat_map(|(of, alias)| {
        (key(of), proptest::option::of(prop_oneof![3 => key(of), 1 => key(alias)]))
    });
    let bits = (any::<bool>(), any::<u8>(), any::<u8>(), any::<u8>(), 0..8u8);
    (keys, bits, any::<[u32; STAGES_MAX]>()).prop_map(
        |((key, alias), (up, valid, taken, changed, ends), mut leases)| {
            for (stage, lease) in leases.iter_mut().enumerate() {
                *lease *= u32::from(taken >> stage & 1);
            }
            let ends = Ends::from_bits(ends);
            FlowHead { key, alias, up, valid, taken, changed, leases, ends }
        },
    )
}

/// Returns states with runs of zeroes of all lengths.
fn state() -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..20);
    let part = (0..150usize, bytes).prop_map(|(zeroes, bytes)| [vec![0; zeroes], bytes].concat());
    proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// A flow with any alias, bits and states is read as it was written. Cut off anywhere, it is
    /// refused.
    #[test]
    fn any_flow_is_read_as_it_was_written(
        head in heads(),
        states in proptest::collection::vec(state(), 0..4),
    ) {
        let mut bytes = Vec::new();
        put_flow(&mut bytes, &head);
        states.iter().for_each(|state| put_state(&mut bytes, state));
        let read = |bytes: &[u8]| {
            let mut reader = Reader(bytes);
            let key = reader.key()?;
            let head = reader.flow(key)?;
            let read = |state: &Vec<u8>| {
                let mut into = vec![0xee; state.len()];
                reader.state(&mut into).map(|()| into)
            };
            let states = states.iter().map(read).collect::<Result<Vec<_>, Malformed>>()?;
            Ok((head, states, reader.0.len()))
        };
        prop_assert_eq!(read(&bytes), Ok((head, states.clone(), 0)));
        for cut in 0..bytes.len() {
            prop_assert_eq!(read(&bytes[..cut]), Err(Malformed), "{} bytes", cut);
        }
    }

    /// A state that is longer than its place is refused, and changes no byte behind the place.
    #[test]
    fn a_state_fits_its_place_or_is_refused(
        state in proptest::collection::vec(1..255u8, 0..40),
        room in 0..40usize,
    ) {
        let mut bytes = Vec::new();
        put_state(&mut bytes, &state);
        let mut into = vec![0xee; room];
        let read = Reader(&bytes).state(&mut into);
        prop_assert_eq!(read.is_ok(), state.len() <= room);
        if read.is_ok() {
            let mut padded = state;
            padded.resize(room, 0);
            prop_assert_eq!(into, padded);
        }
        let mut reader = Reader(&bytes);
        prop_assert_eq!((reader.skip_state(), reader.0.len()), (Ok(()), 0));
    }

    /// Bytes that are no state are refused, or fit their place.
    #[test]
    fn no_bytes_of_a_state_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        room in 0..400usize,
    ) {
        let _ = Reader(&bytes).state(&mut vec![0; room]);
    }
}

/// Flows come from elsewhere with their numbers and end, others begin here. A number is leased to
/// one flow at a time, and none is lost.
#[test]
fn numbers_of_flows_from_elsewhere_are_leased_to_no_other() {
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let (mut leases, mut held) = (Leases::new(100..=131), BTreeSet::<u32>::new());
        for _ in 0..400 {
            match random.below(6) {
                0 | 1 => match leases.take(0) {
                    Some(number) => assert!(held.insert(number), "seed {seed}: {number} twice"),
                    None => assert_eq!(held.len(), 32, "seed {seed}: none is free"),
                },
                2 => {
                    let number = 100 + random.below(32) as u32;
                    if held.insert(number) {
                        (0..1 + random.below(2)).for_each(|_| leases.claim(number));
                    }
                }
                3 => {
                    if let Some(number) = leases.take(0) {
                        assert!(!held.contains(&number));
                        leases.decline(number);
                    }
                }
                _ => {
                    let at = random.below(held.len().max(1) as u64) as usize;
                    if let Some(&number) = held.iter().nth(at) {
                        held.remove(&number);
                        leases.give_back(number);
                    }
                }
            }
            assert_eq!(leases.free(), 32 - held.len(), "seed {seed}");
        }
    }
}

/// A table of flows against a map: which flow a key finds, and by which way.
#[test]
fn a_table_of_flows_is_a_map_of_keys_and_aliases() {
    let key = |n: u64| FlowKey::from_bytes([n as u8; FlowKey::LENGTH_BYTES]);
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let mut table = Flows::new(&[3, 5], 8);
        // Per flow: its state and its alias.
        let mut model: HashMap<u64, (u8, Option<u64>)> = HashMap::new();
        for step in 0..300u64 {
            let n = random.below(12);
            let owner = |model: &HashMap<u64, (u8, Option<u64>)>| {
                let alias = model.iter().find(|(_, flow)| flow.1 == Some(n));
                if model.contains_key(&n) { Some(n) } else { alias.map(|(of, _)| *of) }
            };
            match random.below(4) {
                0 | 1 => {
                    let met = table.meet(key(n), Direction::Up, step);
                    let known = owner(&model);
                    if known.is_none() && model.len() == 8 {
                        assert_eq!(met, None, "seed {seed}: the table is full");
                        continue;
                    }
                    let met = met.expect("there is room");
                    let of = known.unwrap_or(n);
                    assert_eq!(table.flow(met.flow).key, key(of));
                    assert_eq!(met.translated, known.is_some_and(|of| of != n));
                    let flow = model.entry(of).or_default();
                    assert_eq!(table.whole_state(met.flow), [flow.0; 8], "seed {seed}");
                    flow.0 = step as u8;
                    table.state_mut(met.flow, 0).fill(step as u8);
                    table.state_mut(met.flow, 1).fill(step as u8);
                }
                2 => {
                    let Some(&of) = model.keys().min() else { continue };
                    let id = table.find(&key(of)).expect("it is in the model");
                    table.add_alias(id, key(n));
                    if owner(&model).is_none() {
                        model.get_mut(&of).expect("it is there").1 = Some(n);
                    }
                }
                _ if model.contains_key(&n) => {
                    model.remove(&n);
                    let id = table.find(&key(n)).expect("it is in the model");
                    assert_eq!(table.remove(id).key, key(n));
                }
                _ => {}
            }
            assert_eq!(table.len(), model.len());
            let found = table.find(&key(n)).map(|id| table.flow(id).key);
            assert_eq!(found, owner(&model).map(key), "seed {seed}, step {step}");
        }
    }
}
