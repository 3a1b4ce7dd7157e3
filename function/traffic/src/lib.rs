//! Packets for tests, demos and benchmarks: captures, generated traffic, copies of flows, and
//! stamps that measure loss and latency. It never opens a device.

pub mod copies;
mod generate;
pub mod pcap;
pub mod random;
pub mod stamp;

pub use generate::{Made, Shape, generate};
