//! The interface of every transport of pages, and how long a transfer waits for a memory host.

use memory_core::wire::Status;

/// How long a host may be silent if another copy can answer, ns.
pub const SHORT: u64 = 15_000_000;
/// How long an acknowledgement may take before the host is given up, and how long the first attempt
/// to read the only copy waits, ns.
pub const LONG: u64 = 250_000_000;

/// Why a transfer failed. Its connection is closed, so that a late answer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The connection was refused or ended: the host's process is gone, and its memory with it.
    Away,
    /// No answer for this long, ns: the host is busy or paused, or the link is down. Its memory may
    /// be intact.
    Silent(u64),
    /// The host refused. A new connection would not help.
    Refused(Status),
}

/// Watches how long ports wait for their hosts.
pub trait Watch: Sync {
    /// Reports that a port has waited for a host for `ns`.
    fn waits(&self, host: usize, ns: u64);
    /// Reports that a write to a host is slow.
    fn waits_to_write(&self, host: usize);
    /// Whether a write that began at `begun_ns`, and has waited for `ns`, stops waiting for a host.
    /// Asked once its patience has ended.
    fn gives_up(&self, host: usize, begun_ns: u64, ns: u64) -> bool;
}

/// A transport of pages. A read has two steps, so that the caller can use the wait between them. A
/// write has two, so that writes to all copies run at once. RDMA verbs could be a third
/// implementation.
pub trait Transport {
    /// Requests slots.
    fn begin_read(&mut self, slots: &[u32]) -> Result<(), Broken>;
    /// Waits until the slots are in these pages of memory.
    fn end_read(&mut self, slots: &[u32], into: &[*mut u8]) -> Result<(), Broken>;
    /// Sends pages to slots.
    fn begin_write(&mut self, slots: &[u32], from: &[*mut u8]) -> Result<(), Broken>;
    /// Waits until the pages are stored.
    fn end_write(&mut self) -> Result<(), Broken>;
}
