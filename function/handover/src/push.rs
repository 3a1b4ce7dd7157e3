//! Pushes states ahead of their flow (SNF §5.2.1): when to send them, and how a unit handles
//! received ones.
//!
//! A unit that has a state receives only its fingerprint, unless the state is shorter. An unchanged
//! state thus travels once to each unit. After a lost push, the receiver's state does not match the
//! fingerprint. The receiver then pulls when the flow arrives, as if no push had come.

use std::cmp::Reverse;

use pando_flow::FlowKey;

use crate::UnitId;
use crate::handover::{Effect, Handover, States, known};
use crate::held::{Held, Pushed, Role};
use crate::message::{Message, Snapshot, fingerprint};

impl Handover {
    pub(crate) fn push(&mut self, now_ns: u64, key: &FlowKey, states: &impl States) {
        let flow = self.flows.get_mut(key).expect("it is there");
        if !matches!(flow.role, Role::Owner) || !flow.push_is_due {
            return;
        }
        // With queued packets the flow is not silent. Try again after the last one is processed.
        let silent_at = flow.last_ns + self.timing.push_after_ns;
        if flow.pending > 0 || silent_at > now_ns {
            self.timers
                .push(Reverse((silent_at.max(now_ns + self.timing.push_after_ns / 4), *key)));
            return;
        }
        flow.push_is_due = false;
        let (key, epoch, clock, holes) = (*key, flow.epoch, flow.seen.clock, flow.seen.holes());
        let state = states.snapshot(&key);
        let print = fingerprint(&state);
        let known = flow.known.units(print);
        let is_short = state.len() < size_of_val(&print);
        for unit in (0..64).filter(|u| flow.replicas >> u & 1 == 1) {
            let message = if *known >> unit & 1 == 1 && !is_short {
                self.counts.unchanged += 1;
                Message::Unchanged { key, epoch, clock, holes, print }
            } else {
                self.counts.pushes += 1;
                Message::Push { key, epoch, clock, holes, state: state.clone() }
            };
            self.effects.push(Effect::Send(unit, message));
        }
        *known |= flow.replicas;
    }

    /// Notes that a push could not be sent, so its receiver lacks the state.
    pub fn unsent(&mut self, to: UnitId, key: &FlowKey) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.known.forget(1 << (to & 63));
        }
    }

    pub(crate) fn push_came(
        &mut self,
        now_ns: u64,
        from: UnitId,
        key: FlowKey,
        pushed: Pushed,
        states: &mut impl States,
    ) {
        let Pushed { epoch, clock, holes, state } = pushed;
        let Some(flow) = self.flows.get_mut(&key) else {
            if let Ok(state) = state {
                let mut flow = Held::new(epoch, clock, now_ns);
                *flow.known.units(fingerprint(&state)) |= 1 << (from & 63);
                flow.role = Role::Replica { clock, holes, state };
                self.flows.insert(key, flow);
            }
            return;
        };
        let state = match state {
            Ok(state) => Some(state),
            Err(print) => flow.copy(&key, states).filter(|state| fingerprint(state) == print),
        };
        if let Some(state) = &state {
            *flow.known.units(fingerprint(state)) |= 1 << (from & 63);
        }
        match (&mut flow.role, state) {
            (Role::Waiting(waiting), Some(state)) if epoch < flow.epoch => {
                let clock = known(clock, holes);
                if waiting.better(clock) {
                    let complete = clock == waiting.want;
                    waiting.best = Some((clock, state));
                    if complete {
                        self.resume(now_ns, &key, states);
                    }
                }
            }
            // The flow continued elsewhere from a replica. Its old owner learns that its epoch is
            // over only here.
            (Role::Owner, Some(state)) if epoch > flow.epoch && flow.pending == 0 => {
                states.forget(&key);
                flow.role = Role::Replica { clock, holes, state };
                (flow.epoch, flow.last_ns) = (epoch, now_ns);
            }
            (Role::Fenced(_) | Role::Expected, Some(state)) if epoch >= flow.epoch => {
                flow.role = Role::Replica { clock, holes, state };
                (flow.epoch, flow.last_ns) = (epoch, now_ns);
            }
            (Role::Replica { clock: at, .. }, Some(state))
                if (epoch, clock) >= (flow.epoch, *at) =>
            {
                flow.role = Role::Replica { clock, holes, state };
                (flow.epoch, flow.last_ns) = (epoch, now_ns);
            }
            // A push in between was lost: the state here is useless until the next whole one.
            (Role::Replica { clock: at, .. }, None) if (epoch, clock) >= (flow.epoch, *at) => {
                flow.role = Role::Fenced(None)
            }
            _ => {}
        }
    }
}

impl Held {
    /// Returns this unit's copy of the state, if it has one, in any role.
    fn copy(&self, key: &FlowKey, states: &impl States) -> Option<Snapshot> {
        match &self.role {
            Role::Owner if self.pending == 0 => Some(states.snapshot(key)),
            Role::Replica { state, .. } | Role::Fenced(Some((_, _, state))) => Some(state.clone()),
            Role::Waiting(waiting) => waiting.best.as_ref().map(|(_, state)| state.clone()),
            Role::Owner | Role::Fenced(None) | Role::Expected => None,
        }
    }
}
