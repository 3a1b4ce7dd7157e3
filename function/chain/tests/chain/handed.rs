//! Flows that go to another unit or to a standby, and bytes that only look like flows.

use pando_chain::codec::{Malformed, Reader};
use pando_chain::flows::FlowId;
use pando_chain::{Chain, Fate, Policy};
use pando_flow::FlowKey;
use pando_traffic::random::Random;

use crate::scripted::{NAT, Scripted, act, frame, key, reply};
use crate::{BLOCK, chain, state, through};

/// Returns the changes of a chain's last batch as its log would get them: forgotten keys, the
/// number of changed flows, and those flows.
fn changes(chain: &mut Chain<Scripted>) -> (Vec<FlowKey>, usize, Vec<u8>) {
    let mut bytes = Vec::new();
    let changed: Vec<FlowId> = chain.changed.clone();
    changed.iter().for_each(|&id| chain.put_flow(&mut bytes, id, chain.flows.flow(id).changed()));
    let forgotten = chain.forgotten.as_mut().map(std::mem::take).unwrap_or_default();
    (forgotten, changed.len(), bytes)
}

/// Applies one batch of a unit to its standby.
fn follow(
    standby: &mut Chain<Scripted>,
    (forgotten, count, bytes): &(Vec<FlowKey>, usize, Vec<u8>),
    now_ns: u64,
) -> Result<(), Malformed> {
    forgotten.iter().for_each(|key| standby.release(key));
    standby.replay(Reader(bytes), *count, now_ns)
}

/// Returns a random batch: few clients, so that numbers go from flow to flow.
fn batch(random: &mut Random, numbers: &[u32]) -> Vec<Vec<u8>> {
    let one = |random: &mut Random| {
        let all = [act::COUNT, act::LEASE, act::TRAP, act::PASS, act::DROP];
        let [first, second] = [0, 1].map(|_| all[(random.below(9) as usize).saturating_sub(4)]);
        let first = if first == act::LEASE { act::COUNT } else { first };
        match numbers.get(random.below(12) as usize) {
            Some(&number) => reply(NAT, number as u16, &[first, second]),
            None => frame(random.below(6) as u8, &[first, second]),
        }
    };
    (0..1 + random.below(20)).map(|_| one(random)).collect()
}

/// Returns the numbers that flows have.
fn numbers(chain: &Chain<Scripted>) -> Vec<u32> {
    let flows = chain.flows.ids().map(|id| chain.flows.flow(id));
    let mut numbers: Vec<u32> =
        flows.filter(|flow| flow.taken & 2 != 0).map(|flow| flow.leases[1]).collect();
    numbers.sort_unstable();
    numbers
}

/// A standby that applies every batch has the same flows, aliases and numbers as its unit, also
/// after functions trapped and numbers went to other flows. It leases no number that a flow has.
#[test]
fn a_standby_that_replays_each_batch_is_its_unit() {
    let policy = Policy { flows_max: 5, idle_ns: 3_000, trapped_passes: false };
    for seed in 1..=150 {
        let roomy = Policy { flows_max: 50, ..policy };
        let (mut unit, mut standby) = (chain(2, policy), chain(2, roomy));
        unit.forgotten = Some(Vec::new());
        let (mut random, mut now_ns) = (Random::new(seed), 10_000);
        for n in 0..30 {
            now_ns += random.below(1_000) * random.below(3);
            let frames = batch(&mut random, &numbers(&unit));
            through(&mut unit, &frames, now_ns);
            let changes = changes(&mut unit);
            assert_eq!(follow(&mut standby, &changes, now_ns), Ok(()));
            let [ours, theirs] = [&standby, &unit].map(|chain| chain.flows.digest());
            assert_eq!(ours, theirs, "seed {seed}, batch {n}");
            assert_eq!(standby.leases_free(1), unit.leases_free(1), "seed {seed}, batch {n}");
        }
        let taken = numbers(&standby);
        let fresh: Vec<Vec<u8>> = (100..110).map(|c| frame(c, &[act::PASS, act::LEASE])).collect();
        standby.forgotten = None;
        through(&mut standby, &fresh, now_ns);
        let mut all = numbers(&standby);
        assert!(taken.iter().all(|number| all.contains(number)), "seed {seed}");
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "seed {seed}: two flows have one number");
    }
}

