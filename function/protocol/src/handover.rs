//! Who may touch the state of a flow, and how it gets there (SNF §5).
//!
//! ```text
//!               first packet of an epoch, state as of clock - 1 at hand
//!   (nothing) ─────────────────────────────────────────────────────────► owner ◄──┐
//!      │  ▲                                                               │  │    │ answer, or the
//!      │  └── push ──► replica ── packet, clock matches ──────────────────┘  │    │ deadline passed
//!      │                  │ packet, clock does not match                     │    │
//!      └── packet ────────┴────────────────────────────────► waiting ────────│────┘
//!                                                               ▲            │ pull with a higher epoch
//!                                                               │ packet     ▼
//!                                                               └───────── fenced
//! ```
//!
//! An owner pushes when the flow was silent for T/2, to the units that the header names. A unit answers a pull when it has
//! processed all packets that were sent to it, or when it has waited `settle_ns` for them; from then on it is fenced:
//! what still comes for an older epoch is stale and never changes state. Only the flow in question waits. An owner whose
//! replica was gone on with elsewhere is not asked; it hears of that by the next push to it, and has a replica from then on.
//!
//! Questions may overtake packets. A unit that does not know of the epoch before, and is said to have been sent its packets,
//! will own the flow when they come: its answer waits for them like an owner's. Else the flow would go on without them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::held::{Held, Role, Waiting};
use crate::message::{Message, Snapshot, fingerprint};
use crate::push::Pushed;
use crate::{FlowKey, Header, NO_UNIT, UnitId};

/// Times of the protocol, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Silence after which state is pushed: half of the flowlet timeout T (§5.2.1).
    pub push_after_ns: u64,
    /// How long an old owner waits for packets that were sent to it and did not come.
    pub settle_ns: u64,
    /// After this long without an answer, a pull goes to everybody; it is repeated, ever more seldom.
    pub retry_ns: u64,
    /// After this long, a flow goes on with the best state that was found.
    pub deadline_ns: u64,
}

impl Default for Timing {
    /// T = 500 µs. A pull on one host takes some 5 µs, between two in a rack some 50: 1 ms is no answer at all.
    fn default() -> Self {
        Timing { push_after_ns: 250_000, settle_ns: 500_000, retry_ns: 1_000_000, deadline_ns: 10_000_000 }
    }
}

/// A question is repeated after at most so many times `retry_ns`.
const RETRY_FACTOR_MAX: u64 = 64;

/// Up to where a state is whole that knows of `clock` and may lack `holes` packets before it.
pub(crate) fn known(clock: u64, holes: u32) -> u64 {
    clock.saturating_sub(holes.into())
}

/// Where the unit keeps the states that it owns.
pub trait States {
    /// Writes a flow's state down.
    fn snapshot(&self, key: &FlowKey) -> Snapshot;
    /// Makes a snapshot the flow's state; an empty one: the flow has none.
    fn install(&mut self, key: &FlowKey, snapshot: &[u8]);
    /// The flow is another unit's.
    fn forget(&mut self, key: &FlowKey);
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Process it, and say [`Handover::processed`].
    Run,
    /// Keep it until [`Effect::Release`] names its flow, then ask again.
    Hold,
    /// Drop it: it is a repetition, or its epoch is over and the state has moved on.
    Stale,
}

/// What is to be done besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a message to a unit.
    Send(UnitId, Message),
    /// The packets that wait for this flow's state may be asked for again.
    Release(FlowKey),
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Epochs that began with the state already here.
    pub seamless: u64,
    /// Epochs that began with a pull.
    pub pulled: u64,
    /// … of which some packets that the old owner was sent never reached it.
    pub with_gap: u64,
    /// … of which the deadline passed: the flow went on with an older state, or none.
    pub gave_up: u64,
    /// Packets that the states with which epochs began do not know of: they never came to their unit, or it died with
    /// what it made of them.
    pub updates_lost: u64,
    /// Packets that were refused as stale or repeated.
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
    /// What is to be done; whoever reads it empties it.
    pub effects: Vec<Effect>,
    /// What happened so far.
    pub counts: Counts,
}

impl Handover {
    /// The unit `unit` of a `group` (bit per unit).
    pub fn new(unit: UnitId, group: u64, timing: Timing) -> Handover {
        Handover { unit, group, timing, flows: HashMap::new(), timers: BinaryHeap::new(), effects: Vec::new(), counts: Counts::default() }
    }

