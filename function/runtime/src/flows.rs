//! The flows of a unit and their state: what a function gets and puts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use pando_protocol::{Direction, FlowKey};

use crate::ends::Ends;

/// Functions of one chain.
pub const STAGES_MAX: usize = 8;

/// A flow's number in the table; it is good until the flow is removed.
pub type FlowId = u32;

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Whose packets these are.
    pub key: FlowKey,
    /// Direction of the first packet.
    pub first: Direction,
    /// When the last packet came.
    pub last_ns: u64,
    /// Bit per stage: has state.
    pub valid: u8,
    /// Bit per stage: a lease is set aside for it.
    pub leased: u8,
    /// Bit per stage: the function took that lease.
    pub taken: u8,
    /// Lease of each stage.
    pub leases: [u32; STAGES_MAX],
    /// How far the end of its connection has come.
    pub ends: Ends,
    /// Another key under which packets meet this flow: what its output looks like on return.
    pub alias: Option<FlowKey>,
    /// Batch that touched it last, and its place there.
    pub(crate) mark: Mark,
    used: bool,
}

/// Where a flow stands in the batch at work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub batch: u64,
    pub slot: u8,
    /// 1 + index of its latest packet.
    pub latest: u8,
    /// Bit per stage: its state changed in the batch.
    pub changed: u8,
    /// Whether it is among the batch's changed flows.
    pub noted: bool,
}

#[derive(Clone, Copy)]
struct Place {
    flow: FlowId,
    translated: bool,
}

/// What a packet meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// Its flow.
    pub flow: FlowId,
    /// Through the alias.
    pub translated: bool,
    /// Against the first packet's direction.
    pub reply: bool,
}

/// A table of flows, each with the state of every stage.
pub struct Flows {
    index: HashMap<FlowKey, Place, foldhash::fast::RandomState>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    states: Vec<u8>,
    /// Offset of each stage's state within a flow's, and the whole size at the end.
    offsets: Vec<usize>,
    flows_max: usize,
    swept: usize,
    /// Until here nobody says how long a flow was silent.
    seen_ns: u64,
}

impl Flows {
    /// A table of at most `flows_max` flows, whose stages keep `state_bytes` each.
    pub fn new(state_bytes: &[usize], flows_max: usize) -> Flows {
        let mut offsets = vec![0];
        for bytes in state_bytes {
            offsets.push(offsets[offsets.len() - 1] + bytes);
        }
        Flows {
            index: HashMap::default(),
            flows: Vec::new(),
            free: Vec::new(),
            states: Vec::new(),
            offsets,
            flows_max,
            swept: 0,
            seen_ns: 0,
        }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds a packet's flow or makes it; `None` when the table is full.
    pub fn meet(&mut self, key: FlowKey, direction: Direction, now_ns: u64) -> Option<Met> {
        let full = self.len() >= self.flows_max;
        let vacant = match self.index.entry(key) {
            Entry::Occupied(place) => {
                let Place { flow, translated } = *place.get();
                let f = &mut self.flows[flow as usize];
                f.last_ns = f.last_ns.max(now_ns);
                return Some(Met { flow, translated, reply: translated || f.first != direction });
            }
            Entry::Vacant(_) if full => return None,
            Entry::Vacant(vacant) => vacant,
        };
        let new = Flow {
            key,
            first: direction,
            last_ns: now_ns,
            valid: 0,
            leased: 0,
            taken: 0,
            leases: [0; STAGES_MAX],
            ends: Ends::default(),
            alias: None,
            mark: Mark::default(),
            used: true,
        };
        let stride = self.offsets[self.offsets.len() - 1];
        let flow = match self.free.pop() {
            Some(flow) => {
                self.flows[flow as usize] = new;
                self.states[flow as usize * stride..][..stride].fill(0);
                flow
            }
            None => {
                self.flows.push(new);
                self.states.resize(self.flows.len() * stride, 0);
                (self.flows.len() - 1) as FlowId
            }
        };
        vacant.insert(Place { flow, translated: false });
        Some(Met { flow, translated: false, reply: false })
    }

    /// The flow with this key, if there is one.
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        self.index.get(key).map(|p| p.flow)
    }

