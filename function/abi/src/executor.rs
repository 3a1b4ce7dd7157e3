//! An executor runs a function: WebAssembly in a unit, C compiled for the host in comparisons.

use crate::Descriptor;

/// Reason why a call did not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// The call used more fuel or processor time than its limit.
    #[error("ran for longer than its limit")]
    Limit,
    /// Any other trap of WebAssembly, with its message.
    #[error("trapped: {0}")]
    Fault(String),
}

/// A function that is ready for batches.
pub trait Executor {
    /// Returns the layout of the function's memory.
    fn descriptor(&self) -> &Descriptor;

    /// Returns the function's memory and its descriptor.
    fn memory(&mut self) -> (&mut [u8], &Descriptor);

    /// Returns the function's memory for reading.
    fn memory_ref(&self) -> &[u8];

    /// Processes the batch of `count` packets in memory. Its bytes are worth `shares` packets of
    /// the usual size.
    fn process(&mut self, count: usize, shares: usize) -> Result<(), Trap>;

    /// Returns the fuel burnt since the last call of this method. Counts batches, trapped batches
    /// and each start.
    fn take_fuel(&mut self) -> u64;

    /// Starts and configures the function anew, for example after a [`Trap`]. Nothing that it wrote
    /// remains.
    fn renew(&mut self) -> Result<(), Trap>;
}
