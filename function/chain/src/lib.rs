//! A chain of functions in one unit (SNF §4.2). Batches enter; packets and state leave. It does no
//! I/O.

mod arrival;
pub mod codec;
mod datagrams;
pub mod ends;
mod fate;
pub mod flows;
mod handed;
pub mod leases;
mod stage;
mod turn;
mod zeros;

use pando_abi::executor::{Executor, Trap};
use pando_abi::{self as abi, BATCH_PACKETS};
use pando_flow::fragments::Taken;
use pando_flow::{Direction, FlowKey};

use crate::ends::CLOSED_NS;
use crate::flows::{FlowId, Flows, Met, STAGES_MAX};
pub use arrival::Arrival;
use datagrams::Datagrams;
pub use datagrams::Frames;
pub use fate::Fate;
pub use stage::{Stage, Work};

/// Limits of a chain that its functions cannot change.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Maximum flows of one unit.
    pub flows_max: usize,
    /// Idle time after which a flow is forgotten.
    pub idle_ns: u64,
    /// Whether a packet passes unchanged if a function traps on it.
    pub trapped_passes: bool,
}

impl Default for Policy {
    /// Returns the defaults: 65,536 flows, an idle time of 300 s, and a dropped packet for a trap.
    /// RFC 4787 asks a NAT for at least 2 minutes.
    fn default() -> Self {
        Policy { flows_max: 1 << 16, idle_ns: 300_000_000_000, trapped_passes: false }
    }
}

/// An event that a function reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Index of the function in the chain.
    pub stage: usize,
    /// Flow of the packet.
    pub key: FlowKey,
    /// The function's own code.
    pub code: u32,
    /// Time at which the packet arrived.
    pub time_ns: u64,
}

/// Place of a packet's bytes on its way through the chain.
#[derive(Clone, Copy)]
enum Place {
    Arrived,
    Memory(usize, usize),
    Saved(usize, usize),
}

struct Live {
    index: usize,
    met: Met,
    outer: bool,
    place: Place,
    /// The packet's time, which never decreases within its flow.
    time_ns: u64,
}

/// Functions that every packet passes in order, and the flows of their unit.
pub struct Chain<E> {
    stages: Vec<Stage<E>>,
    /// The flows and their state.
    pub flows: Flows,
    policy: Policy,
    batch: u64,
    /// Events that functions reported. The reader empties this.
    pub events: Vec<Event>,
    /// Flows that the last batch changed.
    pub changed: Vec<FlowId>,
    /// Keys of forgotten flows, if a log needs them. The reader empties this.
    pub forgotten: Option<Vec<FlowKey>>,
    /// Number of flows without an answer that new flows replaced in the full table.
    pub replaced: u64,
    fates: Vec<Fate>,
    touched: Vec<FlowId>,
    live: Vec<Live>,
    saved: Vec<u8>,
    idle: Vec<FlowId>,
    datagrams: Datagrams,
}

impl<E: Executor> Chain<E> {
    /// Returns a chain of 1 to 8 functions.
    pub fn new(stages: Vec<Stage<E>>, policy: Policy) -> Chain<E> {
        assert!(
            (1..=STAGES_MAX).contains(&stages.len()),
            "a chain has 1 to {STAGES_MAX} functions, not {}",
            stages.len()
        );
        let state_bytes: Vec<usize> =
            stages.iter().map(|s| s.executor.descriptor().state_bytes).collect();
        Chain {
            flows: Flows::new(&state_bytes, policy.flows_max),
            stages,
            policy,
            batch: 0,
            events: Vec::new(),
            changed: Vec::new(),
            forgotten: None,
            replaced: 0,
            fates: Vec::new(),
            touched: Vec::new(),
            live: Vec::new(),
            saved: Vec::new(),
            idle: Vec::new(),
            datagrams: Datagrams::default(),
        }
    }

