//! Batches of packets against a plain model of single packets and their flows.

use std::collections::{BTreeMap, BTreeSet};

use pando_abi::room_for;
use pando_chain::{Chain, Fate, Policy, Work};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::scripted::{ACTIONS, NAT, Scripted, act, frame, key, reply};
use crate::{BLOCK, chain, state, through};

const STAGES: usize = 2;
const CLIENTS: u8 = 6;
const FLOWS_MAX: usize = 4;
const IDLE_NS: u64 = 1000;

/// A packet: its client, the actions of the functions, and whether the server sent it.
#[derive(Clone, Debug)]
struct Step {
    client: u8,
    actions: [u8; STAGES],
    reply: bool,
}

/// The state of a flow at one function.
#[derive(Clone, Debug, Default)]
struct Known {
    valid: bool,
    count: u64,
    leased: bool,
    taken: bool,
    number: Option<u32>,
    /// Its number went back to the pool in this batch.
    lost: bool,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    stages: [Known; STAGES],
    last_ns: u64,
}

#[derive(Default)]
struct Model {
    flows: BTreeMap<u8, Flow>,
    work: [Work; STAGES],
    events: Vec<(usize, u8, u32)>,
}

/// A packet on its way through the model.
struct Way {
    step: Step,
    bytes: Vec<u8>,
    fate: Fate,
    leased: bool,
}

impl Model {
    /// Returns the frame of a step; an answer goes to the number that the flow has.
    fn frame(&self, step: &Step, nat: usize) -> Option<Vec<u8>> {
        if !step.reply {
            return Some(frame(step.client, &step.actions));
        }
        let number = self.flows.get(&step.client)?.stages[nat].number?;
        Some(reply(NAT, number as u16, &step.actions))
    }

    fn admit(&mut self, step: &Step, now_ns: u64) -> Fate {
        if !self.flows.contains_key(&step.client) && self.flows.len() == FLOWS_MAX {
            return Fate::NoRoom;
        }
        let flow = self.flows.entry(step.client).or_default();
        flow.last_ns = flow.last_ns.max(now_ns);
        Fate::Passed
    }

    /// Does the action of one function on one packet.
    fn act(&mut self, stage: usize, way: &mut Way) {
        let known =
            &mut self.flows.get_mut(&way.step.client).expect("it is admitted").stages[stage];
        known.leased |= !known.valid;
        let action = way.bytes[ACTIONS + stage];
        if action == act::TRAP {
            self.work[stage].trapped += 1;
            way.fate = Fate::Trapped;
            *known = Known { lost: known.lost || known.taken, ..Known::default() };
            return;
        }
        self.work[stage].packets += 1;
        self.work[stage].bytes += way.bytes.len() as u64;
        let count = |known: &mut Known| (known.valid, known.count) = (true, known.count + 1);
        match action {
            act::COUNT => count(known),
            act::DROP => way.fate = Fate::Dropped,
            act::EVENT => {
                count(known);
                self.events.push((stage, way.step.client, known.count as u32));
            }
            act::GROW => way.bytes.resize(room_for(way.bytes.len()), act::PASS),
            act::LEASE if !way.step.reply => {
                if !known.taken {
                    if !known.leased {
                        way.fate = Fate::Dropped;
                        return;
                    }
                    known.taken = true;
                    count(known);
                }
                way.leased = true;
            }
            _ => {}
        }
    }

    /// Ends a batch: flows without state and idle flows are forgotten.
    fn settle(&mut self, now_ns: u64) {
        self.flows.retain(|_, flow| {
            flow.stages.iter_mut().for_each(|s| (s.leased, s.lost) = (s.taken, false));
            flow.stages.iter().any(|s| s.valid) && flow.last_ns >= now_ns.saturating_sub(IDLE_NS)
        });
    }
}

