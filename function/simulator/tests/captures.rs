//! The two readers of captures against each other, in every form of the two formats.

use pando_flow::FlowKey;
use pando_simulate::capture;
use pando_traffic::pcap::{self, Captured};
use pando_traffic::{Shape, generate};
use std::collections::HashMap;

/// The byte order of a file.
#[derive(Clone, Copy, Debug)]
struct Order(bool);

impl Order {
    fn u32(self, value: u32) -> [u8; 4] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn u16(self, value: u16) -> [u8; 2] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }
}

fn classic(order: Order, magic: u32, unit_ns: u64, packets: &[Captured]) -> Vec<u8> {
    let mut file = order.u32(magic).to_vec();
    file.extend([order.u16(2), order.u16(4)].concat());
    file.extend([0, 0, 65_535, 1].map(|word| order.u32(word)).concat());
    for packet in packets {
        let (seconds, rest) = (packet.time_ns / 1_000_000_000, packet.time_ns % 1_000_000_000);
        let length = packet.frame.len() as u32;
        let head = [seconds as u32, (rest / unit_ns) as u32, length, packet.wire_bytes];
        file.extend(head.map(|word| order.u32(word)).concat());
        file.extend(&packet.frame);
    }
    file
}

/// Writes pcapng with ticks by option 9 of the interface, with a block of another kind
/// and an interface that has no packet.
fn next_generation(order: Order, resolution: u8, packets: &[Captured]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = order.u32(12 + body.len().next_multiple_of(4) as u32);
        file.extend(order.u32(kind));
        file.extend(length);
        file.extend(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend(length);
    };
    let version = [order.u16(1), order.u16(0)].concat();
    block(0x0a0d_0d0a, &[&order.u32(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat());
    let interface = |options: &[u8]| {
        [&order.u16(1)[..], &order.u16(0), &order.u32(0), options, &[0; 4]].concat()
    };
    let name = [&order.u16(2)[..], &order.u16(5), b"eth0\0\0\0\0"].concat();
    let ticks = [&order.u16(9)[..], &order.u16(1), &[resolution, 0, 0, 0]].concat();
    block(1, &interface(&[]));
    block(1, &interface(&[name, ticks].concat()));
    block(5, &[0; 12]);
    let per_second = if resolution & 0x80 == 0 {
        10u128.pow(resolution.into())
    } else {
        1 << (resolution & 0x7f)
    };
    for packet in packets {
        let ticks = (u128::from(packet.time_ns) * per_second).div_ceil(1_000_000_000) as u64;
        let length = packet.frame.len() as u32;
        let head = [1, (ticks >> 32) as u32, ticks as u32, length, packet.wire_bytes];
        block(6, &[&head.map(|word| order.u32(word)).concat()[..], &packet.frame].concat());
    }
    file
}

fn packets() -> Vec<Captured> {
    let mut packets = generate(&Shape { flows: 30, seconds: 0.1, ..Shape::default() }).packets;
    for (n, packet) in packets.iter_mut().enumerate() {
        packet.time_ns += n as u64; // every nanosecond counts
        packet.wire_bytes = packet.frame.len() as u32 + 4;
    }
    packets
}

/// Both readers find the same packets, flows and lengths, with times as exact as the file's.
fn same(file: &[u8], written: &[Captured], unit_ns: u64, form: &str) {
    let read = pcap::parse(file, form).unwrap();
    assert_eq!(read.len(), written.len(), "{form}");
    for (read, written) in read.iter().zip(written) {
        assert_eq!((&read.frame, read.wire_bytes), (&written.frame, written.wire_bytes), "{form}");
        let error = read.time_ns.abs_diff(written.time_ns);
        assert!(error < unit_ns, "{form}: {} for {}", read.time_ns, written.time_ns);
    }
    let other = capture::parse(file).unwrap();
    assert_eq!(other.packets.len(), read.len(), "{form}");
    let mut flows = HashMap::new();
    for (seen, read) in other.packets.iter().zip(&read) {
        let key = FlowKey::of_frame(&read.frame).unwrap().0;
        let next = flows.len() as u32;
        assert_eq!(seen.flow, *flows.entry(key).or_insert(next), "{form}");
        assert_eq!(seen.bytes, read.wire_bytes.max(60), "{form}");
    }
    assert_eq!(other.flows, flows.len() as u32);
    let first = read[0].time_ns;
    assert!(other.packets.iter().zip(&read).all(|(s, r)| s.at_ns == r.time_ns - first), "{form}");
}

#[test]
fn both_readers_find_the_same_in_every_form() {
    let packets = packets();
    for order in [false, true].map(Order) {
        let classic = |magic, unit_ns| classic(order, magic, unit_ns, &packets);
        same(&classic(0xa1b2_c3d4, 1000), &packets, 1000, &format!("{order:?}, µs"));
        same(&classic(0xa1b2_3c4d, 1), &packets, 1, &format!("{order:?}, ns"));
        for (resolution, unit_ns) in [(9, 1), (6, 1000), (0x80 | 30, 2), (0x80 | 20, 954)] {
            let file = next_generation(order, resolution, &packets);
            same(&file, &packets, unit_ns, &format!("{order:?}, resolution {resolution}"));
        }
    }
}

/// A file that ends within a packet gives the packets before it to one reader, and an error that
/// counts them to the other.
#[test]
fn a_file_that_is_cut_off_has_its_whole_packets() {
    let packets = &packets()[..12];
    let files =
        [classic(Order(false), 0xa1b2_3c4d, 1, packets), next_generation(Order(true), 9, packets)];
    for file in files {
        let mut longest = 0;
        for cut in (24..file.len()).step_by(7) {
            let some = capture::parse(&file[..cut]).unwrap().packets.len();
            assert!(some >= longest && some <= 12);
            longest = some;
            match pcap::parse(&file[..cut], "cut") {
                Ok(read) => assert_eq!(read.len(), some, "{cut} bytes"),
                Err(pcap::PcapError::Broken { after, .. }) => {
                    assert_eq!(after, some, "{cut} bytes")
                }
                Err(e) => panic!("{cut} bytes: {e}"),
            }
        }
        assert!(longest >= 11);
    }
}
