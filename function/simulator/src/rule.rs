//! Rules that assign a unit to each packet.

pub mod activation;
pub mod paper;
pub mod per_flow;
pub mod star;

/// The place of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its unit.
    pub unit: u16,
    /// Whether it begins a flowlet.
    pub begins: bool,
    /// Bit i: the state is pushed to unit i when the flow pauses.
    pub targets: u64,
}

/// The figures that units report to user space at a tick; a rule may use no others.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Work of each unit in nanoseconds, including held packets.
    pub backlog_ns: Vec<u64>,
    /// Bytes that each unit has finished so far.
    pub drained_bytes: Vec<u64>,
}

/// A rule of assignment. It decides for each packet and receives a report at each tick.
pub trait Rule {
    /// Returns the unit of a packet of `flow` that arrives at `now`.
    fn place(&mut self, now: u64, flow: u32, bytes: u32) -> Choice;
    /// Called every [`crate::world::TICK_NS`], before the packets of that moment.
    fn tick(&mut self, now: u64, report: &Report);
    /// Bit i: unit i takes new flowlets.
    fn accepting(&self) -> u64;
    /// Whether `place` needs the queues of every packet. If so, [`Rule::see`] runs before it.
    fn looks(&self) -> bool {
        false
    }
    /// Receives the queues at the moment of the next packet, for rules that need them.
    fn see(&mut self, _backlog_ns: &[u64]) {}
}
