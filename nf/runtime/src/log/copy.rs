//! The log's copy of one unit: every flow's state, and the last batch whole.

use std::collections::HashMap;
use std::time::Instant;

use pando_protocol::FlowKey;

use super::record::{self, FlowHead, Malformed, Reader, kind};

/// Bytes of one message of a whole state: the standby puts one into place while the log writes the next.
const CHUNK_BYTES: usize = 32 << 10;

/// What is kept of one unit.
#[derive(Default)]
pub struct Copy {
    state_bytes: Vec<usize>,
    index: HashMap<FlowKey, usize, foldhash::fast::RandomState>,
    heads: Vec<FlowHead>,
    /// Of all flows, in the order of their heads.
    states: Vec<u8>,
    /// The last [`kind::BATCH`] as it came; empty while there is no whole state.
    last: Vec<u8>,
    filling: bool,
    /// The latest start of the unit that spoke; what an earlier one says is too late.
    pub epoch: u32,
    /// Sequence of the last batch.
    pub sequence: u64,
    /// Since when neither the unit nor a standby has been there.
    pub orphaned: Option<Instant>,
}

impl Copy {
    /// The copy of a unit that has not said anything, whose stages keep so much state.
    pub fn new(state_bytes: Vec<usize>) -> Copy {
        Copy { state_bytes, ..Copy::default() }
    }

    /// Flows of which there is state.
    pub fn flows(&self) -> usize {
        self.heads.len()
    }

    /// Whether there is a whole state.
    pub fn is_whole(&self) -> bool {
        !self.last.is_empty()
    }

    /// Whether it is of a chain whose stages keep so much state.
    pub fn fits(&self, state_bytes: &[usize]) -> bool {
        self.state_bytes == state_bytes
    }

    fn stride(&self) -> usize {
        self.state_bytes.iter().sum()
    }

    /// Applies a [`kind::BATCH`], [`kind::CLEAR`] or [`kind::FLOWS`].
    pub fn apply(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(message);
        match reader.u8()? {
            kind::CLEAR => {
                *self = Copy { epoch: self.epoch, filling: true, ..Copy::new(std::mem::take(&mut self.state_bytes)) };
                Ok(())
            }
            kind::FLOWS => {
                let count = reader.u32()?;
                (0..count).try_for_each(|_| self.put(&mut reader))
            }
            kind::BATCH => self.batch(message, reader),
            _ => Err(Malformed),
        }
    }

    fn batch(&mut self, message: &[u8], mut reader: Reader) -> Result<(), Malformed> {
        let (head, [forgotten, changed, packets]) = reader.head()?;
        // Between two whole states no batch may be missing.
        if head.epoch < self.epoch || !self.filling && (!self.is_whole() || head.sequence != self.sequence + 1) {
            return Err(Malformed);
        }
        for _ in 0..forgotten {
            let key = reader.key()?;
            self.remove(&key);
        }
        (0..changed).try_for_each(|_| self.put(&mut reader))?;
        (0..packets).try_for_each(|_| reader.packet().map(drop))?;
        (self.epoch, self.sequence, self.filling) = (head.epoch, head.sequence, false);
        self.last.clear();
        self.last.extend_from_slice(message);
        Ok(())
    }

    fn put(&mut self, reader: &mut Reader) -> Result<(), Malformed> {
        let head = reader.flow()?;
        let (changed, stride, next) = (head.changed, self.stride(), self.heads.len());
        let place = *self.index.entry(head.key).or_insert(next);
        if place == next {
            self.heads.push(head);
            self.states.resize((next + 1) * stride, 0);
        } else {
            self.heads[place] = head;
        }
        let mut at = place * stride;
        for (stage, &bytes) in self.state_bytes.iter().enumerate() {
            if changed & 1 << stage != 0 {
                self.states[at..at + bytes].copy_from_slice(reader.bytes(bytes)?);
            }
            at += bytes;
        }
        Ok(())
    }

    fn remove(&mut self, key: &FlowKey) {
        let Some(place) = self.index.remove(key) else { return };
        let (stride, last) = (self.stride(), self.heads.len() - 1);
        self.heads.swap_remove(place);
        if place != last {
            self.index.insert(self.heads[place].key, place);
            self.states.copy_within(last * stride..(last + 1) * stride, place * stride);
        }
        self.states.truncate(last * stride);
    }

