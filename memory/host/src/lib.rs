//! The memory host: lends memory in leases and serves batched reads and writes of it.
//!
//! It never reads the content of the memory, never writes it to disk, and gives every lease memory
//! that reads as zeros. A lease ends some seconds after its last connection; its memory then
//! returns to the system.

#![warn(missing_docs)]

mod admission;
mod inbox;
mod lease;
mod serve;

pub use admission::{Admission, Borrower};
pub use lease::{Lease, Leases, Loan};
pub use serve::{Address, Server, greet};
