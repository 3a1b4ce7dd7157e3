//! The memory host: lends memory in leases and serves batched reads and writes of it.
//!
//! It never looks at what it holds, never writes it to disk, and gives every lease memory that reads as zeros. A lease
//! ends some seconds after the last connection to it; its memory then goes back to the system.

mod inbox;
mod lease;
mod serve;

pub use lease::{Lease, Leases, Loan};
pub use serve::{Address, Server};
