//! The protocol by which the units of a function hand over the state of flows (SNF §5).
//!
//! Everything here is pure: no clock, no socket, no randomness. Time comes in as nanoseconds of one
//! monotonic clock, and messages go out as values. A unit and a simulator can thus run the same
//! code.
//!
//! A flow's state is *owned* by one unit at a time. The steering program numbers the packets of a
//! flow (its logical *clock*) and its assignments (its *epoch*). Both travel in the [`Header`]
//! before each packet.

pub mod handover;
pub mod header;
mod held;
mod keep;
mod members;
pub mod message;
mod owner;
mod push;
mod seen;

pub use handover::{Admission, Effect, Handover, States, Timing};
pub use header::{Header, HeaderError, Steered};
pub use message::Message;

/// Number of a unit within its group of at most [`UNITS_MAX`].
pub type UnitId = u16;

/// The most units of one group: the size of the bit set of replica targets.
pub const UNITS_MAX: usize = 64;

/// "No unit": the previous unit of a new flow.
pub const NO_UNIT: UnitId = u16::MAX;
