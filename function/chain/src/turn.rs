//! The turn of one function of a chain. The chain writes packets and flow states into the
//! function's memory, calls it, and reads the results. It retries a trapped batch packet by packet.

use std::ops::Range;

use pando_abi::executor::{Executor, Trap};
use pando_abi::{self as abi, Input, Output, Writer, flag};
use pando_flow::FlowKey;

use crate::flows::{FlowId, Flows};
use crate::{Arrival, Chain, Event, Fate, Place, Stage, bytes_of};

/// Bytes of a packet per share of fuel: the length of one ring frame.
const SHARE_BYTES: usize = 2048;

impl<E: Executor> Chain<E> {
    /// Sends the live packets of the batch through one function.
    pub(super) fn run_stage(&mut self, at: usize, arrivals: &[Arrival]) {
        if self.live.is_empty() {
            return;
        }
        for &flow in &self.touched {
            self.flows.flow_mut(flow).mark.latest = 0;
        }
        let all = 0..self.live.len();
        let shares = self.write(at, arrivals, all.clone());
        match self.stages[at].call(self.live.len(), shares) {
            Ok(()) => self.collect(at, arrivals, all, false),
            Err(trap) => self.isolate(at, arrivals, trap),
        }
        let fates = &self.fates;
        self.live.retain(|l| fates[l.index] == Fate::Passed);
    }

    /// Writes the packets `range` of the live ones, and the state of their flows, into the memory
    /// of a function. Returns their fuel shares: a large datagram counts as many packets.
    fn write(&mut self, at: usize, arrivals: &[Arrival], range: Range<usize>) -> usize {
        let (before, rest) = self.stages.split_at_mut(at);
        let Stage { executor, leases, .. } = &mut rest[0];
        let source = before.last().map_or(&[][..], |s| s.executor.memory_ref());
        let (memory, descriptor) = executor.memory();
        let bit = 1u8 << at;
        for live in &self.live[range.clone()] {
            let flow = self.flows.flow_mut(live.met.flow);
            let slot = descriptor.slot(flow.mark.slot.into());
            if descriptor.leases
                && flow.valid & bit == 0
                && flow.leased & bit == 0
                && flow.mark.latest == 0
                && let Some(number) = leases.take(live.time_ns)
            {
                flow.leased |= bit;
                flow.leases[at] = number;
            }
            memory[slot..slot + descriptor.state_bytes]
                .copy_from_slice(self.flows.state(live.met.flow, at));
        }
        let mut writer = Writer::new(memory, descriptor);
        let mut shares = 0;
        for (n, live) in self.live[range].iter().enumerate() {
            let flow = self.flows.flow_mut(live.met.flow);
            let frame = bytes_of(
                live.place,
                self.datagrams.frame(arrivals, live.index),
                source,
                &self.saved,
            );
            let flags = [
                (flow.valid & bit != 0, flag::STATE_VALID),
                (live.met.reply, flag::REPLY),
                (live.met.translated, flag::TRANSLATED),
                (flow.leased & bit != 0, flag::LEASED),
                (live.outer, flag::OUTER),
            ];
            writer.push(&Input {
                frame,
                slot: flow.mark.slot.into(),
                flags: flags.iter().filter(|(on, _)| *on).map(|(_, f)| f).sum(),
                lease: flow.leases[at],
                earlier: flow.mark.latest.into(),
                time_ns: live.time_ns,
            });
            flow.mark.latest = n as u8 + 1;
            shares += frame.len().div_ceil(SHARE_BYTES);
        }
        shares
    }