    /// All flows as [`kind::FLOWS`], in messages of some size.
    pub fn snapshot<E>(&self, mut send: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let all = (1u16 << self.state_bytes.len()) - 1;
        let stride = self.stride();
        let mut message = Vec::with_capacity(CHUNK_BYTES);
        let mut place = 0;
        while place < self.heads.len() {
            message.clear();
            message.extend_from_slice(&[kind::FLOWS, 0, 0, 0, 0]);
            let first = place;
            while place < self.heads.len() && message.len() < CHUNK_BYTES - stride - 256 {
                record::put_flow(&mut message, &FlowHead { changed: all as u8, ..self.heads[place].clone() });
                message.extend_from_slice(&self.states[place * stride..][..stride]);
                place += 1;
            }
            message[1..5].copy_from_slice(&((place - first) as u32).to_le_bytes());
            send(&message)?;
        }
        Ok(())
    }

    /// The last batch without what it did to flows, for that is in their state: its head and its packets.
    pub fn last(&self) -> Result<Vec<u8>, Malformed> {
        let mut reader = Reader(&self.last);
        reader.u8()?;
        let (head, [forgotten, changed, packets]) = reader.head()?;
        reader.bytes(forgotten * FlowKey::LENGTH_BYTES)?;
        for _ in 0..changed {
            let flow = reader.flow()?;
            let states = self.state_bytes.iter().enumerate().filter(|(stage, _)| flow.changed & 1 << stage != 0);
            reader.bytes(states.map(|(_, bytes)| bytes).sum())?;
        }
        let mut message = Vec::with_capacity(self.last.len());
        let counts = record::put_head(&mut message, &head);
        record::set_counts(&mut message, counts, [0, 0, packets]);
        message.extend_from_slice(reader.0);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(sequence: u64, forgotten: &[u8], changed: &[(u8, [u8; 6])]) -> Vec<u8> {
        let key = |n: u8| FlowKey::from_bytes([n; FlowKey::LENGTH_BYTES]);
        let mut message = Vec::new();
        let at = record::put_head(&mut message, &record::Head { sequence, ..record::Head::default() });
        forgotten.iter().for_each(|&n| message.extend_from_slice(key(n).as_bytes()));
        for &(n, state) in changed {
            let leases = [0; crate::flows::STAGES_MAX];
            record::put_flow(
                &mut message,
                &FlowHead { key: key(n), alias: None, up: true, valid: 3, taken: 0, changed: 3, packets: 1, leases },
            );
            message.extend_from_slice(&state);
        }
        record::set_counts(&mut message, at, [forgotten.len(), changed.len(), 0]);
        message
    }

    fn filling() -> Copy {
        let mut copy = Copy::new(vec![4, 2]);
        copy.apply(&[kind::CLEAR]).unwrap();
        copy
    }

    fn states(copy: &Copy) -> HashMap<FlowKey, Vec<u8>> {
        let stride = copy.stride();
        copy.heads.iter().enumerate().map(|(n, h)| (h.key, copy.states[n * stride..][..stride].to_vec())).collect()
    }

    proptest! {
        /// After any batches a copy has what was put last and not forgotten, and another that takes its snapshot has the same.
        #[test]
        fn it_holds_what_was_put_and_not_forgotten(batches in proptest::collection::vec((proptest::collection::vec(0..8u8, 0..3), proptest::collection::vec((0..8u8, any::<[u8; 6]>()), 0..5)), 1..20)) {
            let (mut copy, mut model) = (filling(), HashMap::new());
            for (n, (forgotten, changed)) in batches.iter().enumerate() {
                copy.apply(&batch(n as u64, forgotten, changed)).unwrap();
                forgotten.iter().for_each(|n| drop(model.remove(&FlowKey::from_bytes([*n; FlowKey::LENGTH_BYTES]))));
                model.extend(changed.iter().map(|(n, state)| (FlowKey::from_bytes([*n; FlowKey::LENGTH_BYTES]), state.to_vec())));
            }
            prop_assert_eq!(&states(&copy), &model);
            prop_assert!(copy.apply(&batch(batches.len() as u64 + 1, &[], &[])).is_err(), "a batch is missing");
            let mut other = filling();
            copy.snapshot(|message| other.apply(message)).unwrap();
            prop_assert_eq!(states(&other), model);
        }

        /// Whatever a unit says, the log refuses it or applies it.
        #[test]
        fn no_message_panics(kind in 0..9u8, bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..400usize, flip in any::<(usize, u8)>()) {
            let mut copy = filling();
            let _ = copy.apply(&[&[kind][..], &bytes].concat());
            let mut message = batch(0, &[1], &[(1, [7; 6]), (2, [8; 6])]);
            let at = flip.0 % message.len();
            message[at] ^= flip.1;
            message.truncate(cut);
            let mut copy = filling();
            if copy.apply(&message).is_ok() {
                let _ = copy.last();
                copy.snapshot(|_| Ok::<(), ()>(())).unwrap();
            }
            let _ = Reader(&bytes).hello();
        }
    }
}
