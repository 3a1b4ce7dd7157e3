//! The flows of a unit and their state, which functions get and put.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use pando_flow::{Direction, FlowKey};

use crate::ends::Ends;

/// Maximum functions of one chain.
pub const STAGES_MAX: usize = 8;

/// Index of a flow in the table, valid until the flow is removed.
pub type FlowId = u32;

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Key of the flow's packets.
    pub key: FlowKey,
    /// Direction of the first packet.
    pub first: Direction,
    /// Time of the last packet, or of the flow's arrival from another unit.
    pub last_ns: u64,
    /// The latest time that functions saw in a packet of the flow.
    pub(crate) time_ns: u64,
    /// Bit per stage: the flow has state.
    pub valid: u8,
    /// Bit per stage: the flow has a lease, taken or only offered.
    pub leased: u8,
    /// Bit per stage: the function took that lease.
    pub taken: u8,
    /// Lease of each stage.
    pub leases: [u32; STAGES_MAX],
    /// Progress towards the end of its connection.
    pub ends: Ends,
    /// Whether packets went both ways, so that a new flow never takes the place of this one.
    pub answered: bool,
    /// A second key with packets of this flow: the addresses that its output has on return.
    pub alias: Option<FlowKey>,
    /// The last batch that touched the flow, and the flow's place there.
    pub(crate) mark: Mark,
    used: bool,
}

impl Flow {
    /// Returns a bit per stage of which the last batch changed the state.
    #[inline]
    pub fn changed(&self) -> u8 {
        self.mark.changed
    }

    /// Notes a packet. Returns the time that functions see in it.
    pub(crate) fn note(&mut self, reply: bool, time_ns: u64) -> u64 {
        self.answered |= reply;
        self.time_ns = self.time_ns.max(time_ns);
        self.time_ns
    }
}

/// Place of a flow in the current batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub batch: u64,
    pub slot: u8,
    /// 1 + index of the flow's latest packet.
    pub latest: u8,
    /// Bit per stage: the state changed in the batch.
    pub changed: u8,
    /// Whether the flow is in the batch's list of changed flows.
    pub noted: bool,
}

/// Places that a packet without room searches. More would cost each packet of a flood more.
const SEARCHED: usize = 64;

#[derive(Clone, Copy)]
struct Place {
    flow: FlowId,
    translated: bool,
}

/// The flow that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The flow.
    pub flow: FlowId,
    /// The packet met the flow through the alias.
    pub translated: bool,
    /// The packet runs against the direction of the first packet.
    pub reply: bool,
}

/// A table of flows, each with the state of every stage.
pub struct Flows {
    index: HashMap<FlowKey, Place, foldhash::fast::RandomState>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    states: Vec<u8>,
    /// Offset of each stage's state within a flow's state, then the total size.
    offsets: Vec<usize>,
    flows_max: usize,
    swept: usize,
    /// Where the next search for a flow without an answer begins.
    searched: usize,
    /// Flows count as seen until this time, because their last packets are unknown.
    seen_ns: u64,
}