/// A batch that is cut off anywhere is refused, and so is one with a state that is too long.
#[test]
fn a_batch_that_is_cut_off_is_refused() {
    let mut unit = chain(2, Policy::default());
    let frames: Vec<Vec<u8>> = (1..4).map(|c| frame(c, &[act::COUNT, act::LEASE])).collect();
    through(&mut unit, &frames, 1);
    let (forgotten, count, bytes) = changes(&mut unit);
    for cut in 0..bytes.len() {
        let mut standby = chain(2, Policy::default());
        let part = (forgotten.clone(), count, bytes[..cut].to_vec());
        assert_eq!(follow(&mut standby, &part, 1), Err(Malformed), "{cut} bytes");
        assert!(standby.flows.len() <= 3);
        standby.release_all();
        assert!(standby.flows.is_empty());
        assert_eq!(standby.leases_free(1), BLOCK.count(), "{cut} bytes");
    }
    let mut narrow = chain(1, Policy::default());
    assert_eq!(follow(&mut narrow, &(forgotten, count, bytes), 1), Err(Malformed));
}

/// A flow takes its state, its number and its returning packets along.
#[test]
fn a_flow_goes_on_at_another_unit() {
    let [mut one, mut other] = [0; 2].map(|_| chain(2, Policy::default()));
    through(&mut one, &[frame(1, &[act::COUNT, act::LEASE])], 1);
    let number = state(&one, 1, 1).unwrap().1;
    let exported = one.export(&key(1));
    one.hand_over(&key(1));
    assert!(one.flows.is_empty() && one.export(&key(1)).is_empty());
    assert!(other.import(&key(1), &exported, 2));
    assert_eq!(other.export(&key(1)), exported);
    let back = reply(NAT, number as u16, &[act::COUNT, act::COUNT]);
    let [(fate, _)] = through(&mut other, &[back], 3)[..] else { panic!("one packet") };
    assert_eq!((fate, other.flows.len()), (Fate::Passed, 1));
    assert_eq!(state(&other, 1, 0), Some((2, 0)));
    assert_eq!(state(&other, 1, 1), Some((2, number)));
    assert!(other.import(&key(1), &[], 4) && other.flows.is_empty(), "an empty state ends it");
}

/// An export that is cut off or has a bit changed gives the flow or nothing. Other flows stay as
/// they are.
#[test]
fn a_damaged_flow_harms_no_other() {
    let mut source = chain(2, Policy::default());
    through(&mut source, &[frame(1, &[act::COUNT, act::LEASE])], 1);
    let exported = source.export(&key(1));
    let mut unit = chain(2, Policy::default());
    let others: Vec<Vec<u8>> = (2..6).map(|c| frame(c, &[act::COUNT, act::COUNT])).collect();
    through(&mut unit, &others, 1);
    let before = unit.flows.digest();
    let mut harmless = |bytes: &[u8], what: &str| {
        let taken = unit.import(&key(1), bytes, 2);
        assert_eq!(taken && !bytes.is_empty(), unit.flows.find(&key(1)).is_some(), "{what}");
        unit.hand_over(&key(1));
        assert_eq!((unit.flows.digest(), unit.flows.len()), (before, 4), "{what}");
        taken
    };
    for cut in 1..exported.len() {
        assert!(!harmless(&exported[..cut], &format!("{cut} bytes")));
    }
    for bit in 0..exported.len() * 8 {
        let mut bytes = exported.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        harmless(&bytes, &format!("bit {bit}"));
    }
    assert!(harmless(&exported, "the flow itself"));
}

