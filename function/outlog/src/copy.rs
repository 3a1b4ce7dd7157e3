//! The log's copy of one unit: every flow's state, and the last batch whole.

use std::collections::HashMap;
use std::time::Instant;

use pando_flow::FlowKey;

use super::behind::Behind;
use super::record::{self, FlowHead, Hello, Malformed, Mark, Parts, Reader, kind};

/// Size of one message to a standby. The standby restores one while the log writes the next.
pub const CHUNK_BYTES: usize = 32 << 10;

/// The copy of one unit.
#[derive(Default)]
pub struct Copy {
    state_bytes: Vec<usize>,
    index: HashMap<FlowKey, usize, foldhash::fast::RandomState>,
    heads: Vec<FlowHead>,
    /// The states of all flows, in the order of their heads.
    states: Vec<u8>,
    /// Per head: the flow is in the list of changes for the standby.
    noted: Vec<bool>,
    behind: Option<Behind>,
    /// The last [`kind::BATCH`] as received; empty without a whole state.
    last: Vec<u8>,
    filling: bool,
    /// The functions that can use the state, see [`Hello`].
    chain: u64,
    /// The run that the copy belongs to. Messages of other runs are refused.
    pub run: u64,
    /// The latest epoch of the unit. Messages of earlier epochs are refused.
    pub epoch: u32,
    /// Sequence of the last batch.
    pub sequence: u64,
    /// Position of the last batch in the unit's memory, which outlives the unit.
    pub position: Option<u64>,
    /// Since when both the unit and its standby have been gone.
    pub orphaned: Option<Instant>,
}

impl Copy {
    /// Returns an empty copy for a unit.
    pub fn of(hello: &Hello) -> Copy {
        let Hello { run, chain, epoch, ref state_bytes, .. } = *hello;
        Copy { run, chain, epoch, state_bytes: state_bytes.clone(), ..Copy::default() }
    }

    /// Returns the number of flows with state.
    pub fn flows(&self) -> usize {
        self.heads.len()
    }

    /// Returns about the memory that the copy takes.
    pub fn bytes(&self) -> usize {
        let flow = size_of::<FlowHead>() + 2 * size_of::<(FlowKey, usize)>() + 1;
        self.heads.capacity() * flow + self.states.capacity() + self.last.capacity()
    }

    /// Reports whether the copy has a whole state.
    pub fn is_whole(&self) -> bool {
        !self.last.is_empty()
    }

    /// Reports whether the functions of a unit can use the state.
    pub fn fits(&self, hello: &Hello) -> bool {
        (self.chain, &self.state_bytes) == (hello.chain, &hello.state_bytes)
    }

    fn stride(&self) -> usize {
        self.state_bytes.iter().sum()
    }

