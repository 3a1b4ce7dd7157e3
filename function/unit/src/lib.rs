//! The unit: one single-threaded executor of network functions (SNF §3, "NF runtime").
//!
//! A function is WebAssembly and sees only a batch of packets and the state of their flows. The
//! unit owns that state, the numbers leased to flows, and the clock. If a function traps, loops or
//! corrupts its memory, the unit discards that memory. Only the flow at fault is affected.
//!
//! [`chain::Chain`] is the core and does no I/O. AF_PACKET, AF_XDP, pcap, sockets and files are in
//! modules of their own.

pub mod member;
pub mod unit;
