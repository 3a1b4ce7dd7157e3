//! What units say to each other about flows, and how it stands on the wire.

use std::ops::Range;

use crate::{FlowKey, UnitId};

/// The state of a flow as a unit wrote it down; only units read it.
pub type Snapshot = Vec<u8>;

/// One message about one flow. Several travel in one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The flow fell silent: here is its state, should it come to you next (§5.2.1).
    Push {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The last packet that the state knows of.
        clock: u64,
        /// Packets before it that may still come to the sender: with any, the state must not be used without asking.
        holes: u32,
        /// The state.
        state: Snapshot,
    },
    /// As [`Message::Push`], but the state is still what was pushed with clock `since`.
    Unchanged {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The last packet that the state knows of.
        clock: u64,
        /// As above.
        holes: u32,
        /// Clock of the push before.
        since: u64,
    },
    /// The flow is mine from `epoch` on: give me its state as of `clock`, and touch it no more (§5.2.1, §5.3).
    Pull {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The clock before that epoch.
        clock: u64,
        /// The unit to which the packets of the epoch before were sent.
        previous: UnitId,
    },
    /// The answer to a pull.
    Answer {
        /// The flow.
        key: FlowKey,
        /// Epoch of the pull.
        epoch: u32,
        /// The epoch in which the sender owned that state; one less than `epoch`: nobody has a newer one.
        owned: u32,
        /// The last packet that the state knows of.
        clock: u64,
        /// The state; `None`: unknown here.
        state: Option<Snapshot>,
    },
}

/// Why bytes are not messages.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("state message: broken at byte {0}")]
pub struct MessageError(pub usize);

impl Message {
    /// The flow that it is about.
    pub fn key(&self) -> &FlowKey {
        match self {
            Message::Push { key, .. } | Message::Unchanged { key, .. } | Message::Pull { key, .. } | Message::Answer { key, .. } => key,
        }
    }

    /// Whether it comes unasked, ahead of packets that may need it: it is to be heard before them, and nobody waits for it.
    pub fn is_ahead(&self) -> bool {
        matches!(self, Message::Push { .. } | Message::Unchanged { .. })
    }

    /// Appends it to a datagram. All numbers are little endian.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut head = |kind: u8, key: &FlowKey, epoch: u32, clock: u64| {
            let short = is_short(key);
            to.push(kind | if short { SHORT } else { 0 });
            let bytes = key.as_bytes();
            if short {
                SHORT_PARTS.into_iter().for_each(|part| to.extend_from_slice(&bytes[part]));
            } else {
                to.extend_from_slice(bytes);
            }
            to.extend(epoch.to_le_bytes());
            to.extend(clock.to_le_bytes());
        };
        match self {
            Message::Push { key, epoch, clock, holes, state } => {
                head(1, key, *epoch, *clock);
                to.extend(holes.to_le_bytes());
                to.extend((state.len() as u16).to_le_bytes());
                to.extend(state);
            }
            Message::Unchanged { key, epoch, clock, holes, since } => {
                head(2, key, *epoch, *clock);
                to.extend(holes.to_le_bytes());
                to.extend(since.to_le_bytes());
            }
            Message::Pull { key, epoch, clock, previous } => {
                head(3, key, *epoch, *clock);
                to.extend(previous.to_le_bytes());
            }
            Message::Answer { key, epoch, owned, clock, state } => {
                head(if state.is_some() { 4 } else { 5 }, key, *epoch, *clock);
                to.extend(owned.to_le_bytes());
                if let Some(state) = state {
                    to.extend((state.len() as u16).to_le_bytes());
                    to.extend(state);
                }
            }
        }
    }

    /// Reads all messages of a datagram.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Message>, MessageError> {
        let mut from = Reader { bytes, at: 0 };
        let mut messages = Vec::new();
        while from.at < bytes.len() {
            let start = from.at;
            messages.push(from.message().ok_or(MessageError(start))?);
        }
        Ok(messages)
    }
}

/// Bit of a message's kind: of its key there is only what IPv4 does not leave empty.
const SHORT: u8 = 0x80;
const SHORT_PARTS: [Range<usize>; 3] = [0..4, 16..22, 34..FlowKey::LENGTH_BYTES];

fn is_short(key: &FlowKey) -> bool {
    let bytes = key.as_bytes();
    bytes[4..16].iter().chain(&bytes[22..34]).all(|&byte| byte == 0)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let part = self.bytes.get(self.at..self.at + N)?.try_into().ok()?;
        self.at += N;
        Some(part)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn state(&mut self) -> Option<Snapshot> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let state = self.bytes.get(self.at..self.at + length)?.to_vec();
        self.at += length;
        Some(state)
    }

    fn key(&mut self, short: bool) -> Option<FlowKey> {
        if !short {
            return self.array().map(FlowKey::from_bytes).filter(|key| !is_short(key));
        }
        let mut bytes = [0; FlowKey::LENGTH_BYTES];
        for part in SHORT_PARTS {
            let from = self.bytes.get(self.at..self.at + part.len())?;
            self.at += part.len();
            bytes[part].copy_from_slice(from);
        }
        Some(FlowKey::from_bytes(bytes))
    }

    fn message(&mut self) -> Option<Message> {
        let [kind] = self.array()?;
        let key = self.key(kind & SHORT != 0)?;
        let (epoch, clock) = (self.u32()?, self.u64()?);
        Some(match kind & !SHORT {
            1 => Message::Push { key, epoch, clock, holes: self.u32()?, state: self.state()? },
            2 => Message::Unchanged { key, epoch, clock, holes: self.u32()?, since: self.u64()? },
            3 => Message::Pull { key, epoch, clock, previous: UnitId::from_le_bytes(self.array()?) },
            4 => Message::Answer { key, epoch, clock, owned: self.u32()?, state: Some(self.state()?) },
            5 => Message::Answer { key, epoch, clock, owned: self.u32()?, state: None },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys with both ends long, with one and with none.
    fn key(n: u32) -> FlowKey {
        let mut bytes = [7; FlowKey::LENGTH_BYTES];
        if !n.is_multiple_of(3) {
            bytes[4..16].fill(0);
            bytes[22..34].fill((n % 3 - 1) as u8);
        }
        FlowKey::from_bytes(bytes)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(kinds in proptest::collection::vec((0..5u8, any::<u32>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..50)), 0..9)) {
            let messages: Vec<Message> = kinds.into_iter().map(|(kind, n, clock, state)| match (kind, key(n)) {
                (0, key) => Message::Push { key, epoch: n, clock, holes: n / 2, state },
                (1, key) => Message::Unchanged { key, epoch: n, clock, holes: n / 3, since: clock / 2 },
                (2, key) => Message::Pull { key, epoch: n, clock, previous: n as UnitId },
                (3, key) => Message::Answer { key, epoch: n, owned: n / 5, clock, state: Some(state) },
                (_, key) => Message::Answer { key, epoch: n, owned: 0, clock, state: None },
            }).collect();
            let mut bytes = Vec::new();
            messages.iter().for_each(|m| m.encode(&mut bytes));
            prop_assert_eq!(Message::decode_all(&bytes), Ok(messages));
        }

        #[test]
        fn no_datagram_panics(bytes in proptest::collection::vec(prop_oneof![0..6u8, SHORT..SHORT + 6], 0..200)) {
            let _ = Message::decode_all(&bytes);
        }
    }
}
