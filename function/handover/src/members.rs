//! Handles units that join or leave: the flows of the remaining units, and those of a leaving unit.

use pando_flow::FlowKey;

use crate::UnitId;
use crate::handover::{Effect, Handover, States};
use crate::held::{Held, Role};
use crate::message::Message;

impl Handover {
    /// Sets the units of the group. A flow that waits for an answer of a dead unit asks all others
    /// at once. So does a flow that has asked all units: the dead unit's answer may be the only one
    /// missing.
    pub fn set_group(&mut self, group: u64) {
        let gone = self.group & !group;
        // A unit that joins, perhaps again, has no state yet.
        let others = self.group ^ group;
        self.flows.values_mut().for_each(|flow| flow.known.forget(others));
        self.group = group;
        let is_gone = |unit: u16| gone >> (unit & 63) & 1 == 1;
        let waits =
            |flow: &Held| matches!(&flow.role, Role::Waiting(w) if w.searching || is_gone(w.from));
        let orphans: Vec<FlowKey> =
            self.flows.iter().filter(|(_, f)| gone != 0 && waits(f)).map(|(key, _)| *key).collect();
        orphans.iter().for_each(|key| self.search(key));
    }

    /// Pushes the state of every owned flow, because this unit is to end. The units `to` (a bit
    /// each) share the flows. A flow with queued packets is left for the next call; returns how
    /// many were left.
    pub fn evacuate(&mut self, to: u64, states: &impl States) -> usize {
        let targets: Vec<UnitId> =
            (0..64).filter(|u| (to & !(1 << self.unit)) >> u & 1 == 1).collect();
        let mut left = 0;
        for (n, (key, flow)) in
            self.flows.iter_mut().filter(|(_, f)| matches!(f.role, Role::Owner)).enumerate()
        {
            let Some(&target) = targets.get(n % targets.len().max(1)) else { return 0 };
            if flow.pending > 0 {
                left += 1;
                continue;
            }
            let (epoch, clock, holes) = (flow.epoch, flow.seen.clock, flow.seen.holes());
            // Once: this unit stays the owner, and is asked first, until it ends. Whole: the
            // target may soon have the only copy.
            if flow.evacuated < clock {
                flow.evacuated = clock;
                self.effects.push(Effect::Send(
                    target,
                    Message::Push { key: *key, epoch, clock, holes, state: states.snapshot(key) },
                ));
            }
        }
        left
    }
}
