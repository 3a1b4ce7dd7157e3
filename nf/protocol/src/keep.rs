//! What a group's output log is told: the state of each flow after each batch, before the batch leaves.
//!
//! The log is a unit that gets no packets. To it, what it is told is a push like any other, so when an owner dies, whoever is
//! asked for the flow next finds its state there as with any unit that has a replica.

use crate::FlowKey;
use crate::handover::{Handover, States};
use crate::held::Role;
use crate::message::Message;

impl Handover {
    /// What the log has to know of a flow whose packets up to `clock` have been processed; nothing of one that is not owned.
    pub fn keep(&mut self, key: &FlowKey, clock: u64, states: &impl States) -> Option<Message> {
        let flow = self.flows.get_mut(key).filter(|flow| matches!(flow.role, Role::Owner))?;
        flow.done = flow.done.max(clock);
        Some(Message::Push { key: *key, epoch: flow.epoch, clock: flow.done, holes: 0, state: states.snapshot(key) })
    }

    /// The same of all flows that are owned, for a log that knows nothing yet.
    pub fn keep_all(&mut self, states: &impl States) -> Vec<Message> {
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.iter().filter_map(|key| self.keep(key, 0, states)).collect()
    }
}
