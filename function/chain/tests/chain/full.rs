//! A full table of flows.

use pando_chain::{Fate, Policy};

use crate::scripted::{NAT, act, frame, reply};
use crate::{chain, state, through};

const SECOND_NS: u64 = 1_000_000_000;

/// A flow without an answer gives its place to a new flow; an answered one and a young one stay.
#[test]
fn a_trickle_of_new_flows_closes_no_unit() {
    let policy = Policy { flows_max: 4, ..Policy::default() };
    let mut unit = chain(1, policy);
    unit.forgotten = Some(Vec::new());
    let new = |client| frame(client, &[act::LEASE]);
    through(&mut unit, &(1..=4).map(new).collect::<Vec<_>>(), SECOND_NS);
    let number = state(&unit, 1, 0).unwrap().1;
    through(&mut unit, &[reply(NAT, number as u16, &[act::COUNT])], SECOND_NS);
    let fate = |unit: &mut _, client, now_ns| through(unit, &[new(client)], now_ns)[0].0;
    assert_eq!(fate(&mut unit, 5, SECOND_NS + 9), Fate::NoRoom, "answers may be on their way");
    let later_ns = 3 * SECOND_NS;
    for client in 5..=7 {
        assert_eq!(fate(&mut unit, client, later_ns), Fate::Passed, "client {client}");
    }
    assert_eq!((unit.flows.len(), unit.replaced), (4, 3));
    assert_eq!(unit.forgotten.as_ref().map(Vec::len), Some(3));
    assert_eq!(fate(&mut unit, 8, later_ns), Fate::NoRoom, "an answered flow and three young ones");
    assert_eq!(state(&unit, 1, 0), Some((2, number)), "the answered flow has its state");
    assert_eq!(fate(&mut unit, 8, later_ns + 2 * SECOND_NS), Fate::Passed);
}

/// A flow that a packet of the same batch belongs to keeps its place.
#[test]
fn a_batch_replaces_no_flow_of_its_own() {
    let mut unit = chain(1, Policy { flows_max: 1, ..Policy::default() });
    through(&mut unit, &[frame(1, &[act::COUNT])], SECOND_NS);
    let (old, new) = (frame(1, &[act::COUNT]), frame(2, &[act::COUNT]));
    let arrivals = [(&old, SECOND_NS), (&new, 9 * SECOND_NS)].map(|(frame, time_ns)| {
        pando_chain::Arrival { frame, time_ns, outer: false, steered: None }
    });
    assert_eq!(unit.process(&arrivals), 2);
    let fates: Vec<Fate> = unit.outputs(&arrivals).map(|(fate, _)| fate).collect();
    assert_eq!(fates, [Fate::Passed, Fate::NoRoom]);
}

/// Two devices may deliver packets of a flow in another order than they came.
#[test]
fn the_time_of_a_flow_never_decreases() {
    let mut unit = chain(1, Policy::default());
    for now_ns in [500, 400, 600] {
        through(&mut unit, &[frame(1, &[act::EVENT])], now_ns);
    }
    let times: Vec<u64> = unit.events.iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [500, 500, 600]);
}
