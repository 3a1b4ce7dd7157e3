//! The world: arrivals, units and moving state as discrete events in virtual time. The same input
//! gives the same run.
//!
//! State is serial (SNF §5.3): a packet is served at its flow's state, after all earlier packets of
//! the flow. A flow that gets a new unit waits there until its earlier packets are done and its
//! state has arrived. The state is there at once after a push, else after a pull. Only that flow
//! waits; the unit serves others.

use crate::replication::{Known, State};
use crate::rule::{Report, Rule};
use crate::unit::Unit;
use crate::workload::Workload;
use pando_assign::queue::{Discipline, Waiting};
use pando_assign::{Config, UNITS};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How often user space reads the units.
pub const TICK_NS: u64 = 1_000_000;

/// The properties of the units and of the network between them.
#[derive(Clone, Debug)]
pub struct Physics {
    /// Order of service.
    pub discipline: Discipline,
    /// T: state is pushed after half of this silence.
    pub gap_ns: u64,
    /// Time to fetch state.
    pub pull_ns: u64,
    /// Time until pushed state arrives.
    pub push_ns: u64,
    /// Factor on the nominal cost of the units.
    pub slowness: f64,
    /// The state that units push.
    pub state: State,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Time from arrival to completion of each packet, in the workload's order.
    pub latency_ns: Vec<u64>,
    /// For each bin of 1 ms: units that accepted, drained or held.
    pub units: Vec<u32>,
    /// The same for bins of 100 ms.
    pub units_100ms: Vec<u32>,
    /// Number of flowlets.
    pub flowlets: u64,
    /// Flowlets on another unit than the flow's previous one.
    pub moves: u64,
    /// Moves with the state present at the first packet.
    pub seamless: u64,
    /// States pushed, counted per target.
    pub pushes: u64,
    /// Bytes of the pushes.
    pub pushed_bytes: u64,
    /// States pulled.
    pub pulls: u64,
    /// Longest wait of a packet for state, or for its flow's earlier packets on another unit.
    pub held_max_ns: u64,
}

#[derive(Debug)]
struct Segment {
    unit: u16,
    packets: Vec<u32>,
}

#[derive(Debug)]
struct Flow {
    /// The unit that holds its state.
    home: u16,
    /// Unfinished packets at home.
    outstanding: u32,
    done_ns: u64,
    /// Units with a copy of the state of `done_ns`, and the arrival time of that copy.
    replicas: u64,
    replicas_at: u64,
    targets: u64,
    known: Known,
    epoch: u32,
    clock: u64,
    /// Whether its state is moving to the first segment's unit.
    travels: bool,
    /// Packets for other units than home, in order.
    segments: VecDeque<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(u16),
    Arrived(u32),
}

const NOWHERE: u16 = u16::MAX;

/// A run in progress.
pub struct World<'a> {
    load: &'a Workload,
    config: Config,
    physics: Physics,
    units: Vec<Unit>,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    touched: u64,
    touched_100ms: u64,
    run: Run,
}

/// Plays a workload to its end under a rule.
pub fn play(
    load: &Workload,
    window_ns: u64,
    config: &Config,
    physics: &Physics,
    rule: &mut dyn Rule,
) -> Run {
    let mut world = World::new(load, config, physics);
    let mut next_tick = 0;
    for (number, packet) in load.packets.iter().enumerate() {
        while next_tick <= packet.at_ns {
            world.until(next_tick);
            world.tick(next_tick, rule);
            next_tick += TICK_NS;
        }
        world.until(packet.at_ns);
        world.arrive(number as u32, rule);
    }
    while next_tick <= window_ns {
        world.until(next_tick);
        world.tick(next_tick, rule);
        next_tick += TICK_NS;
    }
    (0..load.flows).for_each(|flow| world.push_if_silent(flow, window_ns));
    world.until(u64::MAX);
    world.run
}

