//! A flow on its way from one unit to another: of its group, or the one that follows it.

use pando_protocol::{Direction, FlowKey};

use super::Chain;
use crate::abi::STATE_BYTES_MAX;
use crate::executor::Executor;
use crate::flows::{Flow, FlowId, Met};
use crate::leases::Uses;
use crate::log::record::{self, FlowHead, Malformed, Reader};

fn direction(was: &FlowHead) -> Direction {
    if was.up { Direction::Up } else { Direction::Down }
}

impl<E: Executor> Chain<E> {
    /// Shares the numbers of each stage with other units; this one looks for free ones from the part `part` of so many on.
    pub fn share_leases(&mut self, part: usize, parts: usize, uses: impl Fn(usize) -> Box<dyn Uses>) {
        let idle_ns = self.policy.idle_ns;
        self.stages.iter_mut().enumerate().for_each(|(at, stage)| stage.leases.share(uses(at), idle_ns, part, parts));
    }

    /// Writes a flow with the state of the stages whose bits are in `changed`, without its key.
    fn put(&self, into: &mut Vec<u8>, id: FlowId, changed: u8) {
        let flow = self.flows.flow(id);
        let changed = changed & ((1u16 << self.stages.len()) - 1) as u8;
        let Flow { key, alias, valid, taken, leases, ends, .. } = *flow;
        FlowHead { key, alias, up: flow.first == Direction::Up, valid, taken, changed, leases, ends }.encode(into);
        let changed = (0..self.stages.len()).filter(|at| changed >> at & 1 == 1);
        changed.for_each(|at| record::put_state(into, self.flows.state(id, at)));
    }

    /// The same with its key, for the log.
    pub fn put_flow(&self, into: &mut Vec<u8>, id: FlowId, changed: u8) {
        into.extend_from_slice(self.flows.flow(id).key.as_bytes());
        self.put(into, id, changed);
    }

    /// All that another unit needs to go on with a flow. Empty for a flow without state.
    pub fn export(&self, key: &FlowKey) -> Vec<u8> {
        let mut to = Vec::new();
        if let Some(id) = self.flows.find(key) {
            self.put(&mut to, id, self.flows.flow(id).valid);
        }
        to
    }

    /// Makes a flow what another unit exported. What cannot be read, or has no room, leaves it without state: `false`.
    pub fn import(&mut self, key: &FlowKey, from: &[u8], now_ns: u64) -> bool {
        self.hand_over(key);
        if from.is_empty() {
            return true;
        }
        let mut reader = Reader(from);
        let read = reader.flow(*key).and_then(|was| self.place(&was, &mut reader, now_ns));
        if read.is_err() {
            self.hand_over(key);
        }
        read.is_ok_and(|id| id.is_some())
    }

    /// Makes a flow what was written of it; `None` without room. What cannot be read leaves it half done.
    fn place(&mut self, was: &FlowHead, reader: &mut Reader, now_ns: u64) -> Result<Option<FlowId>, Malformed> {
        if u32::from(was.valid | was.taken | was.changed) >> self.stages.len() != 0 {
            return Err(Malformed);
        }
        let changed = (0..self.stages.len()).filter(|at| was.changed >> at & 1 == 1);
        let Some(Met { flow: id, .. }) = self.flows.meet(was.key, direction(was), now_ns) else {
            let mut none = [0; STATE_BYTES_MAX];
            for at in changed {
                let bytes = self.stages[at].executor.descriptor().state_bytes;
                reader.state(&mut none[..bytes])?;
            }
            return Ok(None);
        };
        for at in changed {
            reader.state(self.flows.state_mut(id, at))?;
        }
        if let Some(alias) = was.alias {
            self.flows.add_alias(id, alias);
        }
        let flow = self.flows.flow_mut(id);
        (flow.valid, flow.leased, flow.taken, flow.leases) = (was.valid, was.taken, was.taken, was.leases);
        flow.ends = was.ends;
        Ok(Some(id))
    }

    /// The flow is another unit's now, with its leases.
    pub fn hand_over(&mut self, key: &FlowKey) {
        if let Some(id) = self.flows.find(key) {
            self.flows.remove(id);
            self.changed.retain(|&changed| changed != id);
        }
    }

    /// The unit that this one follows does not have the flow any more.
    pub fn release(&mut self, key: &FlowKey) {
        let Some(id) = self.flows.find(key).filter(|&id| self.flows.flow(id).key == *key) else { return };
        let was = self.flows.remove(id);
        for (at, stage) in self.stages.iter_mut().enumerate().filter(|(at, _)| was.taken & 1 << at != 0) {
            stage.leases.give_back(was.leases[at]);
        }
    }

    /// The same of all flows.
    pub fn release_all(&mut self) {
        let keys: Vec<FlowKey> = self.flows.ids().map(|id| self.flows.flow(id).key).collect();
        keys.iter().for_each(|key| self.release(key));
    }

    /// Does to `count` flows what a batch of the unit that this one follows did to them.
    pub fn replay(&mut self, mut reader: Reader, count: usize, now_ns: u64) -> Result<(), Malformed> {
        self.loosen(reader, count, now_ns)?;
        (0..count).try_for_each(|_| self.restore(&mut reader, now_ns))
    }

    /// Flows that will have another lease or alias begin again with the state that they have, before any gets what it will have:
    /// what they had of their own may be another's of the same batch.
    fn loosen(&mut self, mut reader: Reader, count: usize, now_ns: u64) -> Result<(), Malformed> {
        let mut again = Vec::new();
        for _ in 0..count {
            let key = reader.key()?;
            let will = reader.flow(key)?;
            (0..will.changed.count_ones()).try_for_each(|_| reader.skip_state())?;
            let Some(id) = self.flows.find(&key) else { continue };
            let is = self.flows.flow(id);
            if is.key == key && (is.taken, &is.leases, &is.alias, is.first) != (will.taken, &will.leases, &will.alias, direction(&will)) {
                again.push((key, direction(&will), self.flows.whole_state(id).to_vec()));
                self.release(&key);
            }
        }
        for (key, direction, state) in again {
            if let Some(Met { flow: id, .. }) = self.flows.meet(key, direction, now_ns) {
                self.flows.whole_state_mut(id).copy_from_slice(&state);
            }
        }
        Ok(())
    }

    /// Makes a flow what it was in the unit that this one follows, with the state of all stages that have any.
    pub fn restore(&mut self, reader: &mut Reader, now_ns: u64) -> Result<(), Malformed> {
        let key = reader.key()?;
        let was = reader.flow(key)?;
        if self.place(&was, reader, now_ns)?.is_some() {
            for (at, stage) in self.stages.iter_mut().enumerate().filter(|(at, _)| was.taken & 1 << at != 0) {
                stage.leases.claim(was.leases[at]);
            }
        }
        Ok(())
    }
}