/// Without room a flow is refused, and its bytes are read to their end: the next one is found.
#[test]
fn a_full_table_refuses_flows_and_reads_on() {
    let mut unit = chain(2, Policy::default());
    let frames: Vec<Vec<u8>> = (1..5).map(|c| frame(c, &[act::COUNT, act::COUNT])).collect();
    through(&mut unit, &frames, 1);
    let exported = unit.export(&key(4));
    let changes = changes(&mut unit);
    let mut small = chain(2, Policy { flows_max: 2, ..Policy::default() });
    assert_eq!(follow(&mut small, &changes, 1), Ok(()));
    assert_eq!(small.flows.len(), 2);
    assert!(!small.import(&key(4), &exported, 1));
    assert_eq!(small.flows.len(), 2);
}

/// A key that another flow's output uses is that flow's only until a flow of its own arrives.
#[test]
fn a_flow_that_arrives_is_not_the_one_with_its_key_as_alias() {
    let mut unit = chain(2, Policy::default());
    through(&mut unit, &[frame(1, &[act::COUNT, act::LEASE])], 1);
    let number = state(&unit, 1, 1).unwrap().1;
    let alias = FlowKey::of_frame(&reply(NAT, number as u16, &[0, 0])).unwrap().0;
    unit.hand_over(&alias);
    assert_eq!(state(&unit, 1, 0), Some((1, 0)), "an alias is no flow to hand over");

    let mut other = chain(2, Policy::default());
    through(&mut other, &[reply(NAT, number as u16, &[act::COUNT, act::COUNT])], 1);
    let exported = other.export(&alias);
    assert!(!exported.is_empty() && unit.import(&alias, &exported, 2));
    assert_eq!(state(&unit, 1, 0), Some((1, 0)), "the flow keeps its state");
    assert_eq!(state(&unit, 1, 1), Some((1, number)));
    assert_eq!(unit.flows.len(), 2);
    assert_eq!(unit.export(&alias), exported);
}

/// A unit has an old copy of a flow. The flow's number went to another flow, which arrives now:
/// returning packets belong to that one.
#[test]
fn a_number_that_arrives_with_a_flow_brings_its_returning_packets() {
    let mut unit = chain(2, Policy::default());
    through(&mut unit, &[frame(1, &[act::COUNT, act::LEASE])], 1);
    let number = state(&unit, 1, 1).unwrap().1;
    let mut other = chain(2, Policy::default());
    through(&mut other, &[frame(2, &[act::COUNT, act::LEASE])], 1);
    assert_eq!(state(&other, 2, 1).unwrap().1, number);
    assert!(unit.import(&key(2), &other.export(&key(2)), 2));
    let back = reply(NAT, number as u16, &[act::COUNT, act::PASS]);
    through(&mut unit, &[back], 3);
    assert_eq!((state(&unit, 1, 0), state(&unit, 2, 0)), (Some((1, 0)), Some((2, 0))));
}

/// A function traps on a flow with a number. The number goes to another flow. Returning packets
/// belong to that one, even while the first flow is remembered by another function.
#[test]
fn a_number_that_is_lost_in_a_trap_leaves_no_alias() {
    let mut unit = chain(2, Policy::default());
    let lease = |client| frame(client, &[act::COUNT, act::LEASE]);
    through(&mut unit, &[lease(0)], 1);
    let number = state(&unit, 0, 1).unwrap().1;
    through(&mut unit, &[frame(0, &[act::COUNT, act::TRAP])], 2);
    assert_eq!(state(&unit, 0, 0), Some((2, 0)), "the other function remembers it");
    let count = BLOCK.count() as u8;
    (1..=count).for_each(|client| drop(through(&mut unit, &[lease(client)], 3)));
    let next = (1..=count).find(|&c| state(&unit, c, 1).unwrap().1 == number).expect("it is free");
    through(&mut unit, &[reply(NAT, number as u16, &[act::COUNT, act::PASS])], 4);
    assert_eq!(state(&unit, next, 0), Some((2, 0)), "the answer belongs to the next flow");
    assert_eq!(state(&unit, 0, 0), Some((2, 0)));
}
