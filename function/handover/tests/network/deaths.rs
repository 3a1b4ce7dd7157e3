//! Units that die, come back empty, or leave, while flows go from unit to unit.

use std::collections::BTreeSet;

use pando_handover::header::Header;
use pando_handover::{Handover, NO_UNIT, Timing};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::world::{Event, Lists, UNITS, Unit, World, final_state};

const ALL: u64 = (1 << UNITS) - 1;

/// Runs the events up to a time.
fn run_until(world: &mut World, until_ns: u64) {
    while let Some((&at, _)) = world.events.first_key_value().filter(|((at, _), _)| *at < until_ns)
    {
        let event = world.events.remove(&at).expect("it was there");
        world.happen(at.0, event);
    }
}

/// Replaces a unit by an empty one. Its packets and the messages to it are lost.
fn kill(world: &mut World, victim: u16) {
    let timing = Timing { deadline_ns: 10_000_000_000, ..Timing::default() };
    world.units[usize::from(victim)] = Unit {
        core: Handover::new(victim, ALL, timing),
        states: Lists::default(),
        held: Vec::new(),
        busy_ns: 0,
    };
    world.events.retain(|_, event| match event {
        Event::Packet(header) | Event::Done(header) => header.unit != victim,
        Event::Message(_, to, _) => *to != victim,
        Event::Tick => true,
    });
}

/// Reports the units of the group to all units but one.
fn report(world: &mut World, now_ns: u64, group: u64, except: u16) {
    for n in (0..UNITS).filter(|&n| n != usize::from(except)) {
        world.units[n].core.set_group(group);
        world.effects(now_ns, n);
    }
}

/// The flow as steering sees it.
struct Steering {
    now_ns: u64,
    clock: u64,
    epoch: u32,
    position: u32,
    unit: u16,
    previous: u16,
}

impl Steering {
    fn new() -> Steering {
        Steering { now_ns: 0, clock: 0, epoch: 0, position: 0, unit: NO_UNIT, previous: NO_UNIT }
    }

    /// Sends a flowlet to a unit after a silence.
    fn send(&mut self, world: &mut World, (to, packets, silence_us): (u16, u8, u32)) {
        self.now_ns += u64::from(silence_us) * 1000;
        if to != self.unit {
            (self.previous, self.unit) = (self.unit, to);
            (self.epoch, self.position) = (self.epoch + 1, 0);
        }
        for n in 0..packets {
            self.clock += 1;
            self.now_ns += 2_000;
            let header = Header {
                flowlet_starts: n == 0,
                ethertype: 0x800,
                unit: to,
                previous: self.previous,
                epoch: self.epoch,
                position: self.position,
                clock: self.clock,
                replicas: world.dice(16),
            };
            self.position += 1;
            world.at(self.now_ns, Event::Packet(header));
        }
    }
}

fn flowlets() -> impl Strategy<Value = Vec<(u16, u8, u32)>> {
    let silence = prop_oneof![0..20u32, 400..1000u32, Just(5000)];
    proptest::collection::vec((0..UNITS as u16, 1..8u8, silence), 1..12)
}

