//! The unit: one single-threaded executor of network functions (SNF §3, "NF runtime").
//!
//! A function is WebAssembly and sees nothing but a batch of packets and the state of their flows. The unit owns that
//! state, the numbers that it leases to flows, and the clock; so a function that traps, loops or writes where it should
//! not is thrown away with its memory, and no flow but the one at fault notices.
//!
//! [`chain::Chain`] is the core and does no I/O; what touches the outside is beside it: AF_PACKET, AF_XDP, pcap, sockets, files.

/// As `eprintln!`, which panics where it cannot write: a log without room ends no unit.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

pub mod abi;
pub mod cgroup;
pub mod chain;
pub mod checksum;
pub mod copies;
pub mod ends;
pub mod executor;
pub mod flows;
pub mod fragments;
pub mod latency;
pub mod leases;
pub mod log;
pub mod member;
pub mod meter;
pub mod module;
pub mod offload;
pub mod packet;
pub mod pcap;
pub mod port;
pub mod rules;
pub mod sandbox;
pub mod stamp;
pub mod traffic;
pub mod unit;
mod wasi;
pub mod xdp;
