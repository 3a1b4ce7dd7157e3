//! Rules: what decides the unit of each packet.

pub mod activation;
pub mod paper;
pub mod per_flow;
pub mod star;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its unit.
    pub unit: u16,
    /// It begins a flowlet.
    pub begins: bool,
    /// Bit i: its flow's state is pushed to unit i when the flow falls silent.
    pub targets: u64,
}

/// What a rule may know of the units at a tick: what units report to user space.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Work that each unit has, held packets included, in nanoseconds.
    pub backlog_ns: Vec<u64>,
    /// Bytes that each unit has finished so far.
    pub drained_bytes: Vec<u64>,
}

/// A rule of assignment. It is asked for each packet, and told the truth at each tick.
pub trait Rule {
    /// The unit of a packet of `flow` that arrives at `now`.
    fn place(&mut self, now: u64, flow: u32, bytes: u32) -> Choice;
    /// Called every [`crate::world::TICK_NS`], before the packets of that moment.
    fn tick(&mut self, now: u64, report: &Report);
    /// Bit i: unit i takes new flowlets.
    fn accepting(&self) -> u64;
    /// Whether `place` has to know the queues at every packet: [`Rule::see`] is called before it.
    fn looks(&self) -> bool {
        false
    }
    /// The queues at the moment of the next packet, for rules that look.
    fn see(&mut self, _backlog_ns: &[u64]) {}
}