    /// Returns the work of each function so far, in order.
    pub fn work(&self) -> impl ExactSizeIterator<Item = Work> + '_ {
        self.stages.iter().map(|s| s.work)
    }

    /// Returns the names of the functions, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stages.iter().map(|s| s.executor.descriptor().name.as_str())
    }

    /// Returns the last trap of each function, if any.
    pub fn last_traps(&self) -> impl Iterator<Item = Option<&Trap>> {
        self.stages.iter().map(|s| s.last_trap.as_ref())
    }

    /// Returns the functions, in order, for example to read their printed text.
    pub fn executors_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.stages.iter_mut().map(|s| &mut s.executor)
    }

    /// Returns how many numbers a stage has left to lease.
    pub fn leases_free(&self, stage: usize) -> usize {
        self.stages[stage].leases.free()
    }

    /// Sends a batch of `arrivals` (at least one) through the chain. Returns how many the batch
    /// took. [`Chain::outputs`] then returns their results.
    pub fn process(&mut self, arrivals: &[Arrival]) -> usize {
        let count = self.admit(arrivals);
        for stage in 0..self.stages.len() {
            self.run_stage(stage, arrivals);
        }
        self.settle(arrivals[count - 1].time_ns);
        for index in self.datagrams.indices() {
            let out = self
                .whole_outputs(arrivals)
                .nth(index)
                .map_or(Vec::new(), |(_, bytes)| bytes.to_vec());
            self.datagrams.set_parts(index, |datagram| {
                if out.is_empty() { Vec::new() } else { datagram.cut.apart(&out) }
            });
        }
        count
    }

    /// Returns the fate and the frames to send for each packet of the last batch, in order.
    /// `arrivals` must be those of the [`Chain::process`] call.
    pub fn outputs<'a>(
        &'a self,
        arrivals: &'a [Arrival],
    ) -> impl Iterator<Item = (Fate, Frames<'a>)> {
        self.whole_outputs(arrivals)
            .enumerate()
            .map(|(index, (fate, bytes))| (fate, self.datagrams.frames(index, bytes)))
    }

    fn whole_outputs<'a>(
        &'a self,
        arrivals: &'a [Arrival],
    ) -> impl Iterator<Item = (Fate, &'a [u8])> {
        let memory = self.stages[self.stages.len() - 1].executor.memory_ref();
        let mut live = self.live.iter().peekable();
        self.fates.iter().enumerate().map(move |(index, &fate)| {
            let arrived = || self.datagrams.frame(arrivals, index);
            let bytes = match live.next_if(|l| l.index == index) {
                Some(l) => bytes_of(l.place, arrived(), memory, &self.saved),
                None if fate == Fate::Unseen
                    || fate == Fate::Trapped && self.policy.trapped_passes =>
                {
                    arrived()
                }
                None => &[],
            };
            (fate, bytes)
        })
    }

    /// Returns how many held fragments were given up because the rest of their datagrams did not
    /// arrive.
    pub fn fragments_expired(&self) -> u64 {
        self.datagrams.expired()
    }

    /// Finds the flow of every packet of the batch.
    fn admit(&mut self, arrivals: &[Arrival]) -> usize {
        self.batch += 1;
        self.live.clear();
        self.fates.clear();
        self.saved.clear();
        self.touched.clear();
        self.changed.clear();
        self.datagrams.clear();
        let mut room = abi::BATCH_BYTES;
        for (index, arrival) in arrivals.iter().take(BATCH_PACKETS).enumerate() {
            let taken = self.datagrams.take(arrival);
            let frame = if let Taken::Complete(datagram) = &taken {
                &datagram.frame
            } else {
                arrival.frame
            };
            // Each function may lengthen a packet, and the next function gets the longer one.
            let bytes = abi::room_for(frame.len() + self.stages.len() * (abi::GROWTH_BYTES + 64));
            let Arrival { steered, outer, .. } = *arrival;
            let flow = FlowKey::of_frame(frame)
                .map(|(key, way)| (steered.map_or(key, |(key, _)| key), way));
            let crosses = flow.is_some_and(|(key, _)| self.crosses(&key, outer));
            match taken {
                Taken::Held | Taken::Refused => {
                    self.fates.push(if taken == Taken::Held {
                        Fate::Held
                    } else {
                        Fate::Incomplete
                    });
                    continue;
                }
                Taken::Whole if (bytes > room || crosses) && index > 0 => break,
                Taken::Complete(datagram) if (bytes > room || crosses) && index > 0 => {
                    self.datagrams.postpone(datagram);
                    break;
                }
                Taken::Complete(datagram) => self.datagrams.admit(index, datagram),
                Taken::Whole => {}
            }
            let fate = match flow {
                _ if bytes > room || arrival.frame.is_empty() => Fate::TooLong,
                None => Fate::Unseen,
                Some((key, direction)) => match self.meet(key, direction, arrival.time_ns) {
                    None => Fate::NoRoom,
                    Some(mut met) => {
                        if steered.is_some_and(|(_, translated)| translated) {
                            (met.translated, met.reply) = (true, true);
                        }
                        let time_ns =
                            self.flows.flow_mut(met.flow).note(met.reply, arrival.time_ns);
                        self.live.push(Live { index, met, outer, place: Place::Arrived, time_ns });
                        room -= bytes;
                        Fate::Passed
                    }
                },
            };
            self.fates.push(fate);
        }
        for live in &self.live {
            let flow = self.flows.flow_mut(live.met.flow);
            flow.ends.note(self.datagrams.frame(arrivals, live.index), live.met.reply);
            if flow.mark.batch != self.batch {
                flow.mark.batch = self.batch;
                flow.mark.slot = self.touched.len() as u8;
                (flow.mark.changed, flow.mark.noted) = (0, false);
                self.touched.push(live.met.flow);
            }
        }
        self.fates.len()
    }

    /// Reports whether a packet meets a flow without state that this batch has from the other device.
    /// A function may refuse the first packet because of its device, so the second one, which then
    /// begins the flow, waits for the next batch.
    fn crosses(&self, key: &FlowKey, outer: bool) -> bool {
        self.flows.find(key).is_some_and(|id| {
            self.flows.flow(id).valid == 0
                && self.live.iter().any(|live| live.met.flow == id && live.outer != outer)
        })
    }

    /// Finds or makes a packet's flow. In a full table, a new flow replaces one without an answer:
    /// a trickle of packets from ever new ports would close the unit otherwise.
    fn meet(&mut self, key: FlowKey, direction: Direction, now_ns: u64) -> Option<Met> {
        if let Some(met) = self.flows.meet(key, direction, now_ns) {
            return Some(met);
        }
        let live = &self.live;
        let is_used = |id| live.iter().any(|live| live.met.flow == id);
        let id = self.flows.replaceable(now_ns.saturating_sub(ANSWER_NS), is_used)?;
        self.forget(id);
        self.replaced += 1;
        self.flows.meet(key, direction, now_ns)
    }

    /// Ends a batch. Returns untaken leases, and forgets idle flows and flows that never got state.
    fn settle(&mut self, now_ns: u64) {
        for n in (0..self.touched.len()).rev() {
            let id = self.touched[n];
            let flow = self.flows.flow_mut(id);
            if flow.leased != flow.taken {
                for (at, stage) in self.stages.iter_mut().enumerate() {
                    if (flow.leased & !flow.taken) & 1 << at != 0 {
                        stage.leases.decline(flow.leases[at]);
                    }
                }
                flow.leased = flow.taken;
            }
            for (at, stage) in
                self.stages.iter().enumerate().filter(|(at, _)| flow.taken & 1 << at != 0)
            {
                stage.leases.note(flow.leases[at], now_ns, flow.ends.closed());
            }
            if flow.valid == 0 {
                self.forget(id);
            }
        }
        let before_ns = |idle_ns: u64| now_ns.saturating_sub(idle_ns);
        let mut idle = std::mem::take(&mut self.idle);
        let closed_ns = CLOSED_NS.min(self.policy.idle_ns);
        self.flows.sweep(
            SWEPT_PER_BATCH,
            before_ns(self.policy.idle_ns),
            before_ns(closed_ns),
            &mut idle,
        );
        for id in idle.drain(..) {
            self.forget(id);
        }
        self.idle = idle;
    }

    /// Removes a flow and takes its leases back.
    pub fn forget(&mut self, id: FlowId) {
        let was = self.flows.remove(id);
        self.changed.retain(|&changed| changed != id);
        if let Some(forgotten) = &mut self.forgotten {
            forgotten.push(was.key);
        }
        for (at, stage) in self.stages.iter_mut().enumerate() {
            if was.leased & 1 << at != 0 {
                stage.leases.give_back(was.leases[at]);
            }
        }
    }
}

/// The silence after which a flow without an answer may lose its place in a full table.
const ANSWER_NS: u64 = 1_000_000_000;

/// Places in the table of flows to check after each batch. A full sweep would delay the batch.
const SWEPT_PER_BATCH: usize = 64;

fn bytes_of<'a>(place: Place, arrived: &'a [u8], memory: &'a [u8], saved: &'a [u8]) -> &'a [u8] {
    match place {
        Place::Arrived => arrived,
        Place::Memory(at, length) => &memory[at..at + length],
        Place::Saved(at, length) => &saved[at..at + length],
    }
}
