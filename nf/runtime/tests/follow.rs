//! A standby that follows a unit by way of the log's copy has what the unit has, whenever it is told and however late:
//! flows that end, ports that go to the next flow at once, aliases that move.

mod bed;

use bed::frame;
use pando_protocol::FlowKey;
use pando_unit::chain::{Arrival, Chain, Policy, Stage};
use pando_unit::leases::Leases;
use pando_unit::log::copy::Copy;
use pando_unit::log::record::{self, Head, kind};
use pando_unit::log::standby;
use pando_unit::module::{Function, Limits, Runtime};
use proptest::prelude::*;

/// Ports of the NAT: fewer than there are flows, so that they change hands.
const PORTS: std::ops::RangeInclusive<u32> = 2000..=2015;
const IDLE_NS: u64 = 1_000;

fn chain(name: &str, settings: &[u8]) -> Chain<Function> {
    let path = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    let function = Runtime::new(Limits::default(), 2).load(path.as_ref(), settings).unwrap();
    let mut chain = Chain::new(vec![Stage::new(function, Leases::new(PORTS))], Policy { idle_ns: IDLE_NS, ..Policy::default() });
    chain.forgotten = Some(Vec::new());
    chain
}

/// What the unit says of the batch that it has just done.
fn batch(chain: &mut Chain<Function>, sequence: u64) -> Vec<u8> {
    let mut message = Vec::new();
    let at = record::put_head(&mut message, &Head { sequence, ..Head::default() });
    let forgotten: Vec<FlowKey> = chain.forgotten.as_mut().map(std::mem::take).unwrap();
    forgotten.iter().for_each(|key| message.extend_from_slice(key.as_bytes()));
    chain.changed.iter().for_each(|&id| chain.put_flow(&mut message, id, chain.flows.flow(id).valid));
    record::set_counts(&mut message, at, [forgotten.len(), chain.changed.len(), 0]);
    message
}

/// Runs batches (flows, nanoseconds since the one before, whether the standby has room for messages) and compares.
fn followed(unit: &mut Chain<Function>, standby: &mut Chain<Function>, batches: &[(Vec<u32>, u64, u8)]) {
    let mut copy = Copy::new(unit.flows.stage_bytes());
    copy.apply(&[kind::CLEAR]).unwrap();
    copy.follow();
    let mut time_ns = 1_000_000;
    for (n, (flows, passed_ns, room)) in batches.iter().enumerate() {
        time_ns += passed_ns;
        let frames: Vec<Vec<u8>> = flows.iter().map(|&n| frame(n)).collect();
        let arrivals: Vec<Arrival> = frames.iter().map(|frame| Arrival { frame, time_ns, steered: None }).collect();
        assert_eq!(unit.process(&arrivals), arrivals.len());
        copy.apply(&batch(unit, n as u64)).unwrap();
        let mut room = *room;
        copy.catch_up(|message| {
            room >>= 1;
            if room & 1 == 1 { standby::follow(standby, message).map(|()| true) } else { Ok(false) }
        })
        .unwrap();
    }
    copy.catch_up(|message| standby::follow(standby, message).map(|()| true)).unwrap();
    assert_eq!(standby.flows.len(), unit.flows.len());
    assert_eq!(standby.flows.digest(), unit.flows.digest());
    assert_eq!(standby.leases_free(0), unit.leases_free(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_standby_has_what_its_unit_has(batches in proptest::collection::vec((proptest::collection::vec(0..48u32, 1..12), 0..600u64, any::<u8>()), 1..40)) {
        let (mut unit, mut standby) = (chain("nat", b"address=203.0.113.7\n"), chain("nat", b"address=203.0.113.7\n"));
        followed(&mut unit, &mut standby, &batches);
        // A log that begins anew, and one that says that it has nothing.
        standby.release_all();
        assert_eq!((standby.flows.len(), standby.leases_free(0)), (0, PORTS.count()));
        let mut policed = chain("policer", b"rate=200000\nburst=3000\n");
        followed(&mut policed, &mut chain("policer", b"rate=200000\nburst=3000\n"), &batches);
    }
}

#[test]
fn a_flow_that_a_standby_heard_of_long_ago_is_not_silent_since() {
    let mut standby = chain("nat", b"address=203.0.113.7\n");
    let arrive = |standby: &mut Chain<Function>, n: u32, time_ns| {
        let frame = frame(n);
        standby.process(&[Arrival { frame: &frame, time_ns, steered: None }]);
    };
    arrive(&mut standby, 0, 1_000);
    standby.flows.see_all(100_000);
    (0..8).for_each(|_| arrive(&mut standby, 1, 100_000 + IDLE_NS));
    assert_eq!(standby.flows.len(), 2, "it may have had packets until the takeover");
    (0..8).for_each(|_| arrive(&mut standby, 1, 100_001 + IDLE_NS));
    assert_eq!(standby.flows.len(), 1);
}
