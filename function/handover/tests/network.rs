//! Units behind a network that loses, delays, doubles and reorders. Every packet changes the state
//! at most once, and every processed packet is in the next unit's state.

use std::collections::{BTreeMap, BTreeSet};

use pando_flow::{End, FlowKey};
use pando_handover::header::Header;
use pando_handover::{Admission, Effect, Handover, Message, NO_UNIT, States, Timing, UnitId};
use proptest::prelude::*;

const UNITS: usize = 4;

/// A state is the list of clocks that made it.
#[derive(Default)]
struct Lists(BTreeMap<FlowKey, Vec<u8>>);

impl States for Lists {
    fn snapshot(&self, key: &FlowKey) -> Vec<u8> {
        self.0.get(key).cloned().unwrap_or_default()
    }

    fn install(&mut self, key: &FlowKey, snapshot: &[u8]) {
        self.0.insert(*key, snapshot.to_vec());
    }

    fn forget(&mut self, key: &FlowKey) {
        self.0.remove(key);
    }
}

struct Unit {
    core: Handover,
    states: Lists,
    held: Vec<Header>,
    /// The time until which it serves admitted packets.
    busy_ns: u64,
}

enum Event {
    Packet(Header),
    Done(Header),
    Message(UnitId, UnitId, Message),
    Tick,
}

struct World {
    units: Vec<Unit>,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    random: u64,
    loss_percent: u64,
    /// The longest service time of a packet. Packets are served one after the other.
    service_ns: u64,
    /// The longest delay of packets to a unit. Each unit receives its packets in order.
    lag_ns: u64,
    key: FlowKey,
    processed: Vec<u64>,
    /// Only packets with a clock divisible by this number change the state.
    changes: u64,
    /// The initial bytes of every state.
    begins: Vec<u8>,
    ticks: BTreeSet<u64>,
    /// The unit that processed last, by epoch.
    last: (u32, usize),
}

impl World {
    fn new(seed: u64, loss_percent: u64, service_ns: u64, lag_ns: u64) -> World {
        // As in units: they do not give up on a unit before the group reports its death.
        let timing = Timing { deadline_ns: 10_000_000_000, ..Timing::default() };
        let unit = |n| Unit {
            core: Handover::new(n as u16, (1 << UNITS) - 1, timing),
            states: Lists::default(),
            held: Vec::new(),
            busy_ns: 0,
        };
        let key = FlowKey::between(
            End::new(&[10, 0, 0, 1], [0, 1]),
            End::new(&[10, 0, 0, 2], [0, 2]),
            17,
            4,
        )
        .0;
        let units = (0..UNITS).map(unit).collect();
        World {
            units,
            events: BTreeMap::new(),
            count: 0,
            random: seed | 1,
            loss_percent,
            service_ns,
            lag_ns,
            key,
            processed: Vec::new(),
            changes: 1,
            begins: Vec::new(),
            ticks: BTreeSet::new(),
            last: (0, 0),
        }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides
    }

    fn at(&mut self, time_ns: u64, event: Event) {
        self.count += 1;
        self.events.insert((time_ns, self.count), event);
    }

    fn run(&mut self) {
        self.run_only(|_| true);
    }

    /// Runs the chosen events in the order of their times, and all chosen events that they cause.
    fn run_only(&mut self, chosen: impl Fn(&Event) -> bool) {
        while let Some(at) = self.events.iter().find(|(_, event)| chosen(event)).map(|(at, _)| *at)
        {
            let event = self.events.remove(&at).expect("it was there");
            self.happen(at.0, event);
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Packet(header) => self.packet(now, header),
            Event::Done(header) => self.done(now, header),
            Event::Message(from, to, message) => {
                let unit = &mut self.units[usize::from(to)];
                unit.core.message(now, from, message, &mut unit.states);
                self.effects(now, to.into());
            }
            Event::Tick => {
                self.ticks.remove(&now);
                for n in 0..UNITS {
                    let unit = &mut self.units[n];
                    unit.core.tick(now, &mut unit.states);
                    self.effects(now, n);
                }
            }
        }
    }

    fn packet(&mut self, now: u64, header: Header) {
        let n = usize::from(header.unit);
        let unit = &mut self.units[n];
        match unit.core.arrive(now, &self.key, &header, &mut unit.states) {
            Admission::Run => {
                let service = self.dice(self.service_ns);
                let unit = &mut self.units[n];
                unit.busy_ns = unit.busy_ns.max(now) + service;
                let done = unit.busy_ns;
                self.at(done, Event::Done(header));
            }
            Admission::Hold => unit.held.push(header),
            Admission::Stale => {}
        }
        self.effects(now, n);
    }

