//! Units behind a network that loses, delays, doubles and reorders. Every packet changes the state
//! at most once, and every processed packet is in the next unit's state.

mod deaths;
mod world;

use std::collections::BTreeSet;

use pando_handover::header::Header;
use pando_handover::{Effect, Message, NO_UNIT, UnitId};
use proptest::prelude::*;

use world::{Event, UNITS, Unit, World, final_state, play};

/// Unit 2 pulls before unit 1 has received its packet. It asks unit 0 after that packet has already
/// fetched the state. Without a wait, each answer would be unknown or an older state.
#[test]
fn an_answer_waits_for_packets_that_are_on_their_way() {
    let mut world = World::new(7, 0, 1, 1);
    let header = |clock: u64, unit, previous| Header {
        flowlet_starts: true,
        ethertype: 0x800,
        unit,
        previous,
        epoch: clock as u32,
        position: 0,
        clock,
        replicas: 0,
    };
    let is_to =
        |event: &Event, unit: UnitId| matches!(event, Event::Message(_, to, _) if *to == unit);
    let to = |unit| move |event: &Event| is_to(event, unit);
    world.packet(0, header(1, 0, NO_UNIT));
    world.run_only(|event| matches!(event, Event::Done(_)));
    world.packet(10, header(3, 2, 1));
    for unit in [1, 2, 1, 2] {
        world.run_only(to(unit));
    }
    world.packet(20, header(2, 1, 0));
    for unit in [0, 1] {
        world.run_only(to(unit));
    }
    world.run();
    assert_eq!(final_state(&world), [1, 2, 3]);
    let counts = world.units[2].core.counts;
    assert_eq!((counts.pulled, counts.gave_up, counts.updates_lost), (1, 0, 0));
}

/// A late packet comes after later ones were pushed. The state has changed since that push.
#[test]
fn a_late_packet_is_in_the_next_push() {
    let mut world = World::new(7, 0, 1, 1);
    for (time_ns, clock) in [(0, 1), (1_000, 3), (600_000, 2), (2_000_000, 4)] {
        let (unit, previous, epoch) = if clock == 4 { (1, 0, 2) } else { (0, NO_UNIT, 1) };
        let position = if clock == 4 { 0 } else { clock as u32 - 1 };
        let header = Header {
            flowlet_starts: clock == 1,
            ethertype: 0x800,
            unit,
            previous,
            epoch,
            position,
            clock,
            replicas: 0b10,
        };
        world.at(time_ns, Event::Packet(header));
    }
    world.run();
    assert_eq!(final_state(&world), [1, 3, 2, 4]);
    assert_eq!(world.units[1].core.counts.seamless, 1);
}

/// A flow continues at another unit from a pushed state, and comes back. The push back to the first
/// unit ends its ownership and contains the other unit's changes.
#[test]
fn a_flow_comes_back_to_a_state_that_was_pushed() {
    let mut world = World::new(7, 0, 1, 1);
    for (clock, unit, previous) in [(1, 0, NO_UNIT), (2, 1, 0), (3, 0, 1), (4, 1, 0)] {
        let (ethertype, epoch) = (0x800, clock as u32);
        let header = Header {
            flowlet_starts: true,
            ethertype,
            unit,
            previous,
            epoch,
            position: 0,
            clock,
            replicas: 0b11,
        };
        world.at(clock * 1_000_000, Event::Packet(header));
    }
    world.run();
    assert_eq!(final_state(&world), [1, 2, 3, 4]);
    assert_eq!(
        [0, 1].map(|n| (world.units[n].core.counts.seamless, world.units[n].core.counts.pulled)),
        [(1, 0), (2, 0)]
    );
}

/// A full table of flows forgets a silent flow. When the flow returns, its epoch and clock are
/// beyond the former ones. It begins at the unit that has the former state, at one with a replica,
/// or elsewhere, and later moves with its state.
#[test]
fn a_flow_that_steering_forgot_begins_anew() {
    for unit in 0..3 {
        let mut world = World::new(7, 0, 1, 1);
        let header = |clock, unit, previous, epoch| Header {
            flowlet_starts: true,
            ethertype: 0x800,
            unit,
            previous,
            epoch,
            position: 0,
            clock,
            replicas: 0b11,
        };
        world.at(0, Event::Packet(header(1, 0, NO_UNIT, 1)));
        world.at(1_000_000, Event::Packet(header(2, 1, 0, 2)));
        world.at(2_000_000_000, Event::Packet(header(5, unit, NO_UNIT, 4)));
        world.at(2_001_000_000, Event::Packet(header(6, 3, unit, 5)));
        world.run();
        let counts = || world.units.iter().map(|unit| unit.core.counts);
        assert_eq!(counts().map(|c| c.stale + c.gave_up + c.updates_lost).sum::<u64>(), 0);
        assert_eq!(final_state(&world)[final_state(&world).len() - 2..], [5, 6], "unit {unit}");
    }
}

