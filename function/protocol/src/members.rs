//! Units come and go: what that means for the flows of those that stay, and of the one that goes.

use crate::handover::{Effect, Handover, States};
use crate::held::{Held, Role};
use crate::message::Message;
use crate::{FlowKey, UnitId};

impl Handover {
    /// Units may come and go. A flow that waits for the answer of one that is gone asks all others at once; so does one that
    /// has asked all, for whose answer the one that is gone may have been the last to wait.
    pub fn set_group(&mut self, group: u64) {
        let gone = self.group & !group;
        // One that comes, perhaps again, has nothing yet.
        let others = self.group ^ group;
        self.flows.values_mut().for_each(|flow| flow.known.forget(others));
        self.group = group;
        let waits = |flow: &Held| matches!(&flow.role, Role::Waiting(w) if w.searching || gone >> (w.from & 63) & 1 == 1);
        let orphans: Vec<FlowKey> = self.flows.iter().filter(|(_, f)| gone != 0 && waits(f)).map(|(key, _)| *key).collect();
        orphans.iter().for_each(|key| self.search(key));
    }

    /// The unit is to end: the state of every flow that it owns is pushed to the units `to` (bit per unit), to each some. A
    /// flow with packets in the queue is left for the next call; how many there were.
    pub fn evacuate(&mut self, to: u64, states: &impl States) -> usize {
        let targets: Vec<UnitId> = (0..64).filter(|u| (to & !(1 << self.unit)) >> u & 1 == 1).collect();
        let mut left = 0;
        for (n, (key, flow)) in self.flows.iter_mut().filter(|(_, f)| matches!(f.role, Role::Owner)).enumerate() {
            let Some(&target) = targets.get(n % targets.len().max(1)) else { return 0 };
            if flow.pending > 0 {
                left += 1;
                continue;
            }
            let (epoch, clock, holes) = (flow.epoch, flow.seen.clock, flow.seen.holes());
            // Once: it stays the owner, who is asked first, until it ends. Whole: nobody else may have it then.
            if flow.evacuated < clock {
                flow.evacuated = clock;
                self.effects.push(Effect::Send(target, Message::Push { key: *key, epoch, clock, holes, state: states.snapshot(key) }));
            }
        }
        left
    }
}
