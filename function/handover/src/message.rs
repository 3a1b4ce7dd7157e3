//! The messages between units about flows, and their wire format.

use std::ops::Range;

use pando_flow::FlowKey;

use crate::UnitId;

/// The state of a flow in a unit's own format; only units read it.
pub type Snapshot = Vec<u8>;

/// Returns the fingerprint of a state (FNV-1a, 64 bits folded to 32). After a lost push, a unit may
/// have another state than the sender believes. The two fingerprints are equal once in 2³² times.
pub fn fingerprint(state: &[u8]) -> u32 {
    let hash = state.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash >> 32 ^ hash) as u32
}

/// One message about one flow. Several travel in one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The flow fell silent: here is its state, in case the flow moves to you (§5.2.1).
    Push {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The last packet in the state.
        clock: u64,
        /// Earlier packets that may still reach the sender. If there are any, the state must not be
        /// used without a pull.
        holes: u32,
        /// The state.
        state: Snapshot,
    },
    /// A [`Message::Push`] to a unit that should have this state: only its fingerprint.
    Unchanged {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The last packet in the state.
        clock: u64,
        /// As above.
        holes: u32,
        /// The [`fingerprint`] of the state.
        print: u32,
    },
    /// I own the flow from `epoch` on: send me its state as of `clock`, and stop using it (§5.2.1,
    /// §5.3).
    Pull {
        /// The flow.
        key: FlowKey,
        /// The sender's epoch.
        epoch: u32,
        /// The clock before that epoch.
        clock: u64,
        /// The unit that received the packets of the epoch before.
        previous: UnitId,
    },
    /// The answer to a pull.
    Answer {
        /// The flow.
        key: FlowKey,
        /// Epoch of the pull.
        epoch: u32,
        /// The epoch in which the sender owned that state. If it is one less than `epoch`, no newer
        /// state exists.
        owned: u32,
        /// The last packet in the state.
        clock: u64,
        /// The state; `None` if it is unknown here.
        state: Option<Snapshot>,
    },
}

/// The error of malformed bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("state message: broken at byte {0}")]
pub struct MessageError(pub usize);

impl Message {
    /// Returns the flow of the message.
    pub fn key(&self) -> &FlowKey {
        match self {
            Message::Push { key, .. }
            | Message::Unchanged { key, .. }
            | Message::Pull { key, .. }
            | Message::Answer { key, .. } => key,
        }
    }

    /// Reports whether the message comes unasked, ahead of packets that may need it. It is handled
    /// before them, and no unit waits for it.
    pub fn is_ahead(&self) -> bool {
        matches!(self, Message::Push { .. } | Message::Unchanged { .. })
    }

