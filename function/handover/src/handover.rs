//! Decides which unit may use the state of a flow, and how the state gets there (SNF §5).
//!
//! ```text
//!               first packet of an epoch, state as of clock - 1 at hand
//!   (nothing) ────────────────────────────────────────────────────► owner ◄──┐
//!      │  ▲                                                          │  │    │ answer, or the
//!      │  └── push ──► replica ── packet, clock matches ────────────┘  │    │ deadline passed
//!      │                  │ packet, clock does not match                │    │
//!      └── packet ────────┴───────────────────────────► waiting ────────│────┘
//!                                                          ▲            │ pull with a higher epoch
//!                                                          │ packet     ▼
//!                                                          └───────── fenced
//! ```
//!
//! An owner pushes to the units that the header names when the flow was silent for T/2. A unit
//! answers a pull when it has processed all packets sent to it, or when it has waited `settle_ns`
//! for them. From then on it is fenced: later packets of an older epoch are stale and never change
//! state. Only the flow in question waits.
//!
//! A flow may continue elsewhere from a replica, without a pull to its old owner. The next push to
//! the old owner ends its ownership and makes it a replica.
//!
//! A pull may overtake packets. A unit may receive a pull that names it as the previous owner
//! before it has packets of that epoch. It will own the flow when they arrive, so its answer waits
//! for them like an owner's. Otherwise the flow would continue without them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use pando_flow::FlowKey;

use crate::held::{Held, Pushed, Role, Waiting};
use crate::message::{Message, Snapshot, fingerprint};
use crate::{Header, NO_UNIT, UnitId};

/// Times of the protocol, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Silence after which state is pushed: half of the flowlet timeout T (§5.2.1).
    pub push_after_ns: u64,
    /// How long an old owner waits for missing packets that were sent to it.
    pub settle_ns: u64,
    /// After this long without an answer, a pull goes to all units. It is repeated with growing
    /// pauses.
    pub retry_ns: u64,
    /// After this long, a flow continues with the best state found.
    pub deadline_ns: u64,
}

impl Default for Timing {
    /// T = 500 µs. A pull takes some 5 µs on one host and some 50 µs between two hosts in a rack.
    /// After 1 ms there will be no answer.
    fn default() -> Self {
        Timing {
            push_after_ns: 250_000,
            settle_ns: 500_000,
            retry_ns: 1_000_000,
            deadline_ns: 10_000_000,
        }
    }
}

/// The longest pause between two pulls, in multiples of `retry_ns`.
const RETRY_FACTOR_MAX: u64 = 64;

/// Returns the clock of a complete state that has as many packets: `clock` less the `holes` packets
/// that may be missing before it.
pub(crate) fn known(clock: u64, holes: u32) -> u64 {
    clock.saturating_sub(holes.into())
}

/// Stores the states that the unit owns.
pub trait States {
    /// Returns a snapshot of a flow's state.
    fn snapshot(&self, key: &FlowKey) -> Snapshot;
    /// Sets the flow's state to a snapshot; an empty one removes the state.
    fn install(&mut self, key: &FlowKey, snapshot: &[u8]);
    /// Removes the state: another unit owns the flow.
    fn forget(&mut self, key: &FlowKey);
}

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Process it, then call [`Handover::processed`].
    Run,
    /// Keep it until [`Effect::Release`] names its flow, then call [`Handover::arrive`] again.
    Hold,
    /// Drop it: it is a repetition, or its epoch is over and the state has moved on.
    Stale,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a message to a unit.
    Send(UnitId, Message),
    /// Call [`Handover::arrive`] again for the packets that wait for this flow's state.
    Release(FlowKey),
}

/// Counts of events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Epochs that began with the state already here.
    pub seamless: u64,
    /// Epochs that began with a pull.
    pub pulled: u64,
    /// … of which some packets sent to the old owner never reached it.
    pub with_gap: u64,
    /// … of which the deadline passed: the flow continued with an older state, or none.
    pub gave_up: u64,
    /// Packets missing from the states with which epochs began. They never reached their unit, or
    /// it died with their changes.
    pub updates_lost: u64,
    /// Packets refused as stale or repeated.
    pub stale: u64,
    /// Pushes of whole states.
    pub pushes: u64,
    /// Pushes to units that had the state: only its fingerprint.
    pub unchanged: u64,
}