    /// Reads the outputs, states and events of the packets `range` from the memory of a function
    /// that has just processed them. With `save`, it copies the outputs because that memory is
    /// about to be reused.
    fn collect(&mut self, at: usize, arrivals: &[Arrival], range: Range<usize>, save: bool) {
        let bit = 1u8 << at;
        let Stage { executor, work, .. } = &mut self.stages[at];
        let (memory, descriptor) = executor.memory();
        let mut data = 0;
        for (n, live) in self.live[range.clone()].iter_mut().enumerate() {
            let length = match live.place {
                Place::Arrived => self.datagrams.frame(arrivals, live.index).len(),
                Place::Memory(_, length) | Place::Saved(_, length) => length,
            };
            let output: Output = abi::output(memory, descriptor, n, data, length);
            data += abi::room_for(length);
            work.packets += 1;
            work.bytes += length as u64;
            if output.flags & flag::STATE_PUT != 0 {
                let flow = self.flows.flow_mut(live.met.flow);
                flow.valid |= bit;
                let slot = descriptor.slot(flow.mark.slot.into());
                flow.mark.changed |= bit;
                self.flows
                    .state_mut(live.met.flow, at)
                    .copy_from_slice(&memory[slot..slot + descriptor.state_bytes]);
            }
            if output.flags & flag::LEASE_TAKEN != 0 {
                self.flows.flow_mut(live.met.flow).taken |= bit;
            }
            if output.flags & (flag::STATE_PUT | flag::LEASE_TAKEN | flag::ALIAS) != 0 {
                note(&mut self.changed, &mut self.flows, live.met.flow);
            }
            if output.pass
                && output.flags & flag::ALIAS != 0
                && let Some((key, _)) =
                    FlowKey::of_frame(&memory[output.data..output.data + output.length])
            {
                self.flows.add_alias(live.met.flow, key);
            }
            live.place = Place::Memory(output.data, output.length);
            if !output.pass {
                self.fates[live.index] = Fate::Dropped;
            } else if save {
                live.place = Place::Saved(self.saved.len(), output.length);
                self.saved.extend_from_slice(&memory[output.data..output.data + output.length]);
            }
        }
        for (n, code) in abi::events(memory, descriptor, range.len()) {
            let live = &self.live[range.start + n];
            let (key, time_ns) = (self.flows.flow(live.met.flow).key, live.time_ns);
            self.events.push(Event { stage: at, key, code, time_ns });
        }
    }

    /// Handles a batch that trapped. All its effects are discarded. Each packet then runs alone in
    /// a new instance. If a packet traps again, its flow loses its state; other flows are
    /// unaffected.
    fn isolate(&mut self, at: usize, arrivals: &[Arrival], trap: Trap) {
        self.stages[at].last_trap = Some(trap);
        self.stages[at].renew();
        let source = match at.checked_sub(1) {
            None => &[][..],
            Some(before) => self.stages[before].executor.memory_ref(),
        };
        // The outputs of the preceding function stay in its memory. Only this function's outputs
        // are saved.
        debug_assert!(
            self.live
                .iter()
                .all(|l| !matches!(l.place, Place::Memory(a, n) if a + n > source.len()))
        );
        for n in 0..self.live.len() {
            let id = self.live[n].met.flow;
            self.flows.flow_mut(id).mark.latest = 0;
            let shares = self.write(at, arrivals, n..n + 1);
            match self.stages[at].call(1, shares) {
                Ok(()) => self.collect(at, arrivals, n..n + 1, true),
                Err(trap) => {
                    self.stages[at].last_trap = Some(trap);
                    self.stages[at].work.trapped += 1;
                    self.fates[self.live[n].index] = Fate::Trapped;
                    self.forget_state(id, at);
                    if !self.stages[at].is_broken {
                        self.stages[at].renew();
                    }
                }
            }
        }
    }

    fn forget_state(&mut self, id: FlowId, at: usize) {
        let bit = 1u8 << at;
        self.flows.state_mut(id, at).fill(0);
        let flow = self.flows.flow_mut(id);
        flow.valid &= !bit;
        flow.mark.changed |= bit;
        if flow.leased & bit != 0 {
            let taken = flow.taken & bit != 0;
            flow.leased &= !bit;
            flow.taken &= !bit;
            self.stages[at].leases.give_back(flow.leases[at]);
            if taken {
                // The alias has that number, which may be another flow's soon.
                self.flows.drop_alias(id);
            }
        }
        note(&mut self.changed, &mut self.flows, id);
    }
}

fn note(changed: &mut Vec<FlowId>, flows: &mut Flows, id: FlowId) {
    if !std::mem::replace(&mut flows.flow_mut(id).mark.noted, true) {
        changed.push(id);
    }
}
