//! A simulated network with units behind it. It loses, delays, doubles and reorders packets and
//! messages, by a seed.

use std::collections::{BTreeMap, BTreeSet};

use pando_flow::{End, FlowKey};
use pando_handover::header::Header;
use pando_handover::{Admission, Effect, Handover, Message, NO_UNIT, States, Timing, UnitId};

/// The number of units in the world.
pub const UNITS: usize = 4;

/// A state is the list of clocks that made it.
#[derive(Default)]
pub struct Lists(pub BTreeMap<FlowKey, Vec<u8>>);

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

/// A unit of the world.
pub struct Unit {
    pub core: Handover,
    pub states: Lists,
    pub held: Vec<Header>,
    /// The time until which it serves admitted packets.
    pub busy_ns: u64,
}

/// An event in the world: a packet arrives, its service ends, or a message arrives.
pub enum Event {
    Packet(Header),
    Done(Header),
    Message(UnitId, UnitId, Message),
    Tick,
}

/// Units, and the events that are still to come.
pub struct World {
    pub units: Vec<Unit>,
    pub events: BTreeMap<(u64, u64), Event>,
    pub count: u64,
    pub random: u64,
    pub loss_percent: u64,
    /// The longest service time of a packet. Packets are served one after the other.
    pub service_ns: u64,
    /// The longest delay of packets to a unit. Each unit receives its packets in order.
    pub lag_ns: u64,
    pub key: FlowKey,
    pub processed: Vec<u64>,
    /// Only packets with a clock divisible by this number change the state.
    pub changes: u64,
    /// The initial bytes of every state.
    pub begins: Vec<u8>,
    pub ticks: BTreeSet<u64>,
    /// The unit that processed last, by epoch.
    pub last: (u32, usize),
}

impl World {
    pub fn new(seed: u64, loss_percent: u64, service_ns: u64, lag_ns: u64) -> World {
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

    pub fn dice(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides
    }

    pub fn at(&mut self, time_ns: u64, event: Event) {
        self.count += 1;
        self.events.insert((time_ns, self.count), event);
    }

    pub fn run(&mut self) {
        self.run_only(|_| true);
    }

    /// Runs the chosen events in the order of their times, and all chosen events that they cause.
    pub fn run_only(&mut self, chosen: impl Fn(&Event) -> bool) {
        while let Some(at) = self.events.iter().find(|(_, event)| chosen(event)).map(|(at, _)| *at)
        {
            let event = self.events.remove(&at).expect("it was there");
            self.happen(at.0, event);
        }
    }

    pub fn happen(&mut self, now: u64, event: Event) {
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

    pub fn packet(&mut self, now: u64, header: Header) {
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

    pub fn effects(&mut self, now: u64, n: usize) {
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

/// Plays flowlets: (unit, packets, silence before in µs).
pub fn play(world: &mut World, flowlets: &[(u16, u8, u32)], disorder: bool) {
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

/// Returns the state of the unit that processed last.
pub fn final_state(world: &World) -> Vec<u64> {
    let (_, n) = world.last;
    world.units[n]
        .states
        .0
        .get(&world.key)
        .map(|s| s.iter().map(|&c| c.into()).collect())
        .unwrap_or_default()
}
