//! Network functions in virtual time: captures laid over each other, units that serve packets, state that travels, and
//! the rules that decide which unit a flowlet goes to. It is deterministic: the same captures, seeds and options give
//! the same figures. It never touches a network.

pub mod bench;
pub mod capture;
pub mod replication;
pub mod report;
pub mod rule;
pub mod unit;
pub mod workload;
pub mod world;