    fn done(&mut self, now: u64, header: Header) {
        let n = usize::from(header.unit);
        let unit = &mut self.units[n];
        let state = unit.states.0.entry(self.key).or_insert_with(|| self.begins.clone());
        if header.clock.is_multiple_of(self.changes) {
            state.push(header.clock as u8);
        }
        unit.core.processed(now, &self.key, &mut unit.states);
        self.processed.push(header.clock);
        self.last = self.last.max((header.epoch, n));
        self.effects(now, n);
    }

    fn effects(&mut self, now: u64, n: usize) {
        for effect in std::mem::take(&mut self.units[n].core.effects) {
            match effect {
                Effect::Release(_) => {
                    // By clock: packets of an earlier epoch precede those of a later one.
                    let mut held = std::mem::take(&mut self.units[n].held);
                    held.sort_by_key(|header| header.clock);
                    for header in held {
                        self.packet(now, header);
                    }
                }
                Effect::Send(to, message) => {
                    for _ in 0..1 + u64::from(self.dice(10) == 0) {
                        let delay = 5_000 + self.dice(40_000);
                        if self.dice(100) >= self.loss_percent {
                            self.at(now + delay, Event::Message(n as u16, to, message.clone()));
                        }
                    }
                }
            }
        }
        if let Some(due) = self.units[n].core.next_tick_ns() {
            let due = due.max(now + 1);
            if self.ticks.insert(due) {
                self.at(due, Event::Tick);
            }
        }
    }
}

/// Flowlets: (unit, packets, silence before in µs).
fn play(world: &mut World, flowlets: &[(u16, u8, u32)], disorder: bool) {
    let (mut clock, mut epoch, mut position, mut now, mut previous, mut unit) =
        (0, 0, 0, 0, NO_UNIT, NO_UNIT);
    let (mut lags, mut came) = ([0; UNITS], [0; UNITS]);
    for &(to, packets, silence_us) in flowlets {
        now += u64::from(silence_us) * 1000;
        if to != unit {
            (previous, unit, epoch, position) = (unit, to, epoch + 1, 0);
            lags[usize::from(to)] = world.dice(world.lag_ns);
        }
        for n in 0..packets {
            clock += 1;
            let header = Header {
                flowlet_starts: n == 0,
                ethertype: 0x800,
                unit,
                previous,
                epoch,
                position,
                clock,
                replicas: world.dice(16),
            };
            position += 1;
            now += 2_000;
            let jitter = if disorder { world.dice(30_000) } else { 0 };
            if !disorder || world.dice(100) >= world.loss_percent {
                let to = usize::from(unit);
                came[to] = came[to].max(now + lags[to]);
                world.at(came[to] + jitter, Event::Packet(header));
                if disorder && world.dice(20) == 0 {
                    let jitter = world.dice(600_000);
                    world.at(now + jitter, Event::Packet(header));
                }
            }
        }
    }
    world.run();
}

fn flowlets() -> impl Strategy<Value = Vec<(u16, u8, u32)>> {
    proptest::collection::vec(
        (0..UNITS as u16, 1..8u8, prop_oneof![0..20u32, 400..1000u32, Just(5000)]),
        1..20,
    )
}

fn final_state(world: &World) -> Vec<u64> {
    let (_, n) = world.last;
    world.units[n]
        .states
        .0
        .get(&world.key)
        .map(|s| s.iter().map(|&c| c.into()).collect())
        .unwrap_or_default()
}

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
    let to = |unit: UnitId| move |event: &Event| matches!(event, Event::Message(_, to, _) if *to == unit);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Without loss, every packet is processed, in order within each unit, and is in the last
    /// state.
    #[test]
    fn a_quiet_network_loses_nothing(flowlets in flowlets(), seed: u64, service_ns in prop_oneof![Just(1u64), Just(300_000)], lag_ns in prop_oneof![Just(1u64), Just(400_000)], changes in 1..5u64) {
        let mut world = World { changes, ..World::new(seed, 0, service_ns, lag_ns) };
        play(&mut world, &flowlets, false);
        let packets: u64 = flowlets.iter().map(|f| u64::from(f.1)).sum();
        prop_assert_eq!(final_state(&world), (1..=packets).filter(|clock| clock % changes == 0).collect::<Vec<_>>());
        prop_assert_eq!(world.units.iter().map(|u| u.core.counts.gave_up + u.core.counts.with_gap + u.core.counts.updates_lost).sum::<u64>(), 0);
    }

    /// With loss, disorder and repetition, no packet is processed twice and no flow waits forever.
    /// Unless a unit gave up, the last state consists exactly of the processed packets. No stale
    /// copy was updated.
    #[test]
    fn no_stale_update(flowlets in flowlets(), seed: u64, loss_percent in 0..15u64, service_ns in prop_oneof![Just(1u64), Just(300_000)], lag_ns in prop_oneof![Just(1u64), Just(400_000)], changes in 1..5u64) {
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