    /// Applies a [`kind::BATCH`], [`kind::CLEAR`] or [`kind::FLOWS`].
    pub fn apply(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(message);
        match reader.u8()? {
            kind::CLEAR => {
                let behind = self.behind.take().map(|_| Behind::all());
                *self = Copy {
                    run: self.run,
                    chain: self.chain,
                    epoch: self.epoch,
                    state_bytes: std::mem::take(&mut self.state_bytes),
                    filling: true,
                    behind,
                    ..Copy::default()
                };
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
        // No batch may be missing between two whole states.
        if head.epoch < self.epoch
            || !self.filling && (!self.is_whole() || head.sequence != self.sequence + 1)
        {
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
        let key = reader.key()?;
        let head = reader.flow(key)?;
        let (changed, stride, next) = (head.changed, self.stride(), self.heads.len());
        let place = *self.index.entry(head.key).or_insert(next);
        if place == next {
            self.heads.push(head);
            self.noted.push(false);
            self.states.resize((next + 1) * stride, 0);
        } else {
            let before = std::mem::replace(&mut self.heads[place], head);
            let head = &self.heads[place];
            // The flow's resources may have belonged to another flow since: the standby starts the
            // flow anew.
            if (before.taken, before.leases, before.alias, before.up)
                != (head.taken, head.leases, head.alias, head.up)
                && let Some(behind) = &mut self.behind
            {
                behind.forget(head.key, next);
            }
        }
        if let Some(behind) = &mut self.behind
            && !std::mem::replace(&mut self.noted[place], true)
        {
            behind.note(self.heads[place].key, next);
        }
        let mut at = place * stride;
        for (stage, &bytes) in self.state_bytes.iter().enumerate() {
            if changed & 1 << stage != 0 {
                reader.state(&mut self.states[at..at + bytes])?;
            }
            at += bytes;
        }
        Ok(())
    }

    fn remove(&mut self, key: &FlowKey) {
        let Some(place) = self.index.remove(key) else { return };
        let (stride, last) = (self.stride(), self.heads.len() - 1);
        self.heads.swap_remove(place);
        self.noted.swap_remove(place);
        if let Some(behind) = &mut self.behind {
            behind.forget(*key, last);
        }
        if place != last {
            self.index.insert(self.heads[place].key, place);
            self.states.copy_within(last * stride..(last + 1) * stride, place * stride);
        }
        self.states.truncate(last * stride);
    }

    /// Starts to collect changes for a new standby, from an empty state.
    pub fn follow(&mut self) {
        self.behind = Some(Behind::all());
    }

    /// Stops collecting changes.
    pub fn unfollow(&mut self) {
        self.behind = None;
    }

    /// Reports whether there are changes for the standby.
    pub fn is_ahead(&self) -> bool {
        self.is_whole() && self.behind.as_ref().is_some_and(|b| !b.is_empty())
    }

    /// Sends the standby the changes that it lacks, as [`kind::CLEAR`], [`kind::FORGET`] and
    /// [`kind::FLOWS`]. If `send` has no room (false), the rest waits for another call.
    pub fn catch_up<E>(
        &mut self,
        mut send: impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(mut behind) = self.behind.take_if(|_| !self.last.is_empty()) else {
            return Ok(true);
        };
        let told = self.tell(&mut behind, &mut send);
        self.behind = Some(behind);
        told
    }

    fn tell<E>(
        &mut self,
        behind: &mut Behind,
        send: &mut impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if behind.anew {
            if !send(&[kind::CLEAR])? {
                return Ok(false);
            }
            *behind =
                Behind { changed: self.heads.iter().map(|h| h.key).collect(), ..Behind::default() };
            self.noted.fill(true);
        }
        let mut message = Vec::with_capacity(CHUNK_BYTES);
        while !behind.gone.is_empty() {
            let from = behind.gone.len().saturating_sub(CHUNK_BYTES / FlowKey::LENGTH_BYTES);
            message.clear();
            message.push(kind::FORGET);
            message.extend_from_slice(&((behind.gone.len() - from) as u32).to_le_bytes());
            behind.gone[from..].iter().for_each(|key| message.extend_from_slice(key.as_bytes()));
            if !send(&message)? {
                return Ok(false);
            }
            behind.gone.truncate(from);
        }
        while !behind.changed.is_empty() {
            let from = self.write_flows(&behind.changed, &mut message);
            if !send(&message)? {
                return Ok(false);
            }
            for key in behind.changed.drain(from..) {
                self.index.get(&key).into_iter().for_each(|&place| self.noted[place] = false);
            }
        }
        Ok(true)
    }

    /// Writes the last of the changed flows, as many as fit, as [`kind::FLOWS`]; returns the index
    /// of the first one written.
    fn write_flows(&self, changed: &[FlowKey], message: &mut Vec<u8>) -> usize {
        let stride = self.stride();
        message.clear();
        message.extend_from_slice(&[kind::FLOWS, 0, 0, 0, 0]);
        let (mut from, mut count) = (changed.len(), 0u32);
        while from > 0 && (count == 0 || message.len() + stride + 256 < CHUNK_BYTES) {
            from -= 1;
            let Some(&place) = self.index.get(&changed[from]).filter(|&&place| self.noted[place])
            else {
                continue;
            };
            // A stage without state is all zeroes, as in a new flow.
            let head = FlowHead { changed: self.heads[place].valid, ..self.heads[place].clone() };
            record::put_flow(message, &head);
            let mut at = place * stride;
            for (stage, &bytes) in self.state_bytes.iter().enumerate() {
                if head.changed & 1 << stage != 0 {
                    record::put_state(message, &self.states[at..at + bytes]);
                }
                at += bytes;
            }
            count += 1;
        }
        message[1..5].copy_from_slice(&count.to_le_bytes());
        from
    }

    /// Returns the last batch, for a standby that has everything.
    pub fn mark(&self) -> Mark {
        Mark { epoch: self.epoch, sequence: self.sequence, position: self.position }
    }

    /// Returns the last batch as received; empty without a whole state.
    pub fn last(&self) -> &[u8] {
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use super::super::tail;
    use super::*;
    use proptest::prelude::*;

    fn batch(sequence: u64, forgotten: &[u8], changed: &[(u8, [u8; 6])]) -> Vec<u8> {
        let key = |n: u8| FlowKey::from_bytes([n; FlowKey::LENGTH_BYTES]);
        let mut message = Vec::new();
        let at =
            record::put_head(&mut message, &record::Head { sequence, ..record::Head::default() });
        forgotten.iter().for_each(|&n| message.extend_from_slice(key(n).as_bytes()));
        for &(n, state) in changed {
            let leases = [0; pando_chain::flows::STAGES_MAX];
            record::put_flow(
                &mut message,
                &FlowHead {
                    key: key(n),
                    alias: None,
                    up: true,
                    valid: 3,
                    taken: 0,
                    changed: 3,
                    leases,
                    ends: Default::default(),
                },
            );
            record::put_state(&mut message, &state[..4]);
            record::put_state(&mut message, &state[4..]);
        }
        record::set_counts(&mut message, at, [forgotten.len(), changed.len(), 0]);
        message
    }

    fn filling() -> Copy {
        let mut copy = Copy { state_bytes: vec![4, 2], ..Copy::default() };
        copy.apply(&[kind::CLEAR]).unwrap();
        copy
    }

    fn follow(other: &mut Copy, message: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader(message);
        if reader.u8()? != kind::FORGET {
            return other.apply(message);
        }
        (0..reader.u32()?).try_for_each(|_| reader.key().map(|key| other.remove(&key)))
    }

    fn states(copy: &Copy) -> HashMap<FlowKey, Vec<u8>> {
        let stride = copy.stride();
        copy.heads
            .iter()
            .enumerate()
            .map(|(n, h)| (h.key, copy.states[n * stride..][..stride].to_vec()))
            .collect()
    }

    proptest! {
        /// After any batches a copy holds the flows that were put last and not forgotten. So does a
        /// second copy that follows it, at any time and with any room for messages.
        #[test]
        fn it_holds_what_was_put_and_not_forgotten(
            batches in proptest::collection::vec(
                (
                    proptest::collection::vec(0..8u8, 0..3),
                    proptest::collection::vec((0..8u8, any::<[u8; 6]>()), 0..5),
                ),
                1..20,
            ),
            mut room in any::<u64>(),
            begins in 0..20usize,
        ) {
            let (mut copy, mut model, mut other) = (filling(), HashMap::new(), filling());
            for (n, (forgotten, changed)) in batches.iter().enumerate() {
                copy.apply(&batch(n as u64, forgotten, changed)).unwrap();
                forgotten.iter().for_each(|n| {
                    drop(model.remove(&FlowKey::from_bytes([*n; FlowKey::LENGTH_BYTES])))
                });
                model.extend(changed.iter().map(|(n, state)| {
                    (FlowKey::from_bytes([*n; FlowKey::LENGTH_BYTES]), state.to_vec())
                }));
                if n == begins {
                    copy.follow();
                }
                copy.catch_up(|message| {
                    room = room.rotate_right(1);
                    if room & 1 == 1 {
                        follow(&mut other, message).map(|()| true)
                    } else {
                        Ok(false)
                    }
                })
                .unwrap();
            }
            prop_assert_eq!(&states(&copy), &model);
            prop_assert!(
                copy.apply(&batch(batches.len() as u64 + 1, &[], &[])).is_err(),
                "a batch is missing"
            );
            if begins >= batches.len() {
                copy.follow();
            }
            prop_assert!(
                copy.catch_up(|message| follow(&mut other, message).map(|()| true)).unwrap()
            );
            prop_assert_eq!(states(&other), model);
            prop_assert!(!copy.is_ahead());
        }

        /// The log refuses or applies every message of a unit.
        #[test]
        fn no_message_panics(
            kind in 0..11u8,
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0..400usize,
            flip in any::<(usize, u8)>(),
        ) {
            let mut copy = filling();
            let _ = copy.apply(&[&[kind][..], &bytes].concat());
            let mut message = batch(0, &[1], &[(1, [7; 6]), (2, [8; 6])]);
            let at = flip.0 % message.len();
            message[at] ^= flip.1;
            message.truncate(cut);
            let mut copy = filling();
            if copy.apply(&message).is_ok() {
                let _ = tail::last(copy.last());
                copy.follow();
                copy.catch_up(|_| Ok::<_, ()>(true)).unwrap();
            }
            let _ = Reader(&bytes).hello();
        }
    }
}
