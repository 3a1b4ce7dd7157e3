//! A unit's side of its group's output log: nothing leaves whose state the log has not been told.
//!
//! What is in the ring to the log is in memory that outlives the unit, so there is nothing to wait for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pando_protocol::{FlowKey, Message, UnitId};

use super::service::Packet;
use super::{Carried, Member};

/// A log that does not read for so long is not waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a full ring is tried again.
const AGAIN: Duration = Duration::from_micros(100);
/// Bytes of states that are told at once.
const TOLD_BYTES: usize = 16 << 10;

impl Member {
    /// Tells the log what these packets, which have been processed, made of their flows.
    pub(super) fn keep(&mut self, packets: &[Packet]) {
        let Some(log) = self.log() else { return };
        let mut clocks: BTreeMap<FlowKey, Vec<u64>> = BTreeMap::new();
        for packet in packets {
            clocks.entry(packet.steered.key).or_default().push(packet.steered.header.clock);
        }
        let states = Carried(&mut self.unit.chain);
        let messages = clocks.iter().filter_map(|(key, clocks)| self.handover.keep(key, clocks, &states)).collect();
        self.tell(log, messages);
    }

    /// Tells a log that is new the states of all flows.
    pub(super) fn refill(&mut self) {
        if let Some(log) = self.log() {
            let messages = self.handover.keep_all(&Carried(&mut self.unit.chain));
            self.tell(log, messages);
        }
    }

    /// The log, unless this unit is it.
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