/// The protocol's state machine in one unit.
pub struct Handover {
    pub(crate) unit: UnitId,
    /// Bit per unit of the group.
    pub(crate) group: u64,
    pub(crate) timing: Timing,
    pub(crate) flows: HashMap<FlowKey, Held>,
    pub(crate) timers: BinaryHeap<Reverse<(u64, FlowKey)>>,
    /// Actions to perform; the caller drains the list.
    pub effects: Vec<Effect>,
    /// Counts of events so far.
    pub counts: Counts,
}

impl Handover {
    /// Returns the state machine of `unit` in a `group` (bit per unit).
    pub fn new(unit: UnitId, group: u64, timing: Timing) -> Handover {
        Handover {
            unit,
            group,
            timing,
            flows: HashMap::new(),
            timers: BinaryHeap::new(),
            effects: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the number of recorded flows: owned, replicas, fenced.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Decides on a packet that arrived.
    pub fn arrive(
        &mut self,
        now_ns: u64,
        key: &FlowKey,
        header: &Header,
        states: &mut impl States,
    ) -> Admission {
        let before = header.clock_before_epoch();
        if self.flows.get(key).is_none_or(|flow| matches!(flow.role, Role::Expected)) {
            let asked = self.flows.remove(key).map(|flow| flow.asked).unwrap_or_default();
            let mut flow = Held { asked, ..Held::new(header.epoch, before, now_ns) };
            if header.previous != NO_UNIT {
                flow.role = Role::Fenced(None);
            }
            self.flows.insert(*key, flow);
            if header.previous == NO_UNIT {
                return self.run(now_ns, key, header);
            }
            return self.pull(now_ns, key, header, states);
        }
        let flow = self.flows.get_mut(key).expect("it is there");
        let epoch = flow.epoch;
        match &mut flow.role {
            Role::Owner if header.epoch <= epoch => self.run(now_ns, key, header),
            // A packet of a later epoch waits as well: this epoch's packets come first, then a new
            // pull.
            Role::Waiting(_) if header.epoch >= epoch => Admission::Hold,
            Role::Waiting(_) => self.stale(),
            Role::Fenced(_) if header.epoch <= epoch => self.stale(),
            Role::Replica { .. } if header.epoch < epoch => self.stale(),
            // Steering forgot the flow for want of room, and begins it anew at this unit. Earlier
            // packets come first.
            Role::Owner | Role::Replica { .. } | Role::Fenced(_)
                if header.previous == NO_UNIT && header.epoch > epoch && flow.pending == 0 =>
            {
                flow.own(header.epoch, before);
                self.run(now_ns, key, header)
            }
            // The flow left and came back before another unit processed a packet of it.
            Role::Owner if flow.seen.clock == before && flow.seen.holes() == 0 => {
                flow.epoch = header.epoch;
                self.counts.seamless += 1;
                self.run(now_ns, key, header)
            }
            Role::Replica { clock, holes: 0, state } if *clock == before => {
                states.install(key, state);
                flow.own(header.epoch, before);
                self.counts.seamless += 1;
                self.run(now_ns, key, header)
            }
            _ => self.pull(now_ns, key, header, states),
        }
    }

    fn stale(&mut self) -> Admission {
        self.counts.stale += 1;
        Admission::Stale
    }

    fn run(&mut self, now_ns: u64, key: &FlowKey, header: &Header) -> Admission {
        let flow = self.flows.get_mut(key).expect("it is there");
        if !flow.seen.is_new(header.clock) {
            return self.stale();
        }
        flow.seen.insert(header.clock);
        flow.pending += 1;
        flow.last_ns = now_ns;
        flow.replicas = header.replicas & !(1 << self.unit);
        Admission::Run
    }

    /// Notes that a packet admitted by [`Handover::arrive`] was processed. Packets may queue in
    /// between. The state stays here until the last of them is processed.
    pub fn processed(&mut self, now_ns: u64, key: &FlowKey, states: &mut impl States) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        flow.pending -= 1;
        flow.last_ns = now_ns;
        flow.evacuated = 0; // even if a late packet leaves the clock as it is
        if !flow.push_is_due && flow.replicas != 0 {
            flow.push_is_due = true;
            self.timers.push(Reverse((now_ns + self.timing.push_after_ns, *key)));
        }
        if flow.pending == 0 && std::mem::take(&mut flow.later) {
            self.effects.push(Effect::Release(*key));
        }
        if !self.flows[key].asked.is_empty() {
            self.answer(now_ns, key, states);
        }
    }

    fn pull(
        &mut self,
        now_ns: u64,
        key: &FlowKey,
        header: &Header,
        states: &impl States,
    ) -> Admission {
        let flow = self.flows.get_mut(key).expect("it is there");
        if flow.pending > 0 {
            flow.later = true;
            return Admission::Hold;
        }
        let want = header.clock_before_epoch();
        let best = match std::mem::replace(&mut flow.role, Role::Fenced(None)) {
            Role::Replica { clock, holes, state } => Some((known(clock, holes), state)),
            Role::Waiting(waiting) => waiting.best,
            Role::Expected => None,
            Role::Fenced(left) => left.map(|(_, clock, state)| (clock, state)),
            Role::Owner => Some((flow.seen.clock, states.snapshot(key))),
        };
        flow.role = Role::Waiting(Waiting {
            from: header.previous,
            want,
            since_ns: now_ns,
            retry_at_ns: now_ns + self.timing.retry_ns,
            searching: false,
            answered: 0,
            best,
        });
        flow.epoch = header.epoch;
        self.counts.pulled += 1;
        if self.group >> (header.previous & 63) & 1 == 1 {
            let message = Message::Pull {
                key: *key,
                epoch: header.epoch,
                clock: want,
                previous: header.previous,
            };
            self.effects.push(Effect::Send(header.previous, message));
        } else {
            self.search(key);
        }
        self.timers.push(Reverse((now_ns + self.timing.retry_ns, *key)));
        Admission::Hold
    }

    /// Handles a message from another unit.
    pub fn message(
        &mut self,
        now_ns: u64,
        from: UnitId,
        message: Message,
        states: &mut impl States,
    ) {
        match message {
            Message::Push { key, epoch, clock, holes, state } => {
                self.push_came(
                    now_ns,
                    from,
                    key,
                    Pushed { epoch, clock, holes, state: Ok(state) },
                    states,
                );
            }
            Message::Unchanged { key, epoch, clock, holes, print } => {
                self.push_came(
                    now_ns,
                    from,
                    key,
                    Pushed { epoch, clock, holes, state: Err(print) },
                    states,
                );
            }
            Message::Pull { key, epoch, clock, previous } => {
                self.pull_came(now_ns, from, key, epoch, clock, previous, states)
            }
            Message::Answer { key, epoch, owned, clock, state } => {
                self.answer_came(now_ns, from, key, epoch, owned, clock, state, states)
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one message
    fn answer_came(
        &mut self,
        now_ns: u64,
        from: UnitId,
        key: FlowKey,
        epoch: u32,
        owned: u32,
        clock: u64,
        state: Option<Snapshot>,
        states: &mut impl States,
    ) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let Role::Waiting(waiting) = &mut flow.role else { return };
        if epoch != flow.epoch {
            return;
        }
        if waiting.searching {
            waiting.answered |= 1 << (from & 63);
        }
        match state {
            Some(state) => {
                *flow.known.units(fingerprint(&state)) |= 1 << (from & 63);
                let complete = clock == waiting.want;
                if waiting.better(clock) {
                    waiting.best = Some((clock, state));
                }
                // The answer of the previous epoch's owner is final even with a gap: that owner is
                // fenced now.
                if complete || owned + 1 == epoch {
                    self.counts.with_gap += u64::from(!complete);
                    return self.resume(now_ns, &key, states);
                } else if !waiting.searching {
                    return self.search(&key);
                }
            }
            // Search once: the other units may lack the state, and would start it again. The timer
            // repeats it.
            None if !waiting.searching => return self.search(&key),
            None => {}
        }
        // An owner does not answer before it is done. If all have answered, no newer state exists:
        // its owner died.
        if self.group & !(1 << self.unit | waiting.answered) == 0 {
            self.counts.gave_up += 1;
            self.resume(now_ns, &key, states);
        }
    }

    /// Continues the flow: no better state will come.
    pub(crate) fn resume(&mut self, now_ns: u64, key: &FlowKey, states: &mut impl States) {
        let flow = self.flows.get_mut(key).expect("it is there");
        let Role::Waiting(waiting) = &mut flow.role else { return };
        let (clock, state) = waiting.best.take().unwrap_or_default();
        let (epoch, want) = (flow.epoch, waiting.want);
        self.counts.updates_lost += want.saturating_sub(clock);
        states.install(key, &state);
        flow.own(epoch, want);
        // Units that asked meanwhile wait for the packets held here, which come first.
        for asked in &mut flow.asked {
            asked.until_ns = now_ns + self.timing.settle_ns;
            self.timers.push(Reverse((asked.until_ns, *key)));
        }
        self.effects.push(Effect::Release(*key));
    }

    /// Asks all units of the group.
    pub(crate) fn search(&mut self, key: &FlowKey) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let Role::Waiting(waiting) = &mut flow.role else { return };
        (waiting.searching, waiting.answered) = (true, 0);
        for unit in (0..64).filter(|u| (self.group & !(1 << self.unit)) >> u & 1 == 1) {
            let message = Message::Pull {
                key: *key,
                epoch: flow.epoch,
                clock: waiting.want,
                previous: waiting.from,
            };
            self.effects.push(Effect::Send(unit, message));
        }
    }

    /// Returns the next time at which [`Handover::tick`] has work.
    pub fn next_tick_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Performs due pushes, repetitions and deadlines.
    pub fn tick(&mut self, now_ns: u64, states: &mut impl States) {
        while let Some(Reverse((due_ns, key))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                return;
            }
            self.timers.pop();
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            match &mut flow.role {
                // Other timers of the flow fire here as well; only the last one set repeats the
                // pull.
                Role::Waiting(waiting) if now_ns < waiting.retry_at_ns => {}
                // The group has no other unit, or none has answered for too long.
                Role::Waiting(waiting)
                    if self.group & !(1 << self.unit) == 0
                        || now_ns >= waiting.since_ns + self.timing.deadline_ns =>
                {
                    self.counts.gave_up += 1;
                    self.resume(now_ns, &key, states);
                }
                Role::Waiting(waiting) => {
                    // Pauses grow, so that a unit slowed by many pulls does not receive more.
                    let pause_ns = (now_ns - waiting.since_ns)
                        .clamp(self.timing.retry_ns, RETRY_FACTOR_MAX * self.timing.retry_ns);
                    waiting.retry_at_ns =
                        (now_ns + pause_ns).min(waiting.since_ns + self.timing.deadline_ns);
                    self.timers.push(Reverse((waiting.retry_at_ns, key)));
                    self.search(&key);
                }
                Role::Owner => {
                    self.answer(now_ns, &key, states);
                    self.push(now_ns, &key, states);
                }
                Role::Replica { .. } | Role::Fenced(_) | Role::Expected => {
                    flow.push_is_due = false;
                    self.expect_no_longer(now_ns, &key);
                }
            }
        }
    }

    /// Forgets a flow that ended or was silent for too long.
    pub fn forget(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// Forgets the flows that were silent since `before_ns`, except those that wait.
    pub fn sweep(&mut self, before_ns: u64) {
        self.flows.retain(|_, flow| {
            flow.last_ns >= before_ns || matches!(flow.role, Role::Waiting(_)) || flow.pending > 0
        });
    }
}
