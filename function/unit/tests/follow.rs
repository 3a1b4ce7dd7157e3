//! A standby that follows a unit through the log's copy has the unit's state, however late it
//! receives it. The cases are flows that end, ports that the next flow gets at once, and aliases
//! that move.

mod bed;

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_flow::FlowKey;
use pando_outlog::copy::Copy;
use pando_outlog::link::{Shared, Transport};
use pando_outlog::record::{self, FlowHead, Head, Hello, Mark, kind};
use pando_outlog::{answer, tail};
use pando_wasm::{Function, Limits, Runtime};
use proptest::prelude::*;

use bed::frame;

/// Ports of the NAT. There are fewer than flows, so that ports change their owner.
const PORTS: std::ops::RangeInclusive<u32> = 2000..=2015;
const IDLE_NS: u64 = 1_000;

fn chain(name: &str, settings: &[u8]) -> Chain<Function> {
    let path = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    let function = Runtime::new(Limits::default(), 2).load(path.as_ref(), settings).unwrap();
    let mut chain = Chain::new(
        vec![Stage::new(function, Leases::new(PORTS))],
        Policy { idle_ns: IDLE_NS, ..Policy::default() },
    );
    chain.forgotten = Some(Vec::new());
    chain
}

fn hello(unit: &Chain<Function>) -> Hello {
    let state_bytes = unit.flows.stage_bytes();
    Hello { run: 1, chain: 1, epoch: 0, state_bytes, unit: "tenant/unit".into() }
}

/// Returns the unit's message about its last batch.
fn batch(chain: &mut Chain<Function>, sequence: u64) -> Vec<u8> {
    let mut message = Vec::new();
    let at = record::put_head(&mut message, &Head { sequence, ..Head::default() });
    let forgotten: Vec<FlowKey> = chain.forgotten.as_mut().map(std::mem::take).unwrap();
    forgotten.iter().for_each(|key| message.extend_from_slice(key.as_bytes()));
    chain
        .changed
        .iter()
        .for_each(|&id| chain.put_flow(&mut message, id, chain.flows.flow(id).valid));
    record::set_counts(&mut message, at, [forgotten.len(), chain.changed.len(), 0]);
    message
}

/// Runs batches (flows, nanoseconds since the previous batch, whether the standby has room) and
/// compares.
fn followed(
    unit: &mut Chain<Function>,
    standby: &mut Chain<Function>,
    batches: &[(Vec<u32>, u64, u8)],
) {
    let mut copy = Copy::of(&hello(unit));
    copy.apply(&[kind::CLEAR]).unwrap();
    copy.follow();
    let mut time_ns = 1_000_000;
    for (n, (flows, passed_ns, room)) in batches.iter().enumerate() {
        time_ns += passed_ns;
        let frames: Vec<Vec<u8>> = flows.iter().map(|&n| frame(n)).collect();
        let arrivals: Vec<Arrival> = frames
            .iter()
            .map(|frame| Arrival { frame, time_ns, outer: false, steered: None })
            .collect();
        assert_eq!(unit.process(&arrivals), arrivals.len());
        copy.apply(&batch(unit, n as u64)).unwrap();
        let mut room = *room;
        copy.catch_up(|message| {
            room >>= 1;
            if room & 1 == 1 { answer::follow(standby, message).map(|_| true) } else { Ok(false) }
        })
        .unwrap();
    }
    copy.catch_up(|message| answer::follow(standby, message).map(|_| true)).unwrap();
    assert_eq!(standby.flows.len(), unit.flows.len());
    assert_eq!(standby.flows.digest(), unit.flows.digest());
    assert_eq!(standby.leases_free(0), unit.leases_free(0));
}

/// The same with a standby that follows at intervals. The unit's later writes are in memory when it
/// dies.
fn found(
    unit: &mut Chain<Function>,
    standby: &mut Chain<Function>,
    batches: &[(Vec<u32>, u64, u8)],
) {
    let (memory, socket, other) = Shared::make().unwrap();
    let (mut written, mut log) = (
        Shared::open(&memory, socket, true).unwrap(),
        Shared::open(&memory, other, false).unwrap(),
    );
    let (mut copy, mut mark, mut message, mut time_ns) =
        (Copy::of(&hello(unit)), None, Vec::new(), 1_000_000);
    copy.apply(&[kind::CLEAR]).unwrap();
    copy.follow();
    for (n, (flows, passed_ns, told)) in batches.iter().enumerate() {
        time_ns += passed_ns;
        let frames: Vec<Vec<u8>> = flows.iter().map(|&n| frame(n)).collect();
        let arrivals: Vec<Arrival> = frames
            .iter()
            .map(|frame| Arrival { frame, time_ns, outer: false, steered: None })
            .collect();
        assert_eq!(unit.process(&arrivals), arrivals.len());
        written.send(&batch(unit, n as u64)).unwrap();
        message.clear();
        assert!(log.receive(&mut message).unwrap());
        copy.apply(&message).unwrap();
        copy.position = log.received_at();
        if told % 8 == 0 {
            copy.catch_up(|message| answer::follow(standby, message).map(|_| true)).unwrap();
            mark = answer::follow(standby, &copy.mark().encode()).unwrap();
        }
    }
    let (appended, ring) = (batches.len() as u64 - 1, Shared::written(&memory).unwrap());
    let wrong = Mark { epoch: 1, sequence: 0, position: Some(0) };
    assert!(tail::replay(&ring, &wrong, appended, standby, time_ns).is_none(), "another unit's");
    let Some(mark) = mark else { return };
    assert!(
        tail::replay(&ring, &mark, appended + 1, standby, time_ns).is_none(),
        "the last is missing"
    );
    let (head, packets) = tail::replay(&ring, &mark, appended, standby, time_ns).unwrap();
    assert_eq!((head.sequence, packets.len()), (appended, 0));
    assert_eq!(standby.flows.digest(), unit.flows.digest());
    assert_eq!(standby.leases_free(0), unit.leases_free(0));
}

