//! The output log keeps the state of a unit when the unit dies (SNF §6).
//!
//! A unit hands each batch to a log in another process before any packet of the batch leaves. A
//! batch holds the outgoing packets, the changed flow state, the totals of the bill and the
//! positions in the rings of the devices. When the unit dies, a waiting [`standby`] takes over. It
//! takes the state from the log and sends the packets again that the dead unit may not have sent.
//! It continues with the next frame of the ring.
//!
//! ```text
//!          ring of the device (the kernel's; its descriptor outlives the unit)
//!             │ frames                                     ▲ released when their batch has left
//!             ▼                                            │
//!   unit: process ──► append to the log ──► bill ──► send ─┘
//!                         │ shared memory: kept as soon as it is written; the log holds the memory
//!                         │ TCP: kept when the log has acknowledged it
//!                         ▼
//!   log: a copy of every flow's state, and the last batch whole
//!                         │
//!                         ▼
//!   standby: receives state as it changes; reads the rest from memory, or asks the log for it
//! ```
//!
//! The unit sends the packets itself; in the paper the log does. The log's memory survives the
//! unit, so the unit need not wait. A batch that is not in the log is still in the ring and is
//! processed again, from the state before it. A batch in the log is never processed again. A crash
//! therefore loses no packet, and at most one batch leaves twice.
//!
//! The standby follows the log while it waits. Every few milliseconds it receives the state of the
//! changed flows. After the unit's death it reads the unit's latest writes itself ([`tail`]). It
//! asks the log instead if the log is on another host or if it has fallen too far behind.
//!
//! A log on another host outlives the host of its unit. The first unit of a new run, anywhere,
//! takes up the state that the run before left there ([`begin`]).
//!
//! The log does not protect against the death of unit, log and standby together. The state is lost
//! then, and the loss is reported and counted.

pub mod answer;
pub mod begin;
pub mod behind;
pub mod copy;
pub mod hold;
pub mod journal;
pub mod keys;
pub mod link;
pub mod orders;
pub mod record;
pub mod ring;
pub mod sealed;
pub mod server;
pub mod standby;
pub mod stream;
pub mod tail;
pub mod transport;
pub mod vitals;

use serde::{Deserialize, Serialize};

pub use vitals::Positions;
use vitals::{Count, Vitals};

/// Counts of the output log for one unit, over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durability {
    /// Units that died and were replaced by their standby.
    pub takeovers: u64,
    /// Packets sent again because they may not have left before the death.
    pub sent_again: u64,
    /// Packets dropped before the functions because two units died on their batch.
    pub dropped: u64,
    /// Takeovers that asked the log because the unit's last writes were not found in memory.
    pub asked: u64,
    /// Takeovers without state because the log could not be asked.
    pub state_lost: u64,
    /// Batches that the log keeps and the standby does not have. A few are normal under traffic.
    pub behind: u64,
    /// Logs filled from the unit: the first, and one for each lost log.
    pub refills: u64,
    /// Packets that left without a log, because it was away for longer than the unit waits.
    #[serde(default)]
    pub unlogged: u64,
    /// Flows that the first unit took up from the log. A run before, on any host, had left them.
    #[serde(default)]
    pub taken_up: u64,
    /// Nanoseconds in which packets waited for a log.
    pub held_ns: u64,
    /// Nanoseconds of the last takeover, from noticing the death until the state was restored.
    pub transfer_ns: u64,
    /// Nanoseconds of the last takeover, from noticing the death until the first packet was sent.
    pub first_packet_ns: u64,
}

impl Durability {
    /// Returns the current counts of the page.
    pub fn read(vitals: &Vitals) -> Durability {
        Durability {
            takeovers: vitals.count(Count::Takeovers),
            sent_again: vitals.count(Count::SentAgain),
            dropped: vitals.count(Count::Dropped),
            asked: vitals.count(Count::Asked),
            state_lost: vitals.count(Count::StateLost),
            behind: vitals.behind(),
            refills: vitals.count(Count::Refills),
            unlogged: vitals.count(Count::Unlogged),
            taken_up: vitals.count(Count::TakenUp),
            held_ns: vitals.count(Count::HeldNs),
            transfer_ns: vitals.count(Count::TransferNs),
            first_packet_ns: vitals.count(Count::FirstPacketNs),
        }
    }
}
