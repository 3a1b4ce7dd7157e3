//! Answers pulls: as the owner, as a former owner or replica, or as a future owner.

use std::cmp::Reverse;

use pando_flow::FlowKey;

use crate::UnitId;
use crate::handover::{Effect, Handover, States, known};
use crate::held::{Asked, Held, Role};
use crate::message::Message;

impl Handover {
    #[allow(clippy::too_many_arguments)] // the fields of one message
    pub(crate) fn pull_came(
        &mut self,
        now_ns: u64,
        by: UnitId,
        key: FlowKey,
        epoch: u32,
        want: u64,
        previous: UnitId,
        states: &mut impl States,
    ) {
        let sent_here = previous == self.unit;
        if sent_here && !self.flows.contains_key(&key) {
            self.flows.insert(key, Held { role: Role::Expected, ..Held::new(0, 0, now_ns) });
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            let unknown = Message::Answer { key, epoch, owned: 0, clock: 0, state: None };
            return self.effects.push(Effect::Send(by, unknown));
        };
        match &flow.role {
            // The flow left this unit and came back before the next owner could pull the state.
            Role::Waiting(_) if epoch < flow.epoch => {
                self.effects.push(Effect::Send(by, what_is_here(&key, epoch, flow)))
            }
            Role::Owner | Role::Waiting(_) if epoch <= flow.epoch => {}
            Role::Replica { .. } | Role::Fenced(_) | Role::Expected
                if !sent_here || epoch <= flow.epoch =>
            {
                self.effects.push(Effect::Send(by, what_is_here(&key, epoch, flow)));
            }
            _ => {
                if !flow.asked.iter().any(|a| a.by == by && a.epoch == epoch) {
                    let until_ns = now_ns + self.timing.settle_ns;
                    flow.asked.push(Asked { by, epoch, want, until_ns });
                    self.timers.push(Reverse((until_ns, key)));
                }
                self.answer(now_ns, &key, states);
            }
        }
    }

    /// Answers waiting pulls of an owned flow, once all packets are here or the wait for them is
    /// over.
    pub(crate) fn answer(&mut self, now_ns: u64, key: &FlowKey, states: &mut impl States) {
        let flow = self.flows.get_mut(key).expect("it is there");
        if !matches!(flow.role, Role::Owner) {
            return;
        }
        // Other units have answered the pulls for epochs that are over by now.
        let epoch = flow.epoch;
        flow.asked.retain(|a| a.epoch > epoch);
        // One at a time: a pull for a later epoch gets the state after the flow's next visit here.
        let Some(first) = (0..flow.asked.len()).min_by_key(|&n| flow.asked[n].epoch) else {
            return;
        };
        let asked = &flow.asked[first];
        let complete = flow.seen.clock >= asked.want && flow.seen.holes() == 0;
        if flow.pending > 0 || !complete && now_ns < asked.until_ns {
            return;
        }
        let asked = flow.asked.swap_remove(first);
        let (clock, state) = (flow.seen.clock, states.snapshot(key));
        states.forget(key);
        let owned = flow.epoch;
        flow.role = Role::Fenced(Some((owned, clock, state.clone())));
        flow.epoch = flow.epoch.max(asked.epoch);
        self.effects.push(Effect::Send(
            asked.by,
            Message::Answer { key: *key, epoch: asked.epoch, owned, clock, state: Some(state) },
        ));
        // Pulls for later epochs are answered when the packets in between have come, or at their
        // time limit.
        self.timers.extend(flow.asked.iter().map(|a| Reverse((a.until_ns.max(now_ns + 1), *key))));
    }

    /// Gives up on packets that other units expected here. Overdue pulls get the state at hand;
    /// packets that come later are stale.
    pub(crate) fn expect_no_longer(&mut self, now_ns: u64, key: &FlowKey) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        while let Some(n) = flow.asked.iter().position(|a| a.until_ns <= now_ns) {
            let asked = flow.asked.swap_remove(n);
            flow.epoch = flow.epoch.max(asked.epoch);
            if matches!(flow.role, Role::Expected) {
                flow.role = Role::Fenced(None);
            }
            self.effects.push(Effect::Send(asked.by, what_is_here(key, asked.epoch, flow)));
        }
    }
}

/// Returns the answer of a unit that does not own the flow to a pull for `epoch`.
fn what_is_here(key: &FlowKey, epoch: u32, flow: &Held) -> Message {
    let (owned, clock, state) = match &flow.role {
        Role::Replica { clock, holes, state } => (0, known(*clock, *holes), Some(state)),
        Role::Fenced(Some((owned, clock, state))) => (*owned, *clock, Some(state)),
        Role::Waiting(waiting) => {
            waiting.best.as_ref().map_or((0, 0, None), |(clock, state)| (0, *clock, Some(state)))
        }
        Role::Owner | Role::Fenced(None) | Role::Expected => (0, 0, None),
    };
    Message::Answer { key: *key, epoch, owned, clock, state: state.cloned() }
}