/// In one batch a flow loses a lease because its function trapped, and the next flow gets that
/// lease.
#[test]
fn what_changes_hands_within_a_batch_is_the_new_owners() {
    let flow = |n: u8, taken: u8, lease: u32| {
        let [key, alias] = [
            FlowKey::from_bytes([n; FlowKey::LENGTH_BYTES]),
            FlowKey::from_bytes([100 + lease as u8; FlowKey::LENGTH_BYTES]),
        ];
        let (alias, leases) =
            if taken == 1 { (Some(alias), [lease, 0, 0, 0, 0, 0, 0, 0]) } else { (None, [0; 8]) };
        FlowHead {
            key,
            alias,
            up: true,
            valid: 1,
            taken,
            changed: 1,
            leases,
            ends: Default::default(),
        }
    };
    let batch = |flows: &[FlowHead], state: &[u8]| {
        let mut message = Vec::new();
        let at = record::put_head(&mut message, &Head::default());
        for flow in flows {
            record::put_flow(&mut message, flow);
            record::put_state(&mut message, state);
        }
        record::set_counts(&mut message, at, [0, flows.len(), 0]);
        message
    };
    let (mut standby, mut fresh) =
        (chain("nat", b"address=203.0.113.7\n"), chain("nat", b"address=203.0.113.7\n"));
    let (first, second) = (PORTS.start(), PORTS.start() + 1);
    tail::batch(&mut standby, &batch(&[flow(1, 1, *first), flow(2, 1, second)], &[1]), 0).unwrap();
    let moved = batch(&[flow(3, 1, *first), flow(1, 1, second), flow(2, 0, 0)], &[2]);
    tail::batch(&mut standby, &moved, 0).unwrap();
    tail::batch(&mut fresh, &moved, 0).unwrap();
    assert_eq!(standby.flows.digest(), fresh.flows.digest());
    assert_eq!(
        (standby.leases_free(0), fresh.leases_free(0)),
        (PORTS.count() - 2, PORTS.count() - 2)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_standby_has_what_its_unit_has(
        batches in proptest::collection::vec(
            (proptest::collection::vec(0..48u32, 1..12), 0..600u64, any::<u8>()),
            1..40,
        ),
    ) {
        let (mut unit, mut standby) =
            (chain("nat", b"address=203.0.113.7\n"), chain("nat", b"address=203.0.113.7\n"));
        followed(&mut unit, &mut standby, &batches);
        // A log that starts again, and one that has nothing.
        standby.release_all();
        assert_eq!((standby.flows.len(), standby.leases_free(0)), (0, PORTS.count()));
        found(&mut chain("nat", b"address=203.0.113.7\n"), &mut standby, &batches);
        let mut policed = chain("policer", b"rate=200000\nburst=3000\n");
        followed(&mut policed, &mut chain("policer", b"rate=200000\nburst=3000\n"), &batches);
    }
}

#[test]
fn a_flow_that_a_standby_heard_of_long_ago_is_not_silent_since() {
    let mut standby = chain("nat", b"address=203.0.113.7\n");
    let arrive = |standby: &mut Chain<Function>, n: u32, time_ns| {
        let frame = frame(n);
        standby.process(&[Arrival { frame: &frame, time_ns, outer: false, steered: None }]);
    };
    arrive(&mut standby, 0, 1_000);
    standby.flows.see_all(100_000);
    (0..8).for_each(|_| arrive(&mut standby, 1, 100_000 + IDLE_NS));
    assert_eq!(standby.flows.len(), 2, "it may have had packets until the takeover");
    (0..8).for_each(|_| arrive(&mut standby, 1, 100_001 + IDLE_NS));
    assert_eq!(standby.flows.len(), 1);
}
