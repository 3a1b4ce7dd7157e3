//! Variants: a rule with its options as one word, for example `star`, `star,gap_ns=100000`,
//! `blind,fifo`.

use crate::replication::State;
use crate::report::{Figures, figures};
use crate::rule::Rule;
use crate::rule::activation::Activation;
use crate::rule::paper::{Knobs, Paper};
use crate::rule::per_flow::Shortest;
use crate::rule::star::{Count, Star};
use crate::workload::Workload;
use crate::world::{Physics, Run, TICK_NS, play};
use pando_assign::queue::Discipline;
use pando_assign::{Config, UNITS};

/// The rule of assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SNF's algorithm at the granularity of flows.
    Vanilla,
    /// Per flow, shortest queue, with Pando's number of units.
    Flow,
    /// SNF's pseudocode as printed.
    Paper,
    /// Shortest queue per flowlet, without regard to state.
    Blind,
    /// Pando's rule.
    Star,
    /// Pando's choice of unit, with the number of units set from future demand at equal
    /// provisioning.
    Clairvoyant,
    /// One unit per flow: the bound.
    Infinite,
}

/// A rule with its options.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The text that this variant was parsed from.
    pub name: String,
    /// Its rule.
    pub kind: Kind,
    /// The parameters of the rule.
    pub config: Config,
    /// Order of service.
    pub discipline: Discipline,
    /// λ of the paper's rule.
    pub lambda: f64,
    /// Interval between reallocations of flows, in ms; 0: never.
    pub reallocate_ms: u64,
    /// Milliseconds over which demand is averaged.
    pub average_ms: f64,
    /// Milliseconds for which a need is remembered.
    pub remember_ms: usize,
    /// The share of a unit that demand may fill.
    pub fill: f64,
    /// Number of units.
    pub pool: u32,
    /// Cost of fetching state. The rule assumes the same cost unless `believed_pull_ns` is set.
    pub pull_ns: u64,
    /// Factor on the nominal cost of the units.
    pub slowness: f64,
    /// The state that units push.
    pub state: State,
    /// How far the clairvoyant looks ahead, in ms; 0: the better of 1 and 5.
    pub ahead_ms: usize,
}

/// Reports why a variant cannot run.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// Unknown rule.
    #[error("{0:?}: no such rule: use vanilla, flow, paper, blind, star, clairvoyant or infinite")]
    Rule(String),
    /// Unknown option, or its value is not a number.
    #[error("{0:?}: no such option: use fifo, fair or KEY=NUMBER with one of the keys of --help")]
    Option(String),
}

impl Variant {
    /// Reads a variant over units of `bits_per_second`.
    pub fn parse(name: &str, bits_per_second: u64) -> Result<Variant, VariantError> {
        let mut words = name.split(',');
        let rule = words.next().unwrap_or_default();
        let kind = match rule {
            "vanilla" => Kind::Vanilla,
            "flow" => Kind::Flow,
            "paper" => Kind::Paper,
            "blind" => Kind::Blind,
            "star" => Kind::Star,
            "clairvoyant" => Kind::Clairvoyant,
            "infinite" => Kind::Infinite,
            _ => return Err(VariantError::Rule(rule.into())),
        };
        let ours = matches!(kind, Kind::Star | Kind::Clairvoyant);
        let config = Config::of(bits_per_second);
        let mut v = Variant {
            name: name.into(),
            kind,
            config,
            discipline: if ours { Discipline::DEFAULT } else { Discipline::Fifo },
            lambda: 0.25,
            reallocate_ms: 0,
            average_ms: 20.0,
            remember_ms: 5,
            fill: 1.0,
            pool: UNITS as u32,
            pull_ns: config.pull_ns,
            slowness: 1.0,
            state: State::DEFAULT,
            ahead_ms: 0,
        };
        for word in words {
            v.set(word).ok_or_else(|| VariantError::Option(word.into()))?;
        }
        Ok(v)
    }

    fn set(&mut self, word: &str) -> Option<()> {
        match word {
            "fifo" => self.discipline = Discipline::Fifo,
            "fair" => self.discipline = Discipline::Fair,
            _ => {
                let (key, value) = word.split_once('=')?;
                let number: f64 = value.parse().ok()?;
                let c = &mut self.config;
                match key {
                    "parts" => self.discipline = Discipline::Clock { parts: number as u32 },
                    "gap_ns" => c.gap_ns = number as u64,
                    "believed_pull_ns" => c.pull_ns = number as u64,
                    "pull_ns" => (self.pull_ns, c.pull_ns) = (number as u64, number as u64),
                    "stick_ns" => c.stick_ns = number as u64,
                    "crowded_ns" => c.crowded_ns = number as u64,
                    "grow_ns" => c.grow_ns = number as u64,
                    "grow_every_ns" => c.grow_every_ns = number as u64,
                    "size_bytes" => c.size_bytes = number as u32,
                    "targets" => c.targets = number as u32,
                    "pool" => self.pool = number as u32,
                    "lambda" => self.lambda = number,
                    "reallocate_ms" => self.reallocate_ms = number as u64,
                    "average_ms" => self.average_ms = number,
                    "remember_ms" => self.remember_ms = number as usize,
                    "fill" => self.fill = number,
                    "slowness" => self.slowness = number,
                    "state_bytes" => self.state.bytes = number as usize,
                    "state_changes" => self.state.changes = number != 0.0,
                    "ahead_ms" => self.ahead_ms = number as usize,
                    _ => return None,
                }
            }
        }
        Some(())
    }