impl<'a> World<'a> {
    fn new(load: &'a Workload, config: &Config, physics: &Physics) -> World<'a> {
        let flow = || Flow {
            home: NOWHERE,
            outstanding: 0,
            done_ns: 0,
            replicas: 0,
            replicas_at: 0,
            targets: 0,
            known: Known::default(),
            epoch: 1,
            clock: 0,
            travels: false,
            segments: VecDeque::new(),
        };
        World {
            load,
            config: *config,
            physics: physics.clone(),
            units: (0..UNITS).map(|_| Unit::new(physics.discipline)).collect(),
            flows: (0..load.flows).map(|_| flow()).collect(),
            events: BinaryHeap::new(),
            sequence: 0,
            touched: 0,
            touched_100ms: 0,
            run: Run { latency_ns: vec![0; load.packets.len()], ..Run::default() },
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, event)));
    }

    fn until(&mut self, now: u64) {
        while let Some(&Reverse((when, _, event))) = self.events.peek() {
            if when > now {
                return;
            }
            self.events.pop();
            match event {
                Event::Done(unit) => self.finish(unit, when),
                Event::Arrived(flow) => self.state_arrives(flow, when),
            }
        }
    }

    fn tick(&mut self, now: u64, rule: &mut dyn Rule) {
        self.close_bin(now, rule.accepting());
        let report = Report {
            backlog_ns: self.units.iter().map(|u| u.backlog_ns(now)).collect(),
            drained_bytes: self.units.iter().map(|u| u.drained_bytes).collect(),
        };
        rule.tick(now, &report);
        self.touched |= rule.accepting();
    }

    /// Counts the units of the bin that ends now. A unit that stopped accepting still counts while
    /// it drains, while its packets wait for state, and until it has pushed its last flow's state.
    fn close_bin(&mut self, now: u64, accepting: u64) {
        let hold_ns = self.physics.gap_ns / 2 + self.physics.push_ns;
        self.touched |= accepting;
        if now > 0 {
            self.run.units.push(self.touched.count_ones());
            self.touched_100ms |= self.touched;
            if self.run.units.len().is_multiple_of(100) {
                self.run.units_100ms.push(self.touched_100ms.count_ones());
                self.touched_100ms = 0;
            }
        }
        self.touched = 0;
        for (i, u) in self.units.iter().enumerate() {
            if u.serving.is_some() || u.held > 0 || (u.done_ns > 0 && u.done_ns + hold_ns > now) {
                self.touched |= 1 << i;
            }
        }
    }

    fn arrive(&mut self, number: u32, rule: &mut dyn Rule) {
        let packet = self.load.packets[number as usize];
        let now = packet.at_ns;
        if rule.looks() {
            let queues: [u64; UNITS] = std::array::from_fn(|i| self.units[i].backlog_ns(now));
            rule.see(&queues);
        }
        self.push_if_silent(packet.flow, now);
        let choice = rule.place(now, packet.flow, packet.bytes);
        self.touched |= 1 << choice.unit;
        self.run.flowlets += u64::from(choice.begins);
        let flow = &mut self.flows[packet.flow as usize];
        flow.targets = choice.targets;
        flow.clock += 1;
        if flow.home == NOWHERE {
            flow.home = choice.unit;
        }
        if flow.segments.is_empty() && flow.home == choice.unit {
            flow.outstanding += 1;
            flow.replicas = 0;
            self.enqueue(choice.unit, number, now);
            return;
        }
        let unit = &mut self.units[choice.unit as usize];
        unit.held += 1;
        unit.held_ns += self.config.cost(packet.bytes);
        if let Some(last) = flow.segments.back_mut().filter(|s| s.unit == choice.unit) {
            last.packets.push(number);
            return;
        }
        flow.epoch += 1;
        flow.segments.push_back(Segment { unit: choice.unit, packets: vec![number] });
        self.run.moves += 1;
        if flow.outstanding == 0 && !flow.travels {
            self.send_state(packet.flow, now);
        }
    }

    /// Pushes state half a gap after its last change. It runs at the flow's next packet or at the
    /// end.
    fn push_if_silent(&mut self, number: u32, now: u64) {
        let flow = &mut self.flows[number as usize];
        let pushed = flow.done_ns + self.physics.gap_ns / 2;
        if flow.home == NOWHERE
            || flow.outstanding > 0
            || flow.travels
            || flow.replicas != 0
            || now <= pushed
        {
            return;
        }
        flow.replicas = flow.targets & !(1 << flow.home);
        flow.replicas_at = pushed + self.physics.push_ns;
        self.run.pushes += u64::from(flow.replicas.count_ones());
        self.run.pushed_bytes +=
            flow.known.push(&self.physics.state, flow.home, flow.replicas, flow.epoch, flow.clock);
    }

    /// Moves the state of a flow without packets at home to its first segment's unit.
    fn send_state(&mut self, number: u32, now: u64) {
        let flow = &mut self.flows[number as usize];
        let segment = flow.segments.front().expect("a flow's state travels to a segment");
        let pushed = flow.replicas >> segment.unit & 1 == 1;
        let comes = if pushed { flow.replicas_at.max(now) } else { u64::MAX }
            .min(now + self.physics.pull_ns);
        flow.travels = true;
        if !pushed {
            self.run.pulls += 1;
            flow.known.give(flow.home, 1 << segment.unit);
        }
        if comes <= now {
            self.run.seamless += u64::from(segment.packets.len() == 1);
            self.state_arrives(number, now);
        } else {
            self.at(comes, Event::Arrived(number));
        }
    }

    fn state_arrives(&mut self, number: u32, now: u64) {
        let flow = &mut self.flows[number as usize];
        let segment = flow.segments.pop_front().expect("a flow's state travels to a segment");
        flow.travels = false;
        flow.home = segment.unit;
        flow.replicas = 0;
        flow.outstanding = segment.packets.len() as u32;
        for packet in segment.packets {
            let p = self.load.packets[packet as usize];
            let unit = &mut self.units[segment.unit as usize];
            unit.held -= 1;
            unit.held_ns -= self.config.cost(p.bytes);
            self.run.held_max_ns = self.run.held_max_ns.max(now - p.at_ns);
            self.enqueue(segment.unit, packet, now);
        }
    }

    fn enqueue(&mut self, unit: u16, number: u32, now: u64) {
        let packet = self.load.packets[number as usize];
        let cost_ns = (self.config.cost(packet.bytes) as f64 * self.physics.slowness) as u64;
        let u = &mut self.units[unit as usize];
        u.work_ns += cost_ns;
        u.queue.push(Waiting { packet: number, flow: packet.flow, cost_ns }, now);
        if u.serving.is_none() {
            self.serve(unit, now);
        }
    }

    fn serve(&mut self, unit: u16, now: u64) {
        let u = &mut self.units[unit as usize];
        u.serving = u.queue.pop(now);
        u.begun_ns = now;
        if let Some(w) = u.serving {
            self.at(now + w.cost_ns, Event::Done(unit));
        }
    }

    fn finish(&mut self, unit: u16, now: u64) {
        let u = &mut self.units[unit as usize];
        let w = u.serving.take().expect("a unit that is done served something");
        let packet = self.load.packets[w.packet as usize];
        u.work_ns -= w.cost_ns;
        u.done_ns = now;
        u.drained_bytes += u64::from(packet.bytes);
        self.run.latency_ns[w.packet as usize] = now - packet.at_ns;
        let flow = &mut self.flows[w.flow as usize];
        flow.outstanding -= 1;
        flow.done_ns = now;
        if flow.outstanding == 0 && !flow.segments.is_empty() {
            self.send_state(w.flow, now);
        }
        self.serve(unit, now);
    }
}
