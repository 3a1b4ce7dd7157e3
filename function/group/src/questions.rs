//! The questions that other units have not read yet. They are not asked again.
//!
//! The protocol repeats a question because its answer may be lost. A descheduled unit has lost
//! nothing. A ring full of repeated questions of a thousand flows would have no room for the next
//! question.

use std::collections::HashMap;

use pando_flow::FlowKey;
use pando_handover::{Message, UnitId};

use super::transport::Transport;

/// Per flow: the unit asked, the epoch, and the write position towards the unit after the question.
#[derive(Default)]
pub struct Questions(HashMap<FlowKey, Vec<(UnitId, u32, u64)>>);

impl Questions {
    /// Reports whether the receiver still has to read the same question.
    pub fn is_open(&self, to: UnitId, message: &Message, way: &dyn Transport) -> bool {
        let Message::Pull { key, epoch, .. } = message else { return false };
        let asked = self.0.get(key).into_iter().flatten();
        asked
            .filter(|asked| (asked.0, asked.1) == (to, *epoch))
            .any(|asked| way.is_unread(to, asked.2))
    }

    /// Notes that the message was sent.
    pub fn sent(&mut self, to: UnitId, message: &Message, way: &dyn Transport) {
        if let Message::Pull { key, epoch, .. } = message
            && let Some(written) = way.written(to)
        {
            let asked = self.0.entry(*key).or_default();
            asked.retain(|asked| asked.0 != to);
            asked.push((to, *epoch, written));
        }
    }

    /// Forgets the questions of a flow that no longer waits.
    pub fn answered(&mut self, key: &FlowKey) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::{SharedMemory, tests::ends};
    use super::*;

    /// A thousand flows ask a hanging unit repeatedly. Each question is in the ring once. It is
    /// asked again after the unit has read it.
    #[test]
    fn who_hangs_is_asked_once() {
        let ([mut asker, mut hangs], mut questions) = (ends(), Questions::default());
        let mut ask = |asker: &mut SharedMemory, epoch| {
            for flow in 0..1000u32 {
                let mut bytes = [0; FlowKey::LENGTH_BYTES];
                bytes[..4].copy_from_slice(&flow.to_le_bytes());
                let message =
                    Message::Pull { key: FlowKey::from_bytes(bytes), epoch, clock: 7, previous: 1 };
                if !questions.is_open(1, &message, asker) {
                    let mut bytes = Vec::new();
                    message.encode(&mut bytes);
                    assert!(asker.send(1, &bytes), "the ring is full");
                    questions.sent(1, &message, asker);
                }
            }
        };
        for _ in 0..50 {
            ask(&mut asker, 2);
        }
        let mut came = Vec::new();
        hangs.receive(&mut came);
        assert_eq!(came.len(), 1000);
        ask(&mut asker, 2);
        ask(&mut asker, 3); // a question of another epoch is a new one
        hangs.receive(&mut came);
        assert_eq!(came.len(), 3000);
    }
}
