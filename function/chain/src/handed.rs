//! Moves a flow from one unit to another: within a group, or to the unit's standby.

use pando_abi::STATE_BYTES_MAX;
use pando_abi::executor::Executor;
use pando_flow::{Direction, FlowKey};

use super::Chain;
use crate::codec::{self, FlowHead, Malformed, Reader};
use crate::flows::{Flow, FlowId, Met};
use crate::leases::Uses;

fn direction(was: &FlowHead) -> Direction {
    if was.up { Direction::Up } else { Direction::Down }
}

impl<E: Executor> Chain<E> {
    /// Shares the numbers of each stage with other units. This unit searches for free numbers from
    /// part `part` of `parts` on.
    pub fn share_leases(
        &mut self,
        part: usize,
        parts: usize,
        uses: impl Fn(usize) -> Box<dyn Uses>,
    ) {
        let idle_ns = self.policy.idle_ns;
        self.stages
            .iter_mut()
            .enumerate()
            .for_each(|(at, stage)| stage.leases.share(uses(at), idle_ns, part, parts));
    }

    /// Returns the flow with this key, unless the key is only its alias.
    fn own(&self, key: &FlowKey) -> Option<FlowId> {
        self.flows.find(key).filter(|&id| self.flows.flow(id).key == *key)
    }

    /// Writes a flow without its key, with the state of the stages in the bit set `changed`.
    fn put(&self, into: &mut Vec<u8>, id: FlowId, changed: u8) {
        let flow = self.flows.flow(id);
        let changed = changed & ((1u16 << self.stages.len()) - 1) as u8;
        let Flow { key, alias, valid, taken, leases, ends, .. } = *flow;
        FlowHead {
            key,
            alias,
            up: flow.first == Direction::Up,
            valid,
            taken,
            changed,
            leases,
            ends,
        }
        .encode(into);
        let changed = (0..self.stages.len()).filter(|at| changed >> at & 1 == 1);
        changed.for_each(|at| codec::put_state(into, self.flows.state(id, at)));
    }

    /// Writes the flow as `put` does, with its key before it, for the log.
    pub fn put_flow(&self, into: &mut Vec<u8>, id: FlowId, changed: u8) {
        into.extend_from_slice(self.flows.flow(id).key.as_bytes());
        self.put(into, id, changed);
    }

    /// Returns everything that another unit needs to continue a flow; empty for a flow without
    /// state.
    pub fn export(&self, key: &FlowKey) -> Vec<u8> {
        let mut to = Vec::new();
        if let Some(id) = self.own(key) {
            self.put(&mut to, id, self.flows.flow(id).valid);
        }
        to
    }

    /// Sets a flow to another unit's export. Returns `false`, and leaves the flow without state, if
    /// the export is malformed or there is no room.
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

    /// Restores a flow from its head and states; returns `None` without room. A malformed message
    /// leaves the flow incomplete.
    fn place(
        &mut self,
        was: &FlowHead,
        reader: &mut Reader,
        now_ns: u64,
    ) -> Result<Option<FlowId>, Malformed> {
        if u32::from(was.valid | was.taken | was.changed) >> self.stages.len() != 0 {
            return Err(Malformed);
        }
        let changed = (0..self.stages.len()).filter(|at| was.changed >> at & 1 == 1);
        self.flows.free_key(&was.key);
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
        let flow = self.flows.flow_mut(id);
        (flow.valid, flow.leased, flow.taken, flow.leases) =
            (was.valid, was.taken, was.taken, was.leases);
        flow.ends = was.ends;
        // Another unit may have seen both ways.
        flow.answered = true;
        // After the leases: with the number of another flow comes that flow's alias.
        if let Some(alias) = was.alias {
            self.flows.add_alias(id, alias);
        }
        Ok(Some(id))
    }

    /// Removes a flow that another unit owns now, together with its leases.
    pub fn hand_over(&mut self, key: &FlowKey) {
        if let Some(id) = self.own(key) {
            self.flows.remove(id);
            self.changed.retain(|&changed| changed != id);
        }
    }

    /// Removes a flow that the followed unit no longer has. Its leases become free.
    pub fn release(&mut self, key: &FlowKey) {
        let Some(id) = self.own(key) else { return };
        let was = self.flows.remove(id);
        for (at, stage) in
            self.stages.iter_mut().enumerate().filter(|(at, _)| was.taken & 1 << at != 0)
        {
            stage.leases.give_back(was.leases[at]);
        }
    }

    /// Removes all flows in this way.
    pub fn release_all(&mut self) {
        let keys: Vec<FlowKey> = self.flows.ids().map(|id| self.flows.flow(id).key).collect();
        keys.iter().for_each(|key| self.release(key));
    }

    /// Applies to `count` flows the changes of one batch of the followed unit.
    pub fn replay(
        &mut self,
        mut reader: Reader,
        count: usize,
        now_ns: u64,
    ) -> Result<(), Malformed> {
        self.loosen(reader, count, now_ns)?;
        (0..count).try_for_each(|_| self.restore(&mut reader, now_ns))
    }

    /// Restarts flows with a new lease or alias in this batch, keeping their current state. It
    /// runs before the batch is applied: their old lease or alias may belong to another flow of the
    /// same batch.
    fn loosen(&mut self, mut reader: Reader, count: usize, now_ns: u64) -> Result<(), Malformed> {
        let mut again = Vec::new();
        for _ in 0..count {
            let key = reader.key()?;
            let will = reader.flow(key)?;
            (0..will.changed.count_ones()).try_for_each(|_| reader.skip_state())?;
            let Some(id) = self.flows.find(&key) else { continue };
            let is = self.flows.flow(id);
            if is.key == key
                && (is.taken, &is.leases, &is.alias, is.first)
                    != (will.taken, &will.leases, &will.alias, direction(&will))
            {
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

    /// Restores a flow of the followed unit, with the state of all stages that have any.
    pub fn restore(&mut self, reader: &mut Reader, now_ns: u64) -> Result<(), Malformed> {
        let key = reader.key()?;
        let was = reader.flow(key)?;
        if self.place(&was, reader, now_ns)?.is_some() {
            for (at, stage) in
                self.stages.iter_mut().enumerate().filter(|(at, _)| was.taken & 1 << at != 0)
            {
                stage.leases.claim(was.leases[at]);
            }
        }
        Ok(())
    }
}
