//! The unit: one single-threaded executor of network functions (SNF §3, "NF runtime").
//!
//! A function is WebAssembly and sees only a batch of packets and the state of their flows. The
//! unit owns that state, the numbers leased to flows, and the clock. If a function traps, loops or
//! corrupts its memory, the unit discards that memory. Only the flow at fault is affected.
//!
//! This crate joins the others: [`unit::Unit`] is the loop of a unit by itself, and
//! [`member::Member`] the loop of a unit in a group. The chain is the core and does no I/O.

mod events;
pub mod member;
pub mod status;
pub mod unit;
