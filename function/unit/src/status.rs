//! The status that a unit reports on its control socket.

use pando_handover::UnitId;
use pando_meter::Billed;
use pando_outlog::Durability;
use pando_rules::Force;
use pando_walls::cgroup::Limits;
use serde::{Deserialize, Serialize};

/// Status that a unit reports on its control socket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Name of the unit.
    pub name: String,
    /// The tenant that pays.
    pub tenant: String,
    /// Id of its process.
    pub pid: u32,
    /// Number of starts so far.
    pub epoch: u32,
    /// Devices that the unit serves.
    pub devices: Vec<String>,
    /// Limits of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Number of its rules in force, if it has an IDS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Force>,
    /// Device and kernel interface of each port.
    #[serde(default)]
    pub ways: Vec<String>,
    /// Seconds since the start.
    pub seconds: f64,
    /// Work of each function.
    pub functions: Vec<Billed>,
    /// Packets per fate: passed, dropped, trapped, unseen, no_room, too_long, held, incomplete.
    /// Held fragments waited for the rest of their datagram. Incomplete fragments were dropped, at
    /// once or because the rest did not arrive.
    pub fates: Vec<(String, u64)>,
    /// Packets that the kernel could not deliver because the unit was too slow. In a group, also
    /// the packets that it refused.
    pub lost: u64,
    /// Packets that the device did not take.
    pub unsent: u64,
    /// Flows with state.
    pub flows: usize,
    /// Flows without an answer that new flows replaced in the full table.
    #[serde(default)]
    pub replaced: u64,
    /// Time from the kernel's receipt to sending, in nanoseconds: p50, p75, p99.
    pub latency_ns: [u64; 3],
    /// The last trap of each function that had one.
    pub traps: Vec<String>,
    /// Work of its output log, if it has one.
    pub durability: Option<Durability>,
    /// Counts of its handovers with the other units of its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverStatus>,
    /// Status of a group: its units, and the counts of steering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<serde_json::Value>,
}

/// One unit's counts of the states that the group's units exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverStatus {
    /// The unit's number in the group.
    pub unit: UnitId,
    /// Assignments that began with the state already here.
    pub seamless: u64,
    /// Assignments that began with a pull.
    pub pulled: u64,
    /// … of which some packets sent to the old owner never reached it.
    pub with_gap: u64,
    /// … of which the deadline passed: the flow continued with an older state, or none.
    pub gave_up: u64,
    /// Packets missing from the states with which assignments began. They never reached their unit,
    /// or it died with their changes.
    pub updates_lost: u64,
    /// Refused packets: repeated, or of a past assignment. They also count among the unit's lost
    /// ones.
    pub stale: u64,
    /// Packets that found no room because too many waited. They also count among the lost ones.
    #[serde(default)]
    pub overflow: u64,
    /// States pushed ahead.
    pub pushes: u64,
    /// Pushes to units that had the state: only its fingerprint.
    pub unchanged: u64,
    /// Bytes of all pushes.
    pub pushed_bytes: u64,
    /// Bytes of all other messages.
    pub pulled_bytes: u64,
    /// Messages that found no room.
    pub unsent: u64,
    /// States sent to the output log.
    pub kept: u64,
    /// … not sent, because the log was gone or did not read. They follow with the flow's next
    /// packet, or to the next log.
    pub unkept: u64,
    /// Packets without a readable header.
    pub headless: u64,
    /// Packets that wait for state now.
    pub held: usize,
    /// Bytes of the received packets, for comparison with the other byte counts.
    pub payload_bytes: u64,
}
