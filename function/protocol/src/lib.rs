//! How the units of a function hand the state of flows to each other (SNF §5).
//!
//! Everything here is pure: no clock, no socket, no randomness. Time comes in as nanoseconds of one monotonic clock,
//! what is to be sent goes out as a value, so that a unit and a simulator can run the same code.
//!
//! A flow's state is *owned* by one unit at a time. The steering program numbers the packets of a flow (its logical
//! *clock*) and its assignments (its *epoch*); both travel in the [`Header`] in front of each packet.

pub mod flow;
pub mod handover;
pub mod header;
mod held;
mod keep;
mod members;
pub mod message;
mod owner;
mod push;
pub mod random;
mod seen;

pub use flow::{Direction, FlowKey};
pub use handover::{Admission, Effect, Handover, States, Timing};
pub use header::{Header, HeaderError, Steered};
pub use message::Message;

/// Number of a unit within its group of at most [`UNITS_MAX`].
pub type UnitId = u16;

/// Units of one group: what fits into the bit set of replica targets.
pub const UNITS_MAX: usize = 64;

/// "No unit": the previous unit of a new flow.
pub const NO_UNIT: UnitId = u16::MAX;
