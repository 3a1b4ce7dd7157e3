//! The parts of a unit of a group: the memory that the units share, their messages, and the packets
//! in the order of the virtual clock. The unit's loop joins them.

pub mod chaos;
pub mod questions;
pub mod service;
pub mod shared;
pub mod store;
pub mod transport;