    /// Flows that this unit knows of: own, replicas, fenced.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// A packet came.
    pub fn arrive(&mut self, now_ns: u64, key: &FlowKey, header: &Header, states: &mut impl States) -> Admission {
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
            // One of a later epoch waits, too: this epoch's packets come first, then the flow has to be fetched again.
            Role::Waiting(_) if header.epoch >= epoch => Admission::Hold,
            Role::Waiting(_) => self.stale(),
            Role::Fenced(_) if header.epoch <= epoch => self.stale(),
            Role::Replica { .. } if header.epoch < epoch => self.stale(),
            // It left and came back before any other unit processed a packet of it.
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

    /// The packet that [`Handover::arrive`] let run has been processed. Packets may queue in between: until the last of them
    /// has been processed, the state goes nowhere.
    pub fn processed(&mut self, now_ns: u64, key: &FlowKey, states: &mut impl States) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        flow.pending -= 1;
        flow.last_ns = now_ns;
        flow.evacuated = 0; // also by a packet that comes after later ones
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

    fn pull(&mut self, now_ns: u64, key: &FlowKey, header: &Header, states: &impl States) -> Admission {
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
            let message = Message::Pull { key: *key, epoch: header.epoch, clock: want, previous: header.previous };
            self.effects.push(Effect::Send(header.previous, message));
        } else {
            self.search(key);
        }
        self.timers.push(Reverse((now_ns + self.timing.retry_ns, *key)));
        Admission::Hold
    }

    /// A message came from another unit.
    pub fn message(&mut self, now_ns: u64, from: UnitId, message: Message, states: &mut impl States) {
        match message {
            Message::Push { key, epoch, clock, holes, state } => {
                self.push_came(now_ns, from, key, Pushed { epoch, clock, holes, state: Ok(state) }, states);
            }
            Message::Unchanged { key, epoch, clock, holes, print } => {
                self.push_came(now_ns, from, key, Pushed { epoch, clock, holes, state: Err(print) }, states);
            }
            Message::Pull { key, epoch, clock, previous } => self.pull_came(now_ns, from, key, epoch, clock, previous, states),
            Message::Answer { key, epoch, owned, clock, state } => self.answer_came(now_ns, from, key, epoch, owned, clock, state, states),
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
                // From the owner of the epoch before, an answer is final even with a gap: that one is fenced now.
                if complete || owned + 1 == epoch {
                    self.counts.with_gap += u64::from(!complete);
                    return self.resume(now_ns, &key, states);
                } else if !waiting.searching {
                    return self.search(&key);
                }
            }
            // Once: everybody who is asked may not know either. The timer repeats it.
            None if !waiting.searching => return self.search(&key),
            None => {}
        }
        // An owner does not answer before it is done, so when all have, nobody has a newer one: its owner died.
        if self.group & !(1 << self.unit | waiting.answered) == 0 {
            self.counts.gave_up += 1;
            self.resume(now_ns, &key, states);
        }
    }

    /// The state is as good as it gets: the flow goes on.
    pub(crate) fn resume(&mut self, now_ns: u64, key: &FlowKey, states: &mut impl States) {
        let flow = self.flows.get_mut(key).expect("it is there");
        let Role::Waiting(waiting) = &mut flow.role else { return };
        let (clock, state) = waiting.best.take().unwrap_or_default();
        let (epoch, want) = (flow.epoch, waiting.want);
        self.counts.updates_lost += want.saturating_sub(clock);
        states.install(key, &state);
        flow.own(epoch, want);
        // Whoever asked meanwhile waits for the packets that are held here, and these come first.
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
            let message = Message::Pull { key: *key, epoch: flow.epoch, clock: waiting.want, previous: waiting.from };
            self.effects.push(Effect::Send(unit, message));
        }
    }

    /// When [`Handover::tick`] has something to do.
    pub fn next_tick_ns(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Does what is due: pushes, repetitions, deadlines.
    pub fn tick(&mut self, now_ns: u64, states: &mut impl States) {
        while let Some(Reverse((due_ns, key))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                return;
            }
            self.timers.pop();
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            match &mut flow.role {
                // Timers of other purposes come by, too; only the one that was set last repeats the question.
                Role::Waiting(waiting) if now_ns < waiting.retry_at_ns => {}
                // Nobody is there to be asked, or nobody has answered for too long.
                Role::Waiting(waiting) if self.group & !(1 << self.unit) == 0 || now_ns >= waiting.since_ns + self.timing.deadline_ns => {
                    self.counts.gave_up += 1;
                    self.resume(now_ns, &key, states);
                }
                Role::Waiting(waiting) => {
                    // Ever more seldom: who is slow because of many questions does not get more of them.
                    let pause_ns = (now_ns - waiting.since_ns).clamp(self.timing.retry_ns, RETRY_FACTOR_MAX * self.timing.retry_ns);
                    waiting.retry_at_ns = (now_ns + pause_ns).min(waiting.since_ns + self.timing.deadline_ns);
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

    /// Forgets a flow: it ended, or was silent for too long.
    pub fn forget(&mut self, key: &FlowKey) {
        self.flows.remove(key);
    }

    /// Forgets the flows that were silent since `before_ns`, except those that wait.
    pub fn sweep(&mut self, before_ns: u64) {
        self.flows.retain(|_, flow| flow.last_ns >= before_ns || matches!(flow.role, Role::Waiting(_)) || flow.pending > 0);
    }
}
