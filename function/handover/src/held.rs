//! A unit's record of one flow: its role, the packets seen, and the units that wait for it.

use crate::UnitId;
use crate::message::Snapshot;
use crate::seen::Seen;

pub(crate) struct Waiting {
    /// The first unit asked.
    pub(crate) from: UnitId,
    pub(crate) want: u64,
    pub(crate) since_ns: u64,
    pub(crate) retry_at_ns: u64,
    pub(crate) searching: bool,
    /// Bit per unit that has answered since.
    pub(crate) answered: u64,
    /// The best state found, and its clock.
    pub(crate) best: Option<(u64, Snapshot)>,
}

/// The contents of a push.
pub(crate) struct Pushed {
    pub(crate) epoch: u32,
    pub(crate) clock: u64,
    pub(crate) holes: u32,
    /// The state, or the fingerprint of a state that should be here.
    pub(crate) state: Result<Snapshot, u32>,
}

pub(crate) struct Asked {
    pub(crate) by: UnitId,
    pub(crate) epoch: u32,
    pub(crate) want: u64,
    pub(crate) until_ns: u64,
}

pub(crate) enum Role {
    Owner,
    Replica {
        clock: u64,
        holes: u32,
        state: Snapshot,
    },
    Waiting(Waiting),
    /// Unknown here, but another unit reports that packets were sent here.
    Expected,
    /// Fenced, with the state handed over (epoch, clock, state) in case the answer was lost.
    Fenced(Option<(u32, u64, Snapshot)>),
}

pub(crate) struct Held {
    pub(crate) role: Role,
    pub(crate) epoch: u32,
    /// Packets that may run or have run.
    pub(crate) seen: Seen,
    /// … of which this many have not run yet. Until they have, the state lacks packets of `seen`.
    pub(crate) pending: u32,
    /// Packets of a later epoch wait for those.
    pub(crate) later: bool,
    pub(crate) last_ns: u64,
    pub(crate) replicas: u64,
    /// Packets that have run, as far as the output log has received them.
    pub(crate) done: Seen,
    /// The units that have the last pushed state, from here or from elsewhere.
    pub(crate) known: Known,
    /// The clock up to which the leaving unit has handed over the flow.
    pub(crate) evacuated: u64,
    pub(crate) push_is_due: bool,
    pub(crate) asked: Vec<Asked>,
}

/// The units that have one state: it was pushed to them, or came from them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    print: u32,
    units: u64,
}

impl Known {
    /// Returns a bit for each unit that has the state with this fingerprint. A new fingerprint
    /// clears the set.
    pub(crate) fn units(&mut self, print: u32) -> &mut u64 {
        if self.print != print {
            *self = Known { print, units: 0 };
        }
        &mut self.units
    }

    /// Notes that these units may lack the state.
    pub(crate) fn forget(&mut self, units: u64) {
        self.units &= !units;
    }
}

impl Held {
    pub(crate) fn new(epoch: u32, clock: u64, now_ns: u64) -> Held {
        Held {
            role: Role::Owner,
            epoch,
            seen: Seen::all_up_to(clock),
            pending: 0,
            later: false,
            last_ns: now_ns,
            replicas: 0,
            done: Seen::all_up_to(clock),
            known: Known::default(),
            evacuated: 0,
            push_is_due: false,
            asked: Vec::new(),
        }
    }

    /// Takes the flow over from another unit.
    pub(crate) fn own(&mut self, epoch: u32, clock: u64) {
        self.role = Role::Owner;
        self.epoch = epoch;
        self.seen = Seen::all_up_to(clock);
        self.done = Seen::all_up_to(clock);
        self.evacuated = 0;
        self.push_is_due = false;
    }
}

impl Waiting {
    pub(crate) fn better(&self, clock: u64) -> bool {
        clock <= self.want && self.best.as_ref().is_none_or(|(best, _)| clock > *best)
    }
}