    /// A flow.
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }

    /// A flow, to change.
    pub fn flow_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.flows[id as usize]
    }

    /// The state of a flow at a stage; zeroes when it has none.
    pub fn state(&self, id: FlowId, stage: usize) -> &[u8] {
        let at = id as usize * self.offsets[self.offsets.len() - 1];
        &self.states[at + self.offsets[stage]..at + self.offsets[stage + 1]]
    }

    /// The same, to change.
    pub fn state_mut(&mut self, id: FlowId, stage: usize) -> &mut [u8] {
        let at = id as usize * self.offsets[self.offsets.len() - 1];
        &mut self.states[at + self.offsets[stage]..at + self.offsets[stage + 1]]
    }

    /// The state of all stages together.
    pub fn whole_state(&self, id: FlowId) -> &[u8] {
        let stride = self.offsets[self.offsets.len() - 1];
        &self.states[id as usize * stride..][..stride]
    }

    /// The same, to change.
    pub fn whole_state_mut(&mut self, id: FlowId) -> &mut [u8] {
        let stride = self.offsets[self.offsets.len() - 1];
        &mut self.states[id as usize * stride..][..stride]
    }

    /// Functions of the chain.
    pub fn stages(&self) -> usize {
        self.offsets.len() - 1
    }

    /// State of a flow at each stage, in bytes.
    pub fn stage_bytes(&self) -> Vec<usize> {
        self.offsets.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// Size of [`Flows::whole_state`].
    pub fn state_bytes(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    /// Lets packets of `key` meet the flow, too. A key that another flow has stays with that one.
    pub fn add_alias(&mut self, id: FlowId, key: FlowKey) {
        if self.flows[id as usize].alias == Some(key) {
            return;
        }
        if let Entry::Vacant(vacant) = self.index.entry(key) {
            vacant.insert(Place { flow: id, translated: true });
            if let Some(before) = self.flows[id as usize].alias.replace(key) {
                self.index.remove(&before);
            }
        }
    }

    /// Touches the memory of so many flows, so that the first of them that come find it there.
    pub fn warm(&mut self, flows: usize) {
        let flows = flows.min(self.flows_max);
        self.index.reserve(2 * flows);
        let key = |n: usize| {
            let mut bytes = [0; FlowKey::LENGTH_BYTES];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            FlowKey::from_bytes(bytes)
        };
        let made: Vec<FlowId> = (0..flows).filter_map(|n| Some(self.meet(key(n), Direction::Up, 0)?.flow)).collect();
        made.iter().for_each(|&id| self.add_alias(id, key(flows + id as usize)));
        made.into_iter().rev().for_each(|id| {
            self.remove(id);
        });
    }

    /// Removes a flow and returns what it was.
    pub fn remove(&mut self, id: FlowId) -> Flow {
        let flow = &mut self.flows[id as usize];
        assert!(flow.used, "flow {id} is removed twice");
        flow.used = false;
        let was = flow.clone();
        self.index.remove(&was.key);
        if let Some(alias) = was.alias {
            self.index.remove(&alias);
        }
        self.free.push(id);
        was
    }

    /// No flow counts as silent since before now: when each had its last packet is not known.
    pub fn see_all(&mut self, now_ns: u64) {
        self.seen_ns = now_ns;
    }

    /// Looks at the next `count` places and names the flows that were silent since `before_ns`, or since `closed_ns` when
    /// their connections are over.
    pub fn sweep(&mut self, count: usize, before_ns: u64, closed_ns: u64, idle: &mut Vec<FlowId>) {
        for _ in 0..count.min(self.flows.len()) {
            self.swept = (self.swept + 1) % self.flows.len();
            let flow = &self.flows[self.swept];
            let since_ns = if flow.ends.closed() { closed_ns } else { before_ns };
            if flow.used && flow.last_ns.max(self.seen_ns) < since_ns {
                idle.push(self.swept as FlowId);
            }
        }
    }

    /// A fingerprint of all flows: keys, aliases, leases and states, in whatever order they came. Not of the direction of
    /// their first packet: which one that was depends on the batches, until a packet leaves state.
    pub fn digest(&self) -> u64 {
        let of = |id: FlowId| {
            let flow = self.flow(id);
            let mut hasher = std::hash::DefaultHasher::new();
            (flow.key, flow.alias, flow.valid, flow.taken, self.whole_state(id)).hash(&mut hasher);
            (0..STAGES_MAX).filter(|at| flow.taken & 1 << at != 0).for_each(|at| flow.leases[at].hash(&mut hasher));
            hasher.finish()
        };
        self.ids().fold(0, |sum, id| sum.wrapping_add(of(id)))
    }

    /// All flows.
    pub fn ids(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.flows.iter().enumerate().filter(|(_, f)| f.used).map(|(n, _)| n as FlowId)
    }
}
