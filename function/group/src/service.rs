//! The packets that a unit has to process, in the order of the virtual clock and within its rate.

use std::hash::BuildHasher;

use pando_assign::queue::{Discipline, Queue, Waiting};
use pando_chain::Arrival;
use pando_chain::flows::Flows;
use pando_flow::{FlowKey, network};
use pando_handover::{Header, Steered, header};
use pando_net::packet::Received;

/// A packet from steering.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The frame without steering's header.
    pub frame: Vec<u8>,
    /// The contents of that header.
    pub steered: Steered,
    /// The kernel's time of arrival.
    pub time_ns: u64,
    /// Payload bytes per piece of a packet that has to be cut; 0 if it is short enough.
    pub segment: u16,
}

const ETHERNET: usize = 14;
const TAG: usize = 4;
const BEHIND: usize = ETHERNET + Steered::LENGTH_BYTES;

impl Packet {
    /// Reads a frame with steering's header; returns `None` for any other. A VLAN tag that the
    /// kernel keeps apart from the packet stands before the header here.
    pub fn read(received: Received) -> Option<Packet> {
        let Received { frame, time_ns, segment } = received;
        let tag = if matches!(frame.get(12..14)?, [0x81, 0] | [0x88, 0xa8]) { TAG } else { 0 };
        if frame.get(12 + tag..ETHERNET + tag)? != header::ETHERTYPE.to_be_bytes() {
            return None;
        }
        let steered = Steered::decode(&frame[ETHERNET + tag..]).ok()?;
        let mut bytes = Vec::with_capacity(frame.len() - Steered::LENGTH_BYTES);
        bytes.extend(&frame[..12 + tag]);
        bytes.extend(steered.header.ethertype.to_be_bytes());
        bytes.extend(&frame[BEHIND + tag..]);
        Some(Packet { frame: bytes, steered, time_ns, segment })
    }

    /// Returns the packet as input of the chain.
    pub fn arrival(&self) -> Arrival<'_> {
        Arrival {
            frame: &self.frame,
            time_ns: self.time_ns,
            outer: self.steered.back,
            steered: Some((self.steered.key, self.steered.translated)),
        }
    }

    /// Returns the chain's output behind steering's header. The header marks a new address pair
    /// that returning packets will carry (the flow's alias).
    pub fn answer(&self, output: &[u8], flows: &Flows) -> Vec<u8> {
        let key = self.steered.key;
        let alias = || flows.find(&key).and_then(|id| flows.flow(id).alias);
        let translated = !self.steered.translated
            && FlowKey::of_frame(output)
                .is_some_and(|(output, _)| output != key && alias() == Some(output));
        let mut frame = Vec::with_capacity(output.len() + Steered::LENGTH_BYTES);
        let header = Header {
            ethertype: u16::from_be_bytes([output[12], output[13]]),
            ..self.steered.header
        };
        // Steering removes its header from frames that look like IP to the kernel. Tags and PPPoE
        // headers follow it.
        let ip = if network(output).is_some_and(|(version, _)| version == 6) {
            [0x86, 0xdd]
        } else {
            [8, 0]
        };
        frame.extend(&output[..12]);
        frame.extend(ip);
        frame.extend(Steered { translated, header, ..self.steered }.encode());
        frame.extend(&output[ETHERNET..]);
        frame
    }
}

/// The most bytes of packets that wait in a unit.
pub const WAITING_MAX_BYTES: usize = 16 << 20;

/// The most work that waits in a unit with a limited rate, in nanoseconds. A packet that waited
/// longer is of no use to its sender.
pub const WAITING_MAX_NS: u64 = 1_000_000_000;

/// The packets that may be processed, and the time that each takes.
pub struct Service {
    queue: Queue,
    packets: Vec<Option<Packet>>,
    free: Vec<u32>,
    /// The packet in service, taken from the queue. It is done when the unit has had time for it.
    serving: Option<Waiting>,
    came_ns: Vec<u64>,
    busy_ns: u64,
    work_ns: u64,
    bytes: usize,
    limited: bool,
    bits: u64,
}

impl Service {
    /// Returns a service that is limited to `limit` bits per second. Without a limit, costs are
    /// those of a unit that serves `nominal_bits`.
    pub fn new(limit: Option<u64>, nominal_bits: u64) -> Service {
        Service {
            queue: Queue::new(Discipline::DEFAULT),
            packets: Vec::new(),
            free: Vec::new(),
            serving: None,
            came_ns: Vec::new(),
            busy_ns: 0,
            work_ns: 0,
            bytes: 0,
            limited: limit.is_some(),
            bits: limit.unwrap_or(nominal_bits).max(1),
        }
    }

