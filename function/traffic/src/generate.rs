//! Generates a capture: many flows with heavy-tailed sizes, a burst in the middle, and an IDS
//! content in some flows. The same shape and seed give the same bytes on every machine.
//!
//! Sizes are Pareto with exponent 1.2, like flows of the Internet (Crovella, Bestavros 1997). Most
//! flows have a few packets, and a few flows have most of the bytes. A flow sends in bursts with
//! pauses, so it consists of flowlets.

use pando_flow::checksum;

use crate::pcap::Captured;
use crate::random::Random;

/// Shape of a generated capture.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of flows. Both directions of a conversation are one flow.
    pub flows: u32,
    /// Time in which flows begin.
    pub seconds: f64,
    /// Rate at which flows begin in the middle third of the time, as a multiple of the rate before
    /// and after.
    pub burst: f64,
    /// Content in the payload of every `content_every`-th flow. Every second such flow splits it
    /// over two packets, if it is TCP.
    pub content: Vec<u8>,
    /// Interval of flows with content; 0 means no flow has it.
    pub content_every: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            flows: 1000,
            seconds: 10.0,
            burst: 4.0,
            content: b"pando-demo-attack".to_vec(),
            content_every: 50,
            seed: 1,
        }
    }
}

/// A generated capture.
#[derive(Debug, Default)]
pub struct Made {
    /// Packets in order of time.
    pub packets: Vec<Captured>,
    /// Number of flows with the content.
    pub with_content: u32,
}

/// Maximum bytes of payload, so that a packet fits into 1,500 bytes even with IPv6 and a steering
/// header.
const SEGMENT_BYTES: usize = 1376;
const PACKETS_MIN: f64 = 3.0;
const PACKETS_MAX: f64 = 3000.0;
const EXPONENT: f64 = 1.2;
/// Start time of generated captures: 2026-01-01T00:00:00Z.
const EPOCH_NS: u64 = 1_767_225_600_000_000_000;

/// Generates a capture.
pub fn generate(shape: &Shape) -> Made {
    let mut random = Random::new(shape.seed);
    let mut made = Made::default();
    for number in 0..shape.flows {
        let begin = begins(random.unit(), shape.burst) * shape.seconds;
        let mut flow = Flow::new(number, begin, &mut random);
        let marked = shape.content_every > 0 && (number + 1) % shape.content_every == 0;
        let content = if marked { shape.content.as_slice() } else { &[] };
        made.with_content += u32::from(!content.is_empty());
        flow.play(content, made.with_content.is_multiple_of(2), &mut random, &mut made.packets);
    }
    made.packets.sort_by_key(|p| p.time_ns);
    made
}

/// Maps a uniform draw from 0 to 1 so that the middle third gets `burst` times its share.
fn begins(even: f64, burst: f64) -> f64 {
    let side = 1.0 / (2.0 + burst);
    match even {
        e if e < side => e / side / 3.0,
        e if e < 1.0 - side => (1.0 + (e - side) / (1.0 - 2.0 * side)) / 3.0,
        e => (2.0 + (e - 1.0 + side) / side) / 3.0,
    }
}

/// One conversation in progress.
struct Flow {
    number: u32,
    udp: bool,
    ipv6: bool,
    time_ns: u64,
    packets: u32,
    /// Sequence number of the next byte of the client and of the server.
    sequence: [u32; 2],
}

/// Flags of TCP.
const SYN: u8 = 2;
const PUSH_ACK: u8 = 24;
const FIN_ACK: u8 = 17;

impl Flow {
    fn new(number: u32, begin_seconds: f64, random: &mut Random) -> Flow {
        let tail = PACKETS_MIN * (1.0 - random.unit()).powf(-1.0 / EXPONENT);
        Flow {
            number,
            udp: random.below(8) == 0,
            ipv6: random.below(10) == 0,
            time_ns: EPOCH_NS + (begin_seconds * 1e9) as u64,
            packets: tail.min(PACKETS_MAX) as u32,
            sequence: [random.next_u64() as u32, random.next_u64() as u32],
        }
    }

    /// Adds the packets of the conversation. The content is in the client's first packet with
    /// payload, or split over its first two.
    fn play(&mut self, content: &[u8], split: bool, random: &mut Random, into: &mut Vec<Captured>) {
        if !self.udp {
            self.send(0, SYN, &[], into);
            self.send(1, SYN | 16, &[], into);
        }
        // A datagram is searched on its own, so a split content would not match.
        let (first, second) =
            content.split_at(if split && !self.udp { content.len() / 2 } else { content.len() });
        self.request(first, random, into);
        if !second.is_empty() {
            // The search in a stream continues across packets, so the rest is at the start.
            self.send(0, PUSH_ACK, &[second, &filling(40, random)].concat(), into);
        }
        let mut left = self.packets;
        while left > 0 {
            self.pause(3_000_000 + random.below(20_000_000));
            let burst = (1 + random.below(16) as u32).min(left);
            left -= burst;
            for _ in 0..burst {
                self.pause(20_000 + random.below(60_000));
                let length = if random.below(3) > 0 {
                    SEGMENT_BYTES
                } else {
                    1 + random.below(SEGMENT_BYTES as u64) as usize
                };
                self.send(1, PUSH_ACK, &filling(length, random), into);
                if random.below(2) == 0 {
                    self.send(0, 16, &[], into);
                }
            }
        }
        if !self.udp {
            self.send(1, FIN_ACK, &[], into);
            self.send(0, FIN_ACK, &[], into);
        }
    }

