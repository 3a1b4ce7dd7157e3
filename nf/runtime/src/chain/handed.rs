//! A flow on its way from one unit to another: of its group, or the one that follows it.

use pando_protocol::{Direction, FlowKey};

use super::Chain;
use crate::executor::Executor;
use crate::flows::{FlowId, Met};
use crate::log::record::FlowHead;

impl<E: Executor> Chain<E> {
    /// All that another unit needs to go on with a flow: bits of what it has, its leases, and of each stage's state as
    /// much as is not zero at its end. Empty for a flow without state.
    pub fn export(&self, key: &FlowKey) -> Vec<u8> {
        let Some(id) = self.flows.find(key) else { return Vec::new() };
        let flow = self.flows.flow(id);
        let mut to = vec![u8::from(flow.first == Direction::Up), flow.valid, flow.taken];
        for at in (0..self.stages.len()).filter(|at| flow.taken >> at & 1 == 1) {
            to.extend(flow.leases[at].to_le_bytes());
        }
        for at in (0..self.stages.len()).filter(|at| flow.valid >> at & 1 == 1) {
            let state = self.flows.state(id, at);
            let used = state.len() - state.iter().rev().take_while(|&&byte| byte == 0).count();
            to.extend((used as u16).to_le_bytes());
            to.extend(&state[..used]);
        }
        to
    }

    /// Makes a flow what another unit exported. What cannot be read, or has no room, leaves it without state: `false`.
    pub fn import(&mut self, key: &FlowKey, from: &[u8], now_ns: u64) -> bool {
        self.hand_over(key);
        let [first, valid, taken, ref rest @ ..] = *from else { return from.is_empty() };
        let direction = if first == 1 { Direction::Up } else { Direction::Down };
        let Some(Met { flow: id, .. }) = self.flows.meet(*key, direction, now_ns) else { return false };
        let stages = self.stages.len();
        if self.fill(id, (valid, taken), rest).is_none() || (u32::from(valid) | u32::from(taken)) >> stages != 0 {
            self.flows.remove(id);
            return false;
        }
        true
    }

    fn fill(&mut self, id: FlowId, (valid, taken): (u8, u8), mut rest: &[u8]) -> Option<()> {
        let stages = self.stages.len();
        for at in (0..stages).filter(|at| taken >> at & 1 == 1) {
            let (lease, behind) = rest.split_first_chunk()?;
            self.flows.flow_mut(id).leases[at] = u32::from_le_bytes(*lease);
            rest = behind;
        }
        for at in (0..stages).filter(|at| valid >> at & 1 == 1) {
            let (used, behind) = rest.split_first_chunk()?;
            let (state, behind) = behind.split_at_checked(u16::from_le_bytes(*used).into())?;
            self.flows.state_mut(id, at).get_mut(..state.len())?.copy_from_slice(state);
            rest = behind;
        }
        let flow = self.flows.flow_mut(id);
        (flow.valid, flow.leased, flow.taken) = (valid, taken, taken);
        Some(())
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

    /// Makes a flow what it was in another unit: its fixed part, and the state of all stages together. False without room.
    pub fn restore(&mut self, was: &FlowHead, states: &[u8], now_ns: u64) -> bool {
        let direction = if was.up { Direction::Up } else { Direction::Down };
        let Some(met) = self.flows.meet(was.key, direction, now_ns) else { return false };
        self.flows.whole_state_mut(met.flow).copy_from_slice(states);
        if let Some(alias) = was.alias {
            self.flows.add_alias(met.flow, alias);
        }
        let flow = self.flows.flow_mut(met.flow);
        (flow.valid, flow.leased, flow.taken, flow.leases, flow.packets) = (was.valid, was.taken, was.taken, was.leases, was.packets);
        for (at, stage) in self.stages.iter_mut().enumerate().filter(|(at, _)| was.taken & 1 << at != 0) {
            stage.leases.claim(was.leases[at]);
        }
        true
    }
}