impl Flows {
    /// Returns a table of at most `flows_max` flows. Each stage keeps `state_bytes` bytes per flow.
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
            searched: 0,
            seen_ns: 0,
        }
    }

    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// Reports whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds or makes a packet's flow. Returns `None` when the table is full.
    #[inline]
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
            time_ns: 0,
            valid: 0,
            leased: 0,
            taken: 0,
            leases: [0; STAGES_MAX],
            ends: Ends::default(),
            answered: false,
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

    /// Returns the flow with this key, if any.
    #[inline]
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        self.index.get(key).map(|p| p.flow)
    }

    /// Returns a flow.
    #[inline]
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }

    /// Returns a flow by mutable reference.
    #[inline]
    pub fn flow_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.flows[id as usize]
    }

    /// Returns the state of a flow at a stage, or zeroes if it has none.
    #[inline]
    pub fn state(&self, id: FlowId, stage: usize) -> &[u8] {
        let at = id as usize * self.offsets[self.offsets.len() - 1];
        &self.states[at + self.offsets[stage]..at + self.offsets[stage + 1]]
    }

    /// Returns the state of a flow at a stage by mutable reference.
    #[inline]
    pub fn state_mut(&mut self, id: FlowId, stage: usize) -> &mut [u8] {
        let at = id as usize * self.offsets[self.offsets.len() - 1];
        &mut self.states[at + self.offsets[stage]..at + self.offsets[stage + 1]]
    }

    /// Returns the state of all stages together.
    #[inline]
    pub fn whole_state(&self, id: FlowId) -> &[u8] {
        let stride = self.offsets[self.offsets.len() - 1];
        &self.states[id as usize * stride..][..stride]
    }

    /// Returns the state of all stages together by mutable reference.
    #[inline]
    pub fn whole_state_mut(&mut self, id: FlowId) -> &mut [u8] {
        let stride = self.offsets[self.offsets.len() - 1];
        &mut self.states[id as usize * stride..][..stride]
    }

    /// Returns the number of functions in the chain.
    pub fn stages(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the bytes of a flow's state at each stage.
    pub fn stage_bytes(&self) -> Vec<usize> {
        self.offsets.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// Returns the size of [`Flows::whole_state`].
    pub fn state_bytes(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    /// Adds `key` as the flow's alias, so that its packets meet the flow. A key that another flow
    /// has stays with that flow, unless this flow has its lease now: then the other one is over and
    /// only waits for the sweep.
    pub fn add_alias(&mut self, id: FlowId, key: FlowKey) {
        if self.flows[id as usize].alias == Some(key) {
            return;
        }
        if let Some(&Place { flow: former, translated }) = self.index.get(&key) {
            if !translated || !self.has_lease_of(id, former) {
                return;
            }
            self.flows[former as usize].alias = None;
        }
        self.index.insert(key, Place { flow: id, translated: true });
        if let Some(before) = self.flows[id as usize].alias.replace(key) {
            self.index.remove(&before);
        }
    }

    /// Removes a flow's alias: its returning packets are unknown from now on.
    pub(crate) fn drop_alias(&mut self, id: FlowId) {
        if let Some(alias) = self.flows[id as usize].alias.take() {
            self.index.remove(&alias);
        }
    }

    /// Makes `key` free for a flow of its own: another flow that has it as alias loses the alias.
    pub(crate) fn free_key(&mut self, key: &FlowKey) {
        if let Some(&Place { flow, translated: true }) = self.index.get(key) {
            self.drop_alias(flow);
        }
    }

    /// Reports whether a flow has a number that another flow had.
    fn has_lease_of(&self, id: FlowId, former: FlowId) -> bool {
        let (flow, former) = (&self.flows[id as usize], &self.flows[former as usize]);
        (0..self.stages()).any(|at| {
            flow.leased & former.leased & 1 << at != 0 && flow.leases[at] == former.leases[at]
        })
    }

    /// Touches the memory of `flows` flows, so that the first real flows do not wait for it.
    pub fn warm(&mut self, flows: usize) {
        let flows = flows.min(self.flows_max);
        self.index.reserve(2 * flows);
        let key = |n: usize| {
            let mut bytes = [0; FlowKey::LENGTH_BYTES];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            FlowKey::from_bytes(bytes)
        };
        let made: Vec<FlowId> =
            (0..flows).filter_map(|n| Some(self.meet(key(n), Direction::Up, 0)?.flow)).collect();
        made.iter().for_each(|&id| self.add_alias(id, key(flows + id as usize)));
        made.into_iter().rev().for_each(|id| {
            self.remove(id);
        });
    }

    /// Removes a flow and returns its last contents.
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

    /// Makes every flow count as seen now, because the times of their last packets are unknown.
    pub fn see_all(&mut self, now_ns: u64) {
        self.seen_ns = now_ns;
    }

    /// Checks the next `count` places and adds idle flows to `idle`. A flow is idle if it was
    /// silent since `before_ns`, or since `closed_ns` if its connection is over.
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

    /// Returns the flow that a new one may replace in a full table, if any. Of the next
    /// [`SEARCHED`] places, it is the flow that was silent for longest, without an answer and since
    /// `before_ns`. A flow for which `is_used` holds stays.
    pub(crate) fn replaceable(
        &mut self,
        before_ns: u64,
        is_used: impl Fn(FlowId) -> bool,
    ) -> Option<FlowId> {
        let (places, from) = (self.flows.len(), self.searched);
        self.searched = (from + SEARCHED) % places.max(1);
        (0..SEARCHED.min(places))
            .map(|n| ((from + n) % places) as FlowId)
            .filter(|&id| {
                let flow = self.flow(id);
                flow.used
                    && !flow.answered
                    && flow.last_ns.max(self.seen_ns) < before_ns
                    && !is_used(id)
            })
            .min_by_key(|&id| self.flow(id).last_ns)
    }

    /// Returns a fingerprint of all flows: keys, aliases, leases and states. Their order does not
    /// matter. The direction of the first packet is left out: until a packet leaves state, it
    /// depends on the batches.
    pub fn digest(&self) -> u64 {
        let of = |id: FlowId| {
            let flow = self.flow(id);
            let mut hasher = std::hash::DefaultHasher::new();
            (flow.key, flow.alias, flow.valid, flow.taken, self.whole_state(id)).hash(&mut hasher);
            (0..STAGES_MAX)
                .filter(|at| flow.taken & 1 << at != 0)
                .for_each(|at| flow.leases[at].hash(&mut hasher));
            hasher.finish()
        };
        self.ids().fold(0, |sum, id| sum.wrapping_add(of(id)))
    }

    /// Returns the ids of all flows.
    pub fn ids(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.flows.iter().enumerate().filter(|(_, f)| f.used).map(|(n, _)| n as FlowId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> FlowKey {
        FlowKey::from_bytes([n; FlowKey::LENGTH_BYTES])
    }

    /// Adds a flow that has a number, as a packet would.
    fn leased(flows: &mut Flows, n: u8, number: u32) -> FlowId {
        let id = flows.meet(key(n), Direction::Up, 0).unwrap().flow;
        let flow = flows.flow_mut(id);
        (flow.leased, flow.taken, flow.leases[0]) = (1, 1, number);
        id
    }

    /// A NAT gives the port of a connection that is over to another one. The packets back belong to
    /// the new connection, even before the sweep finds the former one.
    #[test]
    fn an_alias_follows_the_number_to_the_next_flow() {
        let mut flows = Flows::new(&[8], 10);
        let former = leased(&mut flows, 1, 40_000);
        let next = leased(&mut flows, 2, 40_000);
        flows.add_alias(former, key(9));
        flows.add_alias(next, key(9));
        let met = flows.meet(key(9), Direction::Up, 0).unwrap();
        assert_eq!((met.flow, met.translated), (next, true));
        assert_eq!((flows.flow(former).alias, flows.flow(next).alias), (None, Some(key(9))));
        flows.remove(former);
        assert_eq!(
            flows.meet(key(9), Direction::Up, 0).unwrap().flow,
            next,
            "the sweep removed it"
        );
    }

    #[test]
    fn an_alias_stays_with_a_flow_that_has_another_number() {
        let mut flows = Flows::new(&[8], 10);
        let owner = leased(&mut flows, 1, 40_000);
        let other = leased(&mut flows, 2, 40_001);
        flows.add_alias(owner, key(9));
        flows.add_alias(other, key(9));
        flows.add_alias(other, key(1)); // the key of a flow
        assert_eq!(flows.meet(key(9), Direction::Up, 0).unwrap().flow, owner);
        assert_eq!(flows.meet(key(1), Direction::Up, 0).unwrap().flow, owner);
        assert_eq!(flows.flow(other).alias, None);
    }
}
