//! The heart of far memory: which page is where, what leaves next, what is fetched along, and what goes over the wire.
//!
//! It decides and remembers; it never does I/O, never allocates and never locks. Whoever links it (the Linux pager
//! beside it, or a library OS) gives it memory as slices, serialises the calls, and carries the decisions out.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod blocks;
mod extent;
pub mod fifo;
pub mod heart;
pub mod page;
pub mod poll;
pub mod prefetch;
pub mod slots;
pub mod spans;
pub mod stats;
pub mod wire;

/// Bytes of a page, a frame and a slot.
pub const PAGE_BYTES: usize = 4096;

/// Most pages that one request may name; a batch of this size is 2 MiB.
pub const BATCH_PAGES_MAX: usize = 512;

/// Fingerprint of one page under the pager's secret seed.
///
/// It has two uses: a fetched page whose fingerprint differs was not what this pager stored (a memory host that lies
/// or fails), and a page on its way out whose fingerprint is that of its slot needs no write. The second makes dirty
/// tracking free of write faults; a changed page passes for a clean one with probability 2^-64 per eviction.
pub fn fingerprint(page: &[u8], seed: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, page)
}