    /// Adds the client's request, which ends with the content.
    fn request(&mut self, content: &[u8], random: &mut Random, into: &mut Vec<Captured>) {
        let length = 40 + random.below(400) as usize;
        self.send(0, PUSH_ACK, &[&filling(length, random), content].concat(), into);
    }

    fn pause(&mut self, ns: u64) {
        self.time_ns += ns;
    }

    /// Adds a packet of one end (0: the client).
    fn send(&mut self, end: usize, flags: u8, payload: &[u8], into: &mut Vec<Captured>) {
        if self.udp && payload.is_empty() {
            return;
        }
        self.pause(2_000);
        let ports = [(1024 + self.number % 60_000) as u16, if self.udp { 53 } else { 443 }];
        let mut transport = [ports[end].to_be_bytes(), ports[1 - end].to_be_bytes()].concat();
        if self.udp {
            transport.extend(((8 + payload.len()) as u16).to_be_bytes());
            transport.extend([0, 0]);
        } else {
            transport.extend(self.sequence[end].to_be_bytes());
            transport.extend(self.sequence[1 - end].to_be_bytes());
            transport.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            self.sequence[end] =
                self.sequence[end].wrapping_add(payload.len() as u32 + u32::from(flags & 3 != 0));
        }
        transport.extend(payload);
        let frame = self.frame(end, &transport);
        into.push(Captured { time_ns: self.time_ns, wire_bytes: frame.len() as u32, frame });
    }

    fn frame(&self, end: usize, transport: &[u8]) -> Vec<u8> {
        let [_, _, c, d] = self.number.to_be_bytes();
        let protocol = if self.udp { 17 } else { 6 };
        let mut frame = vec![2, 0, 0, 0, 0, 2 - end as u8, 2, 0, 0, 0, 0, 1 + end as u8];
        let mut addresses = if self.ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            let with = |mut address: [u8; 16], tail: [u8; 2]| {
                address[14..].copy_from_slice(&tail);
                address.to_vec()
            };
            let [client, server] = ["fd00::1:0", "2001:db8::2:0"]
                .map(|a| a.parse::<std::net::Ipv6Addr>().expect("an address").octets());
            [with(client, [c, d]), with(server, [0, d % 16])]
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + transport.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            [vec![10, 1, c, d], vec![198, 51, 100, 1 + d % 16]]
        };
        if end == 1 {
            addresses.reverse();
        }
        frame.extend(addresses.concat());
        frame.extend(transport);
        checksum::fill(&mut frame);
        frame
    }
}

/// Returns payload that matches no rule: capitals only.
fn filling(length: usize, random: &mut Random) -> Vec<u8> {
    let mut word = 0;
    let letter = |n: usize| {
        if n.is_multiple_of(12) {
            word = random.next_u64();
        }
        b'A' + (word >> (5 * (n % 12)) & 15) as u8
    };
    (0..length).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_flow::FlowKey;
    use std::collections::HashMap;

    #[test]
    fn it_is_the_same_each_time_and_every_checksum_is_right() {
        let shape = Shape { flows: 300, ..Shape::default() };
        let made = generate(&shape);
        assert_eq!(made.packets, generate(&shape).packets);
        for p in &made.packets {
            assert_eq!(checksum::transport_is_right(&p.frame), Some(true));
            assert_ne!(checksum::header_is_right(&p.frame), Some(false));
            assert!(p.frame.len() <= 1514 - 48);
        }
        assert_eq!(made.with_content, 6);
    }

    /// Most flows are small, most packets are in large flows, and the middle third is the busiest.
    #[test]
    fn it_has_a_heavy_tail_and_a_burst() {
        let made = generate(&Shape { flows: 4000, seconds: 30.0, ..Shape::default() });
        let mut flows: HashMap<FlowKey, usize> = HashMap::new();
        made.packets
            .iter()
            .for_each(|p| *flows.entry(FlowKey::of_frame(&p.frame).unwrap().0).or_default() += 1);
        assert_eq!(flows.len(), 4000);
        let mut sizes: Vec<usize> = flows.into_values().collect();
        sizes.sort_unstable();
        assert!(sizes[2000] < 20, "the median flow has {} packets", sizes[2000]);
        let largest: usize = sizes[3800..].iter().sum();
        assert!(
            largest * 5 > made.packets.len() * 2,
            "a twentieth of the flows has {largest} of {} packets",
            made.packets.len()
        );
        let third = |n: u64| {
            made.packets.iter().filter(|p| (p.time_ns - EPOCH_NS) / 10_000_000_000 == n).count()
        };
        assert!(
            third(1) > 2 * third(0) && third(1) > 2 * third(2),
            "{} {} {}",
            third(0),
            third(1),
            third(2)
        );
    }
}