/// Sends a batch through chain and model, and compares all their results.
fn batch(chain: &mut Chain<Scripted>, model: &mut Model, steps: &[Step], nat: usize, now_ns: u64) {
    let mut ways: Vec<Way> = steps
        .iter()
        .filter_map(|step| {
            let bytes = model.frame(step, nat)?;
            Some(Way { step: step.clone(), bytes, fate: Fate::Passed, leased: false })
        })
        .collect();
    if ways.is_empty() {
        return;
    }
    let frames: Vec<Vec<u8>> = ways.iter().map(|way| way.bytes.clone()).collect();
    let outputs = through(chain, &frames, now_ns);
    ways.iter_mut().for_each(|way| way.fate = model.admit(&way.step, now_ns));
    for stage in 0..STAGES {
        let live = ways.iter_mut().filter(|way| way.fate == Fate::Passed);
        live.for_each(|way| model.act(stage, way));
    }
    for (way, (fate, out)) in ways.iter_mut().zip(&outputs) {
        assert_eq!(*fate, way.fate, "{:?}", way.step);
        if way.fate != Fate::Passed {
            assert_eq!(out, &[]);
            continue;
        }
        if way.leased {
            let port = u16::from_be_bytes([out[34], out[35]]);
            let known = &mut model.flows.get_mut(&way.step.client).expect("it has one").stages[nat];
            assert!(BLOCK.contains(&port.into()), "{port}");
            if !known.lost {
                assert_eq!(*known.number.get_or_insert(port.into()), u32::from(port));
            }
            way.bytes[26..30].copy_from_slice(&NAT);
            way.bytes[34..36].copy_from_slice(&port.to_be_bytes());
        }
        assert_eq!(out, &way.bytes, "{:?}", way.step);
    }
    model.settle(now_ns);
    compare(chain, model, nat);
}

/// Compares the flows after a batch, the numbers in use, the events and the work.
fn compare(chain: &mut Chain<Scripted>, model: &mut Model, nat: usize) {
    let mut numbers = BTreeSet::new();
    for (&client, flow) in &mut model.flows {
        for (stage, known) in flow.stages.iter_mut().enumerate() {
            let (count, number) = state(chain, client, stage).expect("the chain has the flow");
            assert_eq!(count, known.count, "client {client} at {stage}");
            assert_eq!(number != 0, known.taken, "client {client} at {stage}");
            if known.taken {
                assert_eq!(*known.number.get_or_insert(number), number);
                assert!(numbers.insert(number), "two flows have {number}");
            }
        }
    }
    assert_eq!(chain.flows.len(), model.flows.len());
    let free = BLOCK.count() - numbers.len();
    assert_eq!(chain.leases_free(nat), free, "a number is lost, or free twice");
    assert_eq!(chain.leases_free(1 - nat), BLOCK.count());
    let events: Vec<_> = chain.events.drain(..).map(|e| (e.stage, e.key, e.code)).collect();
    let expected = model.events.drain(..).map(|(stage, client, code)| (stage, key(client), code));
    assert_eq!(events, expected.collect::<Vec<_>>());
    for (done, expected) in chain.work().zip(&model.work) {
        assert_eq!(Work { fuel: 0, ..done }, *expected);
    }
}

