//! Tests the rule of `bpf/assign.h` against a plain model of its description: lists, sorting,
//! signed numbers.

use pando_assign::{Config, Flow, UNITS, Units};
use proptest::prelude::*;

#[derive(Clone, Default)]
struct Known {
    unit: Option<usize>,
    seen: i64,
    finish: i64,
    alone: i64,
    ready: i64,
    flowlet_bytes: i64,
    targets: Vec<usize>,
    epoch: u32,
}

struct Model {
    rule: Config,
    finish: Vec<i64>,
    accepting: Vec<bool>,
    ready: Vec<bool>,
    grown: i64,
}

impl Model {
    fn backlog(&self, unit: usize, now: i64) -> i64 {
        (self.finish[unit] - now).max(0)
    }

    /// Returns the unit with the shortest queue of each group (equal ids modulo 4).
    fn shortest(&self, now: i64) -> Vec<usize> {
        let open = |group: usize| {
            (group..UNITS)
                .step_by(4)
                .filter(|&u| self.accepting[u])
                .min_by_key(|&u| self.backlog(u, now))
        };
        (0..4).filter_map(open).collect()
    }

    fn packet(&mut self, f: &mut Known, now: i64, len: u32) {
        let cost =
            i64::from(self.rule.packet_ns) + i64::from(len) * i64::from(self.rule.kib_ns) / 1024;
        if self.begins(f, now, len) {
            self.assign(f, now);
        }
        let Some(unit) = f.unit else { return };
        self.finish[unit] = self.finish[unit].max(now) + cost;
        f.finish = self.finish[unit].max(f.ready.max(now) + cost);
        f.alone = f.alone.max(f.ready).max(now) + cost;
        f.seen = now;
        f.flowlet_bytes += i64::from(len);
    }

    fn begins(&self, f: &Known, now: i64, len: u32) -> bool {
        let Some(unit) = f.unit else { return true };
        let size = i64::from(self.rule.size_bytes);
        let over = size > 0 && f.flowlet_bytes + i64::from(len) > size;
        f.ready <= now && (now - f.seen > self.rule.gap_ns as i64 || !self.accepting[unit] || over)
    }

    fn assign(&mut self, f: &mut Known, now: i64) {
        let pull = self.rule.pull_ns as i64;
        let pushed = f.finish.max(f.seen) + self.rule.gap_ns as i64 / 2 + pull <= now;
        let crowded = f.finish - f.alone > self.rule.crowded_ns as i64;
        let tail = (if crowded { f.alone } else { f.finish } - now).max(0);
        let shortest = self.shortest(now);
        // (score, class, unit): its own unit, its replicas, the others.
        let mut list: Vec<(i64, u8, usize)> = Vec::new();
        if let Some(own) = f.unit {
            list.push((self.backlog(own, now), 0, own));
            list.extend(f.targets.iter().filter(|_| pushed).map(|&u| (self.backlog(u, now), 1, u)));
        }
        for &u in &shortest {
            let there = self.backlog(u, now);
            list.push((
                if f.unit.is_some() {
                    there.max(tail + pull) + self.rule.stick_ns as i64
                } else {
                    there
                },
                2,
                u,
            ));
        }
        list.retain(|&(_, _, u)| self.accepting[u]);
        let Some(&(_, class, unit)) = list.iter().min() else { return };
        f.targets = shortest.iter().copied().filter(|&u| u != unit).collect();
        f.targets.sort_by_key(|&u| (self.backlog(u, now), u));
        f.targets.extend((0..UNITS).find(|&u| self.ready[u] && !self.accepting[u]));
        f.targets.truncate(self.rule.targets as usize);
        f.flowlet_bytes = 0;
        if f.unit != Some(unit) {
            f.ready = if class == 2 && f.unit.is_some() { f.finish.max(now) + pull } else { now };
            f.unit = Some(unit);
            f.epoch += 1;
        }
        self.grow(now);
    }

    fn grow(&mut self, now: i64) {
        let least = (0..UNITS).filter(|&u| self.accepting[u]).map(|u| self.backlog(u, now)).min();
        let due = now - self.grown >= self.rule.grow_every_ns as i64;
        if due
            && least.is_some_and(|b| b > self.rule.grow_ns as i64)
            && let Some(next) = (0..UNITS).find(|&u| self.ready[u] && !self.accepting[u])
        {
            self.accepting[next] = true;
            self.grown = now;
        }
    }
}

fn bits(set: u64) -> Vec<bool> {
    (0..UNITS).map(|u| set >> u & 1 == 1).collect()
}

prop_compose! {
    fn rules()(
        gap_ns in prop_oneof![Just(0u64), 1000..600_000u64],
        pull_ns in 0..200_000u64,
        stick_ns in 0..200_000u64,
        crowded_ns in 0..50_000u64,
        grow_ns in 0..100_000u64,
        grow_every_ns in 0..300_000u64,
        size_bytes in prop_oneof![Just(0u32), 2000..30_000u32],
        packet_ns in 0..500u32,
        targets in 0..4u32,
    ) -> Config {
        Config {
            gap_ns,
            pull_ns,
            stick_ns,
            crowded_ns,
            grow_ns,
            grow_every_ns,
            size_bytes,
            packet_ns,
            targets,
            ..Config::of(1_000_000_000)
        }
    }
}

/// A step: a pause and a packet of a flow. Some steps also set the accepting and the ready units.
type Step = (u64, usize, u32, Option<(u64, u64)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![8 => 0..2_000u64, 2 => 0..60_000u64, 1 => 0..2_000_000u64];
    let sparse = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| (a & b, c));
    let set = prop_oneof![30 => Just(None), 1 => sparse.prop_map(Some)];
    proptest::collection::vec((pause, 0..12usize, 60..1500u32, set), 1..400)
}

proptest! {
    #[test]
    fn the_rule_decides_as_the_model_does(rule in rules(), start: u8, steps in steps()) {
        let mut units = Units { accepting: u64::from(start), ready: 0xffff, ..Units::default() };
        let mut model = Model {
            rule,
            finish: vec![0; UNITS],
            accepting: bits(units.accepting),
            ready: bits(units.ready),
            grown: 0,
        };
        let mut flows = vec![(Flow::default(), Known::default()); 12];
        let mut now = 1 << 40;
        for (pause, which, len, set) in steps {
            now += pause;
            if let Some((accepting, ready)) = set {
                (units.accepting, units.ready) = (accepting, ready);
                (model.accepting, model.ready) = (bits(accepting), bits(ready));
            }
            let (flow, known) = &mut flows[which];
            units.assign(&rule, flow, now, len);
            model.packet(known, now as i64, len);
            let unit = (flow.unit != pando_assign::NONE).then_some(usize::from(flow.unit));
            prop_assert_eq!(unit, known.unit);
            prop_assert_eq!(flow.epoch, known.epoch);
            prop_assert_eq!(flow.targets(), known.targets.iter().fold(0, |set, &u| set | 1 << u));
            prop_assert_eq!(bits(units.accepting), model.accepting.clone());
        }
    }
}