/// Sends a flow's packets, each a flowlet at the next unit, with pushes to all units.
fn around(world: &mut World, clocks: std::ops::RangeInclusive<u64>) {
    for clock in clocks {
        let unit = |clock: u64| (clock % UNITS as u64) as u16;
        let previous = if clock == 1 { NO_UNIT } else { unit(clock - 1) };
        let header = Header {
            flowlet_starts: true,
            ethertype: 0x800,
            unit: unit(clock),
            previous,
            epoch: clock as u32,
            position: 0,
            clock,
            replicas: 0b1111,
        };
        world.at(clock * 1_000_000, Event::Packet(header));
    }
    world.run();
}

/// Returns (whole states pushed, fingerprints pushed, flowlets that had to pull).
fn pushed(world: &World) -> (u64, u64, u64) {
    let counts = || world.units.iter().map(|unit| unit.core.counts);
    (
        counts().map(|c| c.pushes).sum(),
        counts().map(|c| c.unchanged).sum(),
        counts().map(|c| c.pulled).sum(),
    )
}

/// The first packet makes the state. Each later owner records the units that sent it the state or
/// received the state from it.
#[test]
fn a_state_that_does_not_change_is_not_sent_to_who_has_it() {
    let mut world = World { changes: 100, begins: vec![7; 4], ..World::new(7, 0, 1, 1) };
    around(&mut world, 1..=20);
    // The first owner pushes it to three units, each other owner to those that it has not
    // received it from.
    assert_eq!(pushed(&world), (3 + 2 + 1, 20 * 3 - 6, 0));
    for (changes, begins) in [(1, vec![7; 4]), (100, vec![7; 3])] {
        let mut world = World { changes, begins, ..World::new(7, 0, 1, 1) };
        around(&mut world, 1..=20);
        assert_eq!(
            pushed(&world),
            (60, 0, 0),
            "one that changes is, and one that is shorter than its fingerprint"
        );
    }
}

/// A unit that receives a fingerprint without having the state pulls the state.
#[test]
fn a_push_that_was_lost_is_missed() {
    let mut world = World { changes: 2, begins: vec![7; 4], ..World::new(7, 0, 1, 1) };
    let header = |clock: u64, unit, previous, position| Header {
        flowlet_starts: true,
        ethertype: 0x800,
        unit,
        previous,
        epoch: 1 + u32::from(unit),
        position,
        clock,
        replicas: 0b10,
    };
    for clock in 1..=3 {
        world.packet(clock * 1_000_000, header(clock, 0, NO_UNIT, clock as u32 - 1));
        world.run_only(|event| !matches!(event, Event::Message(..)));
        // A whole state; another state, lost; the fingerprint of the lost one.
        let message = world
            .events
            .iter()
            .find(|(_, event)| matches!(event, Event::Message(..)))
            .map(|(at, _)| *at)
            .expect("a push");
        if clock == 2 {
            world.events.clear();
        } else {
            let event = world.events.remove(&message).expect("it was there");
            world.happen(message.0, event);
        }
    }
    world.packet(4_000_000, header(4, 1, 0, 0));
    world.run();
    assert_eq!((pushed(&world), final_state(&world)), ((2, 1, 1), vec![7, 7, 7, 7, 2, 4]));
}

/// A state goes whole to a unit that missed it, and to a unit that was replaced.
#[test]
fn who_has_lost_a_state_gets_it_whole() {
    let mut world = World { changes: 100, begins: vec![7; 4], ..World::new(7, 0, 1, 1) };
    let mut clock = 0;
    let mut push = |world: &mut World| {
        clock += 1;
        let (previous, position) = (NO_UNIT, clock as u32 - 1);
        let header = Header {
            flowlet_starts: true,
            ethertype: 0x800,
            unit: 0,
            previous,
            epoch: 1,
            position,
            clock,
            replicas: 0b110,
        };
        world.packet(clock * 1_000_000, header);
        world.run();
        let counts = world.units[0].core.counts;
        (counts.pushes, counts.unchanged)
    };
    assert_eq!((push(&mut world), push(&mut world)), ((2, 0), (2, 2)));
    world.units[0].core.unsent(1, &world.key);
    assert_eq!(push(&mut world), (3, 3));
    world.units[0].core.set_group(0b1011);
    world.units[0].core.set_group(0b1111);
    assert_eq!((push(&mut world), push(&mut world)), ((4, 4), (4, 6)));
}

