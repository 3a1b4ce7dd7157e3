//! The output log: what outlives a unit (SNF §6).
//!
//! A unit hands each batch (the packets that go out, what changed in the state of their flows, the totals of its bill,
//! how far it is in its devices' rings) to a log in another process before any packet of the batch leaves. When the
//! unit dies, a [`standby`] that waits beside it takes the state from the log, sends again what the log holds and the dead
//! unit may not have sent, and goes on with the next frame of the ring.
//!
//! ```text
//!          ring of the device (the kernel's; its descriptor outlives the unit)
//!             │ frames                                     ▲ released when their batch has left
//!             ▼                                            │
//!   unit: process ──► append to the log ──► bill ──► send ─┘
//!                         │ shared memory: kept as soon as it is written, for the log holds the memory
//!                         │ TCP: kept when the log has said so
//!                         ▼
//!   log: a copy of every flow's state, and the last batch whole ──► standby: state as it changes; the rest from memory, or asked for
//! ```
//!
//! The unit itself sends, not the log as in the paper: what is in the log's memory survives the unit, so there is nothing
//! to wait for. A batch that is not in the log is still in the ring and is processed again, from the state before it; a
//! batch that is in the log is never processed again. So a crash loses no packet, and at most one batch leaves twice.
//!
//! The standby follows the log while it waits: every few milliseconds it gets the state of the flows that changed. What the
//! unit wrote since it reads itself when the unit is dead ([`tail`]); of a log on another host, or of one that it has not kept
//! up with, it asks for that.
//!
//! Nothing here protects from the death of unit, log and standby together: the state is lost then, which is said and counted.

pub mod behind;
pub mod copy;
pub mod hold;
pub mod journal;
pub mod link;
pub mod orders;
pub mod record;
pub mod ring;
pub mod server;
pub mod standby;
pub mod tail;
pub mod vitals;

/// Where a unit is in the rings of its devices: frames that it has finished with.
pub type Positions = [u64; 2];

use serde::{Deserialize, Serialize};
use vitals::{Count, Vitals};

/// What the output log did for a unit, over all its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durability {
    /// Units that died and were followed by their standby.
    pub takeovers: u64,
    /// Packets that were sent again, because nobody knew whether they had left.
    pub sent_again: u64,
    /// Packets that were dropped before the functions, because two units died on their batch.
    pub dropped: u64,
    /// Takeovers for which the log had to be asked, because the standby did not find in memory what the unit had written last.
    pub asked: u64,
    /// Takeovers without state, because the log could not be asked either.
    pub state_lost: u64,
    /// Batches that the log keeps and that the standby has not heard of: a few, while packets come.
    pub behind: u64,
    /// Logs that were filled from the unit: the first, and one for each that was lost.
    pub refills: u64,
    /// Nanoseconds in which packets waited for a log.
    pub held_ns: u64,
    /// Of the last takeover: from noticing the death until the state was there.
    pub transfer_ns: u64,
    /// Of the last takeover: from noticing the death until the first packet was sent.
    pub first_packet_ns: u64,
}

impl Durability {
    /// What the page says now.
    pub fn read(vitals: &Vitals) -> Durability {
        Durability {
            takeovers: vitals.count(Count::Takeovers),
            sent_again: vitals.count(Count::SentAgain),
            dropped: vitals.count(Count::Dropped),
            asked: vitals.count(Count::Asked),
            state_lost: vitals.count(Count::StateLost),
            behind: vitals.behind(),
            refills: vitals.count(Count::Refills),
            held_ns: vitals.count(Count::HeldNs),
            transfer_ns: vitals.count(Count::TransferNs),
            first_packet_ns: vitals.count(Count::FirstPacketNs),
        }
    }
}