    fn activation(&self, unit_bytes: f64) -> Activation {
        Activation::new(unit_bytes * self.fill, self.average_ms, self.remember_ms, self.pool)
    }
}

/// A workload and the parameters that a run of it is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The load.
    pub load: &'a Workload,
    /// Length of its window.
    pub window_ns: u64,
    /// Figures count from here.
    pub warm_ns: u64,
    /// Capacity of a unit in bytes per millisecond.
    pub unit_bytes: f64,
    /// Seed for rules that make random choices.
    pub seed: u64,
}

impl Case<'_> {
    /// Plays the load under a variant.
    pub fn run(&self, v: &Variant) -> Figures {
        let flows = self.load.flows;
        let by_flow = v.kind == Kind::Vanilla;
        let knobs = Knobs {
            by_flow,
            gap_ns: v.config.gap_ns,
            size_bytes: v.config.size_bytes,
            lambda: v.lambda,
            replicas: v.config.targets,
        };
        match v.kind {
            Kind::Infinite => self.judge(&alone(self.load, &v.config)),
            Kind::Clairvoyant => self.clairvoyant(v),
            Kind::Star => self.play(
                v,
                &mut Star::new(v.config, flows, Count::Activation(v.activation(self.unit_bytes))),
            ),
            Kind::Vanilla | Kind::Paper => self.play(
                v,
                &mut Paper::new(flows, self.unit_bytes, self.mean_units(), knobs, self.seed),
            ),
            Kind::Flow => {
                let ticks = v.reallocate_ms * 1_000_000 / TICK_NS;
                self.play(
                    v,
                    &mut Shortest::new(
                        flows,
                        v.activation(self.unit_bytes),
                        u64::MAX,
                        u32::MAX,
                        ticks,
                    ),
                )
            }
            Kind::Blind => {
                let activation = v.activation(self.unit_bytes);
                self.play(
                    v,
                    &mut Shortest::new(flows, activation, v.config.gap_ns, v.config.size_bytes, 0),
                )
            }
        }
    }

    fn play(&self, v: &Variant, rule: &mut dyn Rule) -> Figures {
        let physics = Physics {
            discipline: v.discipline,
            gap_ns: v.config.gap_ns,
            pull_ns: v.pull_ns,
            push_ns: v.pull_ns,
            slowness: v.slowness,
            state: v.state,
        };
        self.judge(&play(self.load, self.window_ns, &v.config, &physics, rule))
    }

    /// Returns the number of units that the load needs on average.
    fn mean_units(&self) -> u32 {
        let bytes: u64 = self.load.packets.iter().map(|p| u64::from(p.bytes)).sum();
        (bytes as f64 / self.unit_bytes / (self.window_ns / TICK_NS) as f64).ceil() as u32
    }

    fn judge(&self, run: &Run) -> Figures {
        figures(self.load, run, self.window_ns, self.warm_ns, self.unit_bytes)
    }

    /// Plays Pando's choice of unit with the number of units known ahead. That number meets the
    /// mean demand of the next milliseconds, times a factor that makes provisioning equal to
    /// Pando's.
    fn clairvoyant(&self, v: &Variant) -> Figures {
        let equal = self
            .run(&Variant { kind: Kind::Star, discipline: Discipline::DEFAULT, ..v.clone() })
            .provisioning;
        let horizons = if v.ahead_ms > 0 { vec![v.ahead_ms] } else { vec![1, 5] };
        let best = horizons.into_iter().map(|ahead| self.clairvoyant_at(v, ahead, equal));
        best.min_by(|a, b| a.p75_us.total_cmp(&b.p75_us)).unwrap_or_default()
    }

    fn clairvoyant_at(&self, v: &Variant, ahead: usize, equal: f64) -> Figures {
        let mut demand = vec![0.0; (self.window_ns / TICK_NS) as usize + 1 + ahead];
        self.load
            .packets
            .iter()
            .for_each(|p| demand[(p.at_ns / TICK_NS) as usize] += f64::from(p.bytes));
        let (mut low, mut high) = (0.5, 4.0);
        let mut figures = Figures::default();
        for _ in 0..12 {
            let factor = (low + high) / 2.0;
            let need = |d: &[f64]| {
                (factor * d.iter().sum::<f64>() / ahead as f64 / self.unit_bytes)
                    .ceil()
                    .clamp(1.0, 64.0) as u32
            };
            let counts = demand.windows(ahead).map(need).collect();
            figures = self.play(v, &mut Star::new(v.config, self.load.flows, Count::Given(counts)));
            if (figures.provisioning / equal - 1.0).abs() < 0.003 {
                break;
            }
            if figures.provisioning > equal { high = factor } else { low = factor }
        }
        figures
    }
}

/// Serves every flow on its own unit.
fn alone(load: &Workload, config: &Config) -> Run {
    let mut free = vec![0u64; load.flows as usize];
    let serve = |p: &crate::workload::Packet| {
        let own = &mut free[p.flow as usize];
        *own = (*own).max(p.at_ns) + config.cost(p.bytes);
        *own - p.at_ns
    };
    Run { latency_ns: load.packets.iter().map(serve).collect(), ..Run::default() }
}