/// Two of three units have answered "unknown", and the third, which might have the state, is dead.
/// The flow continues after the two have answered once more, without a timer.
#[test]
fn nobody_waits_for_the_answer_of_a_unit_that_is_gone() {
    let mut world = World::new(7, 0, 1, 1);
    let header = Header {
        flowlet_starts: true,
        ethertype: 0x800,
        unit: 1,
        previous: 0,
        epoch: 2,
        position: 0,
        clock: 6,
        replicas: 0,
    };
    world.packet(0, header);
    let (key, unit) = (world.key, &mut world.units[1]);
    let none = |unit: &mut Unit, from| {
        let unknown = Message::Answer { key, epoch: 2, owned: 0, clock: 0, state: None };
        unit.core.message(10, from, unknown, &mut unit.states);
    };
    [0, 0, 2].into_iter().for_each(|from| none(unit, from));
    unit.core.effects.clear();
    unit.core.set_group(0b0111);
    let asked = |effect: &Effect| matches!(effect, Effect::Send(0 | 2, Message::Pull { .. }));
    assert!(
        unit.core.effects.len() == 2 && unit.core.effects.iter().all(asked),
        "{:?}",
        unit.core.effects
    );
    unit.core.effects.clear();
    [0, 2].into_iter().for_each(|from| none(unit, from));
    assert_eq!(
        (&unit.core.effects[..], unit.core.counts.gave_up),
        (&[Effect::Release(key)][..], 1)
    );
}

fn flowlets() -> impl Strategy<Value = Vec<(u16, u8, u32)>> {
    proptest::collection::vec(
        (0..UNITS as u16, 1..8u8, prop_oneof![0..20u32, 400..1000u32, Just(5000)]),
        1..20,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Without loss, every packet is processed, in order within each unit, and is in the last
    /// state.
    #[test]
    fn a_quiet_network_loses_nothing(
        flowlets in flowlets(),
        seed: u64,
        service_ns in prop_oneof![Just(1u64), Just(300_000)],
        lag_ns in prop_oneof![Just(1u64), Just(400_000)],
        changes in 1..5u64,
    ) {
        let mut world = World { changes, ..World::new(seed, 0, service_ns, lag_ns) };
        play(&mut world, &flowlets, false);
        let packets: u64 = flowlets.iter().map(|f| u64::from(f.1)).sum();
        prop_assert_eq!(
            final_state(&world),
            (1..=packets).filter(|clock| clock % changes == 0).collect::<Vec<_>>()
        );
        prop_assert_eq!(
            world
                .units
                .iter()
                .map(|u| u.core.counts.gave_up
                    + u.core.counts.with_gap
                    + u.core.counts.updates_lost)
                .sum::<u64>(),
            0
        );
    }

    /// With loss, disorder and repetition, no packet is processed twice and no flow waits forever.
    /// Unless a unit gave up, the last state consists exactly of the processed packets. No stale
    /// copy was updated.
    #[test]
    fn no_stale_update(
        flowlets in flowlets(),
        seed: u64,
        loss_percent in 0..15u64,
        service_ns in prop_oneof![Just(1u64), Just(300_000)],
        lag_ns in prop_oneof![Just(1u64), Just(400_000)],
        changes in 1..5u64,
    ) {
        let mut world = World { changes, ..World::new(seed, loss_percent, service_ns, lag_ns) };
        play(&mut world, &flowlets, true);
        let once: BTreeSet<u64> = world.processed.iter().copied().collect();
        prop_assert_eq!(once.len(), world.processed.len(), "a packet was processed twice");
        prop_assert!(world.units.iter().all(|u| u.held.is_empty()), "a flow waits for ever");
        if world.units.iter().all(|u| u.core.counts.gave_up == 0) {
            let state: BTreeSet<u64> = final_state(&world).into_iter().collect();
            prop_assert_eq!(state, once.into_iter().filter(|clock| clock % changes == 0).collect());
        }
    }
}
