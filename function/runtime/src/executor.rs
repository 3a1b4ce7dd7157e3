//! What runs a function: WebAssembly in a unit, the C compiled for the host in comparisons.

use crate::abi::Descriptor;

/// Why a call did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// Used more fuel or more processor time than one call may.
    #[error("ran for longer than its limit")]
    Limit,
    /// Any other trap of WebAssembly, with its words.
    #[error("trapped: {0}")]
    Fault(String),
}

/// A function that is ready to take batches.
pub trait Executor {
    /// Where things are in its memory.
    fn descriptor(&self) -> &Descriptor;

    /// Its memory, and its descriptor beside it.
    fn memory(&mut self) -> (&mut [u8], &Descriptor);

    /// Its memory, for reading.
    fn memory_ref(&self) -> &[u8];

    /// Processes the batch of `count` packets that is in memory, whose bytes are worth `shares` packets of the usual size.
    fn process(&mut self, count: usize, shares: usize) -> Result<(), Trap>;

    /// Takes the fuel that was burnt since this was called last: by batches, by those that trapped, and by each start.
    fn take_fuel(&mut self) -> u64;

    /// Makes it as new, as after [`Trap`]: nothing that the function wrote is left but its configuration.
    fn renew(&mut self) -> Result<(), Trap>;
}
