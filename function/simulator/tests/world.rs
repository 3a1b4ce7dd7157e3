//! The simulated world under rules that place packets anywhere, against the laws of queues.

use pando_assign::Config;
use pando_assign::queue::Discipline;
use pando_simulate::replication::State;
use pando_simulate::rule::{Choice, Report, Rule};
use pando_simulate::workload::{Packet, Workload};
use pando_simulate::world::{Physics, Run, play};
use pando_traffic::random::Random;

const WINDOW_NS: u64 = 20_000_000;

/// Places each packet on one of `units` by chance.
struct Chance {
    random: Random,
    units: u64,
    /// The unit of each packet so far, with its flow.
    placed: Vec<(u32, u16)>,
    begun: u64,
}

impl Chance {
    fn new(seed: u64, units: u64) -> Chance {
        Chance { random: Random::new(seed), units, placed: Vec::new(), begun: 0 }
    }

    /// Returns how often a flow's packet had another unit than the one before.
    fn moves(&self) -> u64 {
        let mut last = std::collections::HashMap::new();
        let moved = |&&(flow, unit): &&(u32, u16)| {
            last.insert(flow, unit).is_some_and(|before| before != unit)
        };
        self.placed.iter().filter(moved).count() as u64
    }
}

impl Rule for Chance {
    fn place(&mut self, _: u64, flow: u32, _: u32) -> Choice {
        let last = self.placed.iter().rev().find(|placed| placed.0 == flow).map(|placed| placed.1);
        let stays = self.random.below(3) > 0;
        let any = self.random.below(self.units) as u16;
        let unit = last.filter(|_| stays).unwrap_or(any);
        let begins = self.random.below(4) == 0;
        self.begun += u64::from(begins);
        self.placed.push((flow, unit));
        Choice { unit, begins, targets: self.random.next_u64() & ((1 << self.units) - 1) }
    }

    fn tick(&mut self, now: u64, report: &Report) {
        let busy = report.backlog_ns.iter().filter(|&&ns| ns > 0).count() as u64;
        assert!(busy <= self.units, "{busy} units have work at {now}");
    }

    fn accepting(&self) -> u64 {
        (1 << self.units) - 1
    }
}

fn load(seed: u64, flows: u32, packets: usize) -> Workload {
    let mut random = Random::new(seed);
    let packet = |random: &mut Random| Packet {
        at_ns: random.below(WINDOW_NS),
        flow: random.below(flows.into()) as u32,
        bytes: 60 + random.below(1440) as u32,
    };
    let mut packets: Vec<Packet> = (0..packets).map(|_| packet(&mut random)).collect();
    packets.sort_by_key(|packet| packet.at_ns);
    Workload { packets, flows }
}

fn physics(discipline: Discipline) -> Physics {
    Physics {
        discipline,
        gap_ns: 500_000,
        pull_ns: 130_000,
        push_ns: 40_000,
        slowness: 1.0,
        state: State::DEFAULT,
    }
}

fn run(load: &Workload, config: &Config, discipline: Discipline, rule: &mut Chance) -> Run {
    play(load, WINDOW_NS, config, &physics(discipline), rule)
}

/// Every packet is served once and takes its cost at least. The packets of a flow are served in
/// order, wherever they go, and nothing takes longer than all the work and all the moves together.
#[test]
fn packets_of_a_flow_are_served_in_order_on_any_units() {
    let config = Config::of(70_000_000);
    for discipline in [Discipline::Fifo, Discipline::Fair, Discipline::DEFAULT] {
        for seed in 1..=40 {
            let load = load(seed, 1 + seed as u32 % 9, 400);
            let mut rule = Chance::new(seed, 1 + seed % 7);
            let run = run(&load, &config, discipline, &mut rule);
            assert_eq!(run.latency_ns.len(), load.packets.len());
            let mut done = vec![0; load.flows as usize];
            let work: u64 = load.packets.iter().map(|packet| config.cost(packet.bytes)).sum();
            let most = work + (run.moves + 1) * physics(discipline).pull_ns;
            for (packet, &latency_ns) in load.packets.iter().zip(&run.latency_ns) {
                assert!(latency_ns >= config.cost(packet.bytes) && latency_ns <= most);
                let at = packet.at_ns + latency_ns;
                let before = std::mem::replace(&mut done[packet.flow as usize], at);
                assert!(at >= before, "seed {seed}, {discipline:?}: a flow is reordered");
            }
            assert_eq!((run.moves, run.flowlets), (rule.moves(), rule.begun));
            assert!(run.pulls <= run.moves && run.seamless <= run.moves);
            assert_eq!(run.units.len() as u64, WINDOW_NS / pando_simulate::world::TICK_NS);
            assert!(run.units.iter().all(|&units| u64::from(units) <= rule.units));
        }
    }
}

/// One unit in order of arrival is the queue of Lindley: a packet waits for the work before it.
#[test]
fn one_unit_is_a_single_queue() {
    let config = Config::of(200_000_000);
    for seed in 1..=20 {
        let load = load(seed, 5, 500);
        let run = run(&load, &config, Discipline::Fifo, &mut Chance::new(seed, 1));
        let mut free_ns = 0;
        for (packet, &latency_ns) in load.packets.iter().zip(&run.latency_ns) {
            free_ns = packet.at_ns.max(free_ns) + config.cost(packet.bytes);
            assert_eq!(packet.at_ns + latency_ns, free_ns, "seed {seed}");
        }
        assert_eq!((run.moves, run.pulls, run.held_max_ns), (0, 0, 0));
    }
}

/// The order of service changes the waits of packets, and not how much work is done by when.
#[test]
fn the_last_packet_leaves_at_the_same_time_in_any_order() {
    let config = Config::of(100_000_000);
    for seed in 1..=20 {
        let load = load(seed, 6, 400);
        let last = |discipline| {
            let run = run(&load, &config, discipline, &mut Chance::new(seed, 1));
            load.packets.iter().zip(&run.latency_ns).map(|(p, l)| p.at_ns + l).max()
        };
        let fifo = last(Discipline::Fifo);
        assert_eq!((last(Discipline::Fair), last(Discipline::DEFAULT)), (fifo, fifo));
    }
}