fn steps(nat: usize) -> impl Strategy<Value = Vec<(Vec<Step>, u64)>> {
    let action = prop_oneof![
        6 => Just(act::COUNT),
        3 => Just(act::LEASE),
        2 => Just(act::PASS),
        2 => Just(act::EVENT),
        1 => Just(act::DROP),
        1 => Just(act::TRAP),
        1 => Just(act::GROW),
    ];
    let step = (0..CLIENTS, [action.clone(), action], any::<bool>()).prop_map(
        move |(client, mut actions, reply)| {
            if actions[1 - nat] == act::LEASE {
                actions[1 - nat] = act::COUNT;
            }
            Step { client, actions, reply }
        },
    );
    let pause = prop_oneof![4 => 0..200u64, 1 => 900..1200u64, 1 => Just(5000)];
    proptest::collection::vec((proptest::collection::vec(step, 1..24), pause), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// In any batches, a chain has the outcomes of a model that handles one packet after the
    /// other. It leases no number to two flows and loses none.
    #[test]
    fn a_chain_does_what_a_model_of_single_packets_does(
        (nat, batches) in (0..STAGES).prop_flat_map(|nat| (Just(nat), steps(nat))),
    ) {
        let policy = Policy { flows_max: FLOWS_MAX, idle_ns: IDLE_NS, trapped_passes: false };
        let (mut chain, mut model, mut now_ns) = (chain(STAGES, policy), Model::default(), 10_000);
        for (steps, pause_ns) in &batches {
            now_ns += pause_ns;
            batch(&mut chain, &mut model, steps, nat, now_ns);
        }
    }
}

/// With this policy, a packet passes as it came, whichever function trapped on it.
#[test]
fn a_packet_that_no_function_survives_passes_unchanged_if_it_may() {
    let policy = Policy { trapped_passes: true, ..Policy::default() };
    let mut chain = chain(STAGES, policy);
    let sent = [
        frame(1, &[act::COUNT, act::TRAP]),
        frame(2, &[act::GROW, act::TRAP]),
        frame(3, &[act::TRAP, act::COUNT]),
        frame(4, &[act::COUNT, act::COUNT]),
    ];
    let fates = [Fate::Trapped, Fate::Trapped, Fate::Trapped, Fate::Passed];
    assert_eq!(
        through(&mut chain, &sent, 0),
        fates.into_iter().zip(sent.iter().cloned()).collect::<Vec<_>>()
    );
    assert_eq!(state(&chain, 1, 0), Some((1, 0)), "the first function had done its work");
    assert_eq!(state(&chain, 3, 0), None);
}

/// Eight functions grow a packet as far as each may. No packet leaves the memory of a batch.
#[test]
fn packets_that_grow_in_every_function_fit_into_each_memory() {
    let mut chain = chain(8, Policy::default());
    for length in (0..9000).step_by(613) {
        let mut frames = vec![frame(1, &[act::GROW; 8]); 32];
        frames.iter_mut().for_each(|f| f.resize(f.len() + length, act::PASS));
        let sent = frames[0].len();
        let arrivals: Vec<pando_chain::Arrival> = frames
            .iter()
            .map(|frame| pando_chain::Arrival { frame, time_ns: 0, outer: false, steered: None })
            .collect();
        let mut at = 0;
        while at < arrivals.len() {
            let count = chain.process(&arrivals[at..]);
            let grown = (0..8).fold(sent, |length, _| room_for(length));
            let outputs = chain.outputs(&arrivals[at..]);
            assert!(
                outputs
                    .take(count)
                    .all(|(fate, out)| { fate == Fate::Passed && out.concat().len() == grown })
            );
            at += count;
        }
    }
    assert!(chain.last_traps().all(|trap| trap.is_none()));
}

/// A frame that fits into no batch is dropped and counted. It holds up no other.
#[test]
fn a_frame_longer_than_a_batch_is_dropped_alone() {
    let mut chain = chain(2, Policy::default());
    let huge = [frame(1, &[act::COUNT; 2]), vec![0; pando_abi::BATCH_BYTES]].concat();
    let small = frame(2, &[act::COUNT; 2]);
    let frames = [huge, small.clone(), Vec::new(), small];
    let arrivals: Vec<pando_chain::Arrival> = frames
        .iter()
        .map(|frame| pando_chain::Arrival { frame, time_ns: 0, outer: false, steered: None })
        .collect();
    let mut fates = Vec::new();
    while fates.len() < arrivals.len() {
        let at = fates.len();
        assert!(chain.process(&arrivals[at..]) > 0);
        fates.extend(chain.outputs(&arrivals[at..]).map(|(fate, _)| fate));
    }
    assert_eq!(fates, [Fate::TooLong, Fate::Passed, Fate::TooLong, Fate::Passed]);
    assert_eq!(state(&chain, 2, 1), Some((2, 0)));
}
