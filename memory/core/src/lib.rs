//! The core of far memory: the place of each page, the next page to leave, the pages to prefetch,
//! and the wire format.
//!
//! It makes decisions and keeps records. It never does I/O, never allocates and never locks. Its
//! user (the Linux pager beside it, or a library OS) gives it memory as slices, serialises the
//! calls, and carries out the decisions.

#![warn(missing_docs)]
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod blocks;
mod extent;
pub mod fifo;
pub mod heart;
pub mod page;
pub mod poll;
pub mod prefetch;
pub mod seal;
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
/// It has two uses. A fetched page with another fingerprint is not the page that this pager stored:
/// the memory host lies or fails. A page on its way out with the fingerprint of its slot needs no
/// write. So dirty tracking needs no write faults. A changed page passes for a clean one with
/// probability 2^-64 per eviction.
pub fn fingerprint(page: &[u8], seed: u64) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(seed, page)
}