    /// Returns how long a packet keeps the unit busy.
    pub fn cost_ns(&self, packet: &Packet) -> u64 {
        packet.frame.len() as u64 * 8_000_000_000 / self.bits
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    /// Reports whether it has no packets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reports whether more packets than the unit can hold wait. A caller then drops the next one.
    pub fn is_full(&self) -> bool {
        self.bytes >= WAITING_MAX_BYTES || self.limited && self.work_ns >= WAITING_MAX_NS
    }

    /// Adds a packet.
    pub fn push(&mut self, packet: Packet, now_ns: u64) {
        let cost_ns = self.cost_ns(&packet);
        let flow = foldhash::fast::FixedState::default().hash_one(packet.steered.key) as u32;
        let place = self.free.pop().unwrap_or(self.packets.len() as u32);
        if place as usize == self.packets.len() {
            self.packets.push(None);
            self.came_ns.push(0);
        }
        self.bytes += packet.frame.len();
        self.packets[place as usize] = Some(packet);
        self.came_ns[place as usize] = now_ns;
        self.work_ns += cost_ns;
        self.queue.push(Waiting { packet: place, flow, cost_ns }, now_ns);
    }

    /// Takes up to `max` packets that are done by now.
    pub fn due(&mut self, now_ns: u64, max: usize) -> Vec<Packet> {
        let mut due = Vec::new();
        while due.len() < max {
            let Some(next) = self.serving.take().or_else(|| self.queue.pop(now_ns)) else { break };
            let done_ns = self.done_ns(&next);
            if self.limited && done_ns > now_ns {
                self.serving = Some(next);
                break;
            }
            self.busy_ns = done_ns;
            self.work_ns -= next.cost_ns;
            self.free.push(next.packet);
            let packet = self.packets[next.packet as usize].take();
            self.bytes -= packet.as_ref().map_or(0, |packet| packet.frame.len());
            due.extend(packet);
        }
        due
    }

    fn done_ns(&self, next: &Waiting) -> u64 {
        self.busy_ns.max(self.came_ns[next.packet as usize]) + next.cost_ns
    }

    /// Returns when the next packet is done; `None` if there is none.
    pub fn next_ns(&self) -> Option<u64> {
        match &self.serving {
            Some(next) => Some(self.done_ns(next)),
            None => (!self.is_empty()).then_some(0),
        }
    }

    /// Returns when all packets are done.
    pub fn finish_ns(&self, now_ns: u64) -> u64 {
        match self.limited {
            true if self.work_ns > 0 => {
                self.busy_ns.max(now_ns.saturating_sub(self.work_ns)) + self.work_ns
            }
            _ => now_ns + self.work_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use pando_handover::NO_UNIT;

    use super::*;

    fn packet(bytes: usize) -> Packet {
        let frame = &generate(&Shape { flows: 1, ..Shape::default() }).packets[0].frame;
        let key = FlowKey::of_frame(frame).unwrap().0;
        let header = Header {
            flowlet_starts: true,
            ethertype: 0x800,
            unit: 0,
            previous: NO_UNIT,
            epoch: 1,
            position: 0,
            clock: 1,
            replicas: 0,
        };
        let steered = Steered { header, back: false, translated: false, key };
        Packet { frame: vec![0; bytes], steered, time_ns: 0, segment: 0 }
    }

    #[test]
    fn a_unit_that_is_offered_too_much_is_full_until_it_has_worked() {
        for (limit, most) in [(Some(20_000_000), 1667), (None, 11_185)] {
            let mut service = Service::new(limit, 1_000_000_000);
            let mut taken = 0;
            while !service.is_full() {
                service.push(packet(1500), 0);
                taken += 1;
            }
            assert_eq!(taken, most, "limit {limit:?}");
            assert_eq!(service.due(10_000_000_000, 2).len(), 2);
            assert!(!service.is_full(), "limit {limit:?}");
        }
    }
    use pando_traffic::{Shape, generate};

    /// Functions refuse by the device what claims to come from inside.
    #[test]
    fn a_packet_keeps_the_end_by_which_it_came() {
        let mut p = packet(100);
        assert!(!p.arrival().outer);
        p.steered.back = true;
        assert!(p.arrival().outer);
    }

    /// The tag is before steering's header on the way in, and after it on the way out.
    #[test]
    fn a_tagged_packet_comes_and_goes_as_it_is() {
        let plain = generate(&Shape { flows: 1, ..Shape::default() }).packets[0].frame.clone();
        let key = FlowKey::of_frame(&plain).unwrap().0;
        for tag in [&[][..], &[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 7]] {
            let ethertype = u16::from_be_bytes([plain[12], plain[13]]);
            let header = Header {
                flowlet_starts: true,
                ethertype,
                unit: 0,
                previous: NO_UNIT,
                epoch: 1,
                position: 0,
                clock: 1,
                replicas: 0,
            };
            let steered = Steered { header, back: false, translated: false, key };
            let came = [
                &plain[..12],
                tag,
                &header::ETHERTYPE.to_be_bytes(),
                &steered.encode()[..],
                &plain[14..],
            ]
            .concat();
            let packet = Packet::read(Received { frame: &came, time_ns: 5, segment: 0 }).unwrap();
            let frame = [&plain[..12], tag, &plain[12..]].concat();
            assert_eq!(packet.frame, frame);
            let answer = packet.answer(&frame, &Flows::new(&[8], 1));
            assert_eq!(answer[12..14], plain[12..14], "what the kernel takes it for");
            assert_eq!(answer[BEHIND..], frame[14..]);
            assert_eq!(
                Steered::decode(&answer[14..]).unwrap().header.ethertype.to_be_bytes(),
                frame[12..14]
            );
        }
    }
}
