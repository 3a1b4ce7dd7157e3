//! Which questions other units have not read yet: those are not asked again.
//!
//! The protocol repeats a question whose answer may be lost. A unit that is descheduled has lost nothing, and a ring full of the
//! same questions of a thousand flows would have no room for the next one.

use std::collections::HashMap;

use pando_protocol::{FlowKey, Message, UnitId};

use super::transport::Transport;

/// By flow: who was asked, for which epoch, and how far the way to it was written then.
#[derive(Default)]
pub struct Questions(HashMap<FlowKey, Vec<(UnitId, u32, u64)>>);

impl Questions {
    /// Whether this message asks what its receiver has still to read.
    pub fn is_open(&self, to: UnitId, message: &Message, way: &dyn Transport) -> bool {
        let Message::Pull { key, epoch, .. } = message else { return false };
        let asked = self.0.get(key).into_iter().flatten();
        asked.filter(|asked| (asked.0, asked.1) == (to, *epoch)).any(|asked| way.is_unread(to, asked.2))
    }

    /// The message was sent.
    pub fn sent(&mut self, to: UnitId, message: &Message, way: &dyn Transport) {
        if let Message::Pull { key, epoch, .. } = message
            && let Some(written) = way.written(to)
        {
            let asked = self.0.entry(*key).or_default();
            asked.retain(|asked| asked.0 != to);
            asked.push((to, *epoch, written));
        }
    }

    /// The flow waits no more.
    pub fn answered(&mut self, key: &FlowKey) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::{SharedMemory, tests::ends};
    use super::*;

    /// A thousand flows ask a unit that hangs, again and again; each question is there once, and is asked again when it was read.
    #[test]
    fn who_hangs_is_asked_once() {
        let ([mut asker, mut hangs], mut questions) = (ends(), Questions::default());
        let mut ask = |asker: &mut SharedMemory, epoch| {
            for flow in 0..1000u32 {
                let mut bytes = [0; FlowKey::LENGTH_BYTES];
                bytes[..4].copy_from_slice(&flow.to_le_bytes());
                let message = Message::Pull { key: FlowKey::from_bytes(bytes), epoch, clock: 7, previous: 1 };
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
        ask(&mut asker, 3); // of another epoch it is another question
        hangs.receive(&mut came);
        assert_eq!(came.len(), 3000);
    }
}
