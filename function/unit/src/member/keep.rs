//! A unit's side of its group's output log. A packet leaves only after the log has its flow's
//! state.
//!
//! A message in the ring to the log is in memory that outlives the unit, so the unit need not wait
//! for an answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pando_flow::FlowKey;
use pando_group::service::Packet;
use pando_handover::{Message, UnitId};

use super::{Carried, Member};

/// A log that reads nothing for this long is no longer waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// Pause before the next try on a full ring.
const AGAIN: Duration = Duration::from_micros(100);
/// Bytes of states in one message.
const TOLD_BYTES: usize = 16 << 10;

impl Member {
    /// Sends the log the states of the flows of these processed packets.
    pub(super) fn keep(&mut self, packets: &[Packet]) {
        let Some(log) = self.log() else { return };
        let mut clocks: BTreeMap<FlowKey, Vec<u64>> = BTreeMap::new();
        for packet in packets {
            clocks.entry(packet.steered.key).or_default().push(packet.steered.header.clock);
        }
        let states = Carried(&mut self.unit.chain);
        let messages = clocks
            .iter()
            .filter_map(|(key, clocks)| self.handover.keep(key, clocks, &states))
            .collect();
        self.tell(log, messages);
    }

    /// Sends a new log the states of all flows.
    pub(super) fn refill(&mut self) {
        if let Some(log) = self.log() {
            let messages = self.handover.keep_all(&Carried(&mut self.unit.chain));
            self.tell(log, messages);
        }
    }

    /// Returns the log, unless this unit is the log.
    fn log(&self) -> Option<UnitId> {
        self.group.log.filter(|&log| log != self.group.id)
    }

    fn tell(&mut self, log: UnitId, messages: Vec<Message>) {
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let (mut bytes, mut states) = (Vec::new(), 0);
            while let Some(message) = messages.next_if(|_| bytes.len() < TOLD_BYTES) {
                message.encode(&mut bytes);
                states += 1;
            }
            let since = Instant::now();
            while !self.group.transport.send(log, &bytes) {
                if self.group.shared.alive() >> log & 1 == 0 || since.elapsed() > PATIENCE {
                    self.status.unkept += states;
                    states = 0;
                    break;
                }
                std::thread::sleep(AGAIN);
            }
            self.status.kept += states;
            self.status.pushed_bytes += bytes.len() as u64;
        }
    }
}