/// Returns the sum of a count over all units.
fn sum(world: &World, count: impl Fn(&Unit) -> u64) -> u64 {
    world.units.iter().map(count).sum()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// A unit dies at any moment. No flow waits for ever, no packet is processed twice, and the
    /// units count each packet that is missing from the state.
    #[test]
    fn a_death_loses_only_counted_packets(
        (before, after) in (flowlets(), flowlets()),
        seed: u64,
        victim in 0..UNITS as u16,
        early_us in 0..300u32,
        service_ns in prop_oneof![Just(1u64), Just(100_000)],
        noticed_us in 0..400u64,
        comes_back: bool,
    ) {
        let (mut world, mut steering) = (World::new(seed, 0, service_ns, 1), Steering::new());
        before.iter().for_each(|&flowlet| steering.send(&mut world, flowlet));
        let died_ns = steering.now_ns.saturating_sub(u64::from(early_us) * 1000);
        run_until(&mut world, died_ns);
        kill(&mut world, victim);
        let noticed_ns = steering.now_ns.max(died_ns) + noticed_us * 1000;
        run_until(&mut world, noticed_ns);
        report(&mut world, noticed_ns, ALL & !(1 << victim), victim);
        steering.now_ns = noticed_ns;
        let other = (victim + 1) % UNITS as u16;
        for (n, &(to, packets, silence_us)) in after.iter().enumerate() {
            let may = to != victim || comes_back && n > after.len() / 2;
            if comes_back && n == after.len() / 2 {
                run_until(&mut world, steering.now_ns);
                report(&mut world, steering.now_ns, ALL, victim);
            }
            steering.send(&mut world, (if may { to } else { other }, packets, silence_us));
        }
        steering.send(&mut world, (other, 1, 20_000));
        world.run();
        prop_assert!(world.units.iter().all(|unit| unit.held.is_empty()), "a flow waits for ever");
        let once: BTreeSet<u64> = world.processed.iter().copied().collect();
        prop_assert_eq!(once.len(), world.processed.len(), "a packet was processed twice");
        let state = final_state(&world);
        prop_assert!(state.iter().all(|clock| once.contains(clock)));
        let kept: BTreeSet<u64> = state.iter().copied().collect();
        prop_assert_eq!(kept.len(), state.len(), "a change is in the state twice");
        let missing = once.difference(&kept).count() as u64;
        let counted = sum(&world, |unit| unit.core.counts.updates_lost);
        prop_assert!(missing <= counted, "{missing} are missing, {counted} are counted");
    }

    /// A unit hands over its flows before it ends. Nothing is missing afterwards.
    #[test]
    fn a_unit_that_leaves_loses_nothing(
        (before, after) in (flowlets(), flowlets()),
        seed: u64,
        victim in 0..UNITS as u16,
        service_ns in prop_oneof![Just(1u64), Just(100_000)],
    ) {
        let (mut world, mut steering) = (World::new(seed, 0, service_ns, 1), Steering::new());
        before.iter().for_each(|&flowlet| steering.send(&mut world, flowlet));
        let (n, rest) = (usize::from(victim), ALL & !(1 << victim));
        run_until(&mut world, steering.now_ns + 1);
        loop {
            let unit = &mut world.units[n];
            let left = unit.core.evacuate(rest, &unit.states);
            world.effects(steering.now_ns, n);
            if left == 0 && world.units[n].held.is_empty() {
                break;
            }
            steering.now_ns += 50_000;
            run_until(&mut world, steering.now_ns);
        }
        world.run();
        let last_ns = steering.now_ns + 100_000_000;
        kill(&mut world, victim);
        report(&mut world, last_ns, rest, victim);
        steering.now_ns = last_ns;
        let other = (victim + 1) % UNITS as u16;
        for &(to, packets, silence_us) in &after {
            let to = if to == victim { other } else { to };
            steering.send(&mut world, (to, packets, silence_us));
        }
        world.run();
        prop_assert_eq!(final_state(&world), (1..=steering.clock).collect::<Vec<_>>());
        prop_assert_eq!(sum(&world, |unit| unit.core.counts.updates_lost), 0);
        prop_assert!(world.units.iter().all(|unit| unit.held.is_empty()));
    }
}

/// Flows that end or fall silent are forgotten with their timers, however many there were.
#[test]
fn a_thousand_short_flows_leave_nothing() {
    use pando_flow::FlowKey;
    let mut states = Lists::default();
    let mut unit = Handover::new(0, ALL, Timing::default());
    let key = |n: u32| {
        let mut bytes = [0; FlowKey::LENGTH_BYTES];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        FlowKey::from_bytes(bytes)
    };
    for n in 0..1000 {
        let header = Header {
            flowlet_starts: true,
            ethertype: 0x800,
            unit: 0,
            previous: NO_UNIT,
            epoch: 1,
            position: 0,
            clock: 1,
            replicas: 0b10,
        };
        unit.arrive(u64::from(n), &key(n), &header, &mut states);
        unit.processed(u64::from(n), &key(n), &mut states);
    }
    assert_eq!(unit.flows(), 1000);
    unit.tick(1_000_000, &mut states);
    assert_eq!((unit.counts.pushes, unit.next_tick_ns()), (1000, None));
    (0..500).for_each(|n| unit.forget(&key(n)));
    unit.sweep(1_000);
    assert_eq!(unit.flows(), 0);
}