    /// Appends the message to a datagram: a byte of kind and flags, the key, epoch and clock, then
    /// the rest. Numbers that start small take seven bits a byte, in as many bytes as they need.
    /// All other numbers are little endian.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Message::Push { key, epoch, clock, holes, state } => {
                head(to, PUSH, key, *epoch, *clock, *holes);
                put_state(to, state);
            }
            Message::Unchanged { key, epoch, clock, holes, print } => {
                head(to, UNCHANGED, key, *epoch, *clock, *holes);
                to.extend(print.to_le_bytes());
            }
            Message::Pull { key, epoch, clock, previous } => {
                head(to, PULL, key, *epoch, *clock, 0);
                to.extend(previous.to_le_bytes());
            }
            Message::Answer { key, epoch, owned, clock, state } => {
                head(to, if state.is_some() { ANSWER } else { UNKNOWN }, key, *epoch, *clock, 0);
                put_number(to, (*owned).into());
                if let Some(state) = state {
                    put_state(to, state);
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

/// Kinds. Kinds 1 to 5 were messages with numbers of fixed length. Kinds 8 and 11 had states with
/// their zeroes. Units of those versions refuse these kinds.
const UNCHANGED: u8 = 9;
const PULL: u8 = 10;
const UNKNOWN: u8 = 12;
const PUSH: u8 = 13;
const ANSWER: u8 = 14;
/// Flag of a kind: the key is short. It omits the bytes that are equal in all flows of IPv4.
const SHORT: u8 = 0x80;
/// … the message has holes.
const HOLES: u8 = 0x40;

/// Addresses, ports and protocol. The rest of an IPv4 key is zeroes and the version.
const SHORT_PARTS: [Range<usize>; 3] = [0..4, 16..22, 34..37];
const VERSION_AT: usize = FlowKey::LENGTH_BYTES - 1;

fn is_short(key: &FlowKey) -> bool {
    let bytes = key.as_bytes();
    bytes[VERSION_AT] == 4 && bytes[4..16].iter().chain(&bytes[22..34]).all(|&byte| byte == 0)
}

fn head(to: &mut Vec<u8>, kind: u8, key: &FlowKey, epoch: u32, clock: u64, holes: u32) {
    let (short, bytes) = (is_short(key), key.as_bytes());
    to.push(kind | if short { SHORT } else { 0 } | if holes > 0 { HOLES } else { 0 });
    if short {
        SHORT_PARTS.into_iter().for_each(|part| to.extend_from_slice(&bytes[part]));
    } else {
        to.extend_from_slice(bytes);
    }
    put_number(to, epoch.into());
    put_number(to, clock);
    if holes > 0 {
        put_number(to, holes.into());
    }
}

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_state(to: &mut Vec<u8>, state: &[u8]) {
    put_number(to, state.len() as u64);
    to.extend_from_slice(state);
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

    /// Reads a number as [`put_number`] writes it; refuses longer forms.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn u32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn state(&mut self) -> Option<Snapshot> {
        let length = self.number()?.try_into().ok()?;
        let state = self.bytes[self.at..].get(..length)?.to_vec();
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
        bytes[VERSION_AT] = 4;
        Some(FlowKey::from_bytes(bytes))
    }

    fn message(&mut self) -> Option<Message> {
        let [first] = self.array()?;
        let (kind, holes) = (first & !(SHORT | HOLES), first & HOLES != 0);
        let key = self.key(first & SHORT != 0)?;
        let (epoch, clock) = (self.u32()?, self.number()?);
        let holes = if holes { self.u32().filter(|&holes| holes > 0)? } else { 0 };
        Some(match kind {
            PUSH => Message::Push { key, epoch, clock, holes, state: self.state()? },
            UNCHANGED => Message::Unchanged {
                key,
                epoch,
                clock,
                holes,
                print: u32::from_le_bytes(self.array()?),
            },
            _ if holes > 0 => return None,
            PULL => {
                Message::Pull { key, epoch, clock, previous: UnitId::from_le_bytes(self.array()?) }
            }
            ANSWER => Message::Answer {
                key,
                epoch,
                clock,
                owned: self.u32()?,
                state: Some(self.state()?),
            },
            UNKNOWN => Message::Answer { key, epoch, clock, owned: self.u32()?, state: None },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns keys with two, one or no long ends, and short ones of another version.
    fn key(n: u32) -> FlowKey {
        let mut bytes = [7; FlowKey::LENGTH_BYTES];
        if !n.is_multiple_of(4) {
            bytes[4..16].fill(0);
            bytes[22..34].fill((n % 4 / 3) as u8);
            bytes[VERSION_AT] = 4 + (n % 4 / 2) as u8;
        }
        FlowKey::from_bytes(bytes)
    }

    /// Returns numbers of all lengths.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..u64::BITS).prop_map(|(number, shift)| number >> shift)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kinds in proptest::collection::vec(
                (
                    0..5u8,
                    number(),
                    number(),
                    number(),
                    proptest::collection::vec(any::<u8>(), 0..200),
                ),
                0..9,
            ),
        ) {
            let messages: Vec<Message> = kinds
                .into_iter()
                .map(|(kind, n, clock, m, state)| match (kind, key(n as u32), n as u32, m as u32) {
                    (0, key, epoch, holes) => Message::Push { key, epoch, clock, holes, state },
                    (1, key, epoch, holes) => {
                        Message::Unchanged { key, epoch, clock, holes, print: fingerprint(&state) }
                    }
                    (2, key, epoch, unit) => {
                        Message::Pull { key, epoch, clock, previous: unit as UnitId }
                    }
                    (3, key, epoch, owned) => {
                        Message::Answer { key, epoch, owned, clock, state: Some(state) }
                    }
                    (_, key, epoch, owned) => {
                        Message::Answer { key, epoch, owned, clock, state: None }
                    }
                })
                .collect();
            let mut bytes = Vec::new();
            messages.iter().for_each(|m| m.encode(&mut bytes));
            prop_assert_eq!(Message::decode_all(&bytes), Ok(messages));
        }

        /// A message has one form: a decoded message encodes to the same bytes.
        #[test]
        fn no_datagram_panics(
            bytes in proptest::collection::vec(
                prop_oneof![0..15u8, SHORT..SHORT + 15, HOLES..HOLES + 15],
                0..200,
            ),
        ) {
            if let Ok(messages) = Message::decode_all(&bytes) {
                let mut again = Vec::new();
                messages.iter().for_each(|m| m.encode(&mut again));
                prop_assert_eq!(again, bytes);
            }
        }
    }

    /// The cost of the pushes of a young IPv4 flow, and of the oldest possible one.
    #[test]
    fn a_push_is_as_long_as_what_it_says() {
        let length = |epoch, clock, holes, state: Option<Snapshot>| {
            let key = key(1);
            let mut bytes = Vec::new();
            match state {
                Some(state) => Message::Push { key, epoch, clock, holes, state }.encode(&mut bytes),
                None => {
                    Message::Unchanged { key, epoch, clock, holes, print: 0 }.encode(&mut bytes)
                }
            }
            bytes.len()
        };
        let (kind, key, print) = (1, 13, 4);
        assert_eq!(length(1, 100, 0, Some(vec![7; 20])), kind + key + 1 + 1 + 1 + 20);
        assert_eq!(length(1, 100, 0, None), kind + key + 1 + 1 + print);
        assert_eq!(length(u32::MAX, u64::MAX, 64, None), kind + key + 5 + 10 + 1 + print);
    }

    /// Messages of the older version are refused, not misread.
    #[test]
    fn messages_of_before_are_not_read() {
        for kind in (0..9).chain([11]) {
            for flags in [0, SHORT, HOLES, SHORT | HOLES] {
                assert_eq!(
                    Message::decode_all(&[&[kind | flags][..], &[1; 80]].concat()),
                    Err(MessageError(0))
                );
            }
        }
    }
}
