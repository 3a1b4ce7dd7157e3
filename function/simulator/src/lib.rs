//! Simulates network functions in virtual time: overlaid captures, units that serve packets, state
//! that moves, and the rules that assign flowlets to units. It is deterministic: the same captures,
//! seeds and options give the same figures. It never touches a network.

pub mod bench;
pub mod capture;
pub mod replication;
pub mod report;
pub mod rule;
pub mod unit;
pub mod workload;
pub mod world;
