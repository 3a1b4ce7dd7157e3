//! Checksums against the definition of RFC 1071, and frames of strangers.

use pando_flow::checksum::{
    complete, complete_partial, fill, fill_header, fold, header_is_right, sum_of,
    transport_is_right,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The sum as RFC 1071 defines it: words of 16 bits, the carry added at the end.
fn plain(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A TCP or UDP packet without sums.
#[derive(Clone, Debug)]
struct Packet {
    version: u8,
    tcp: bool,
    options: usize,
    payload: Vec<u8>,
    padding: usize,
    addresses: [u8; 32],
}

impl Packet {
    fn start(&self) -> usize {
        if self.version == 4 { 34 + 4 * self.options } else { 54 }
    }

    fn end(&self) -> usize {
        self.start() + if self.tcp { 20 } else { 8 } + self.payload.len()
    }

    fn frame(&self) -> Vec<u8> {
        let protocol = if self.tcp { 6 } else { 17 };
        let length = (self.end() - self.start()) as u16;
        let mut frame = vec![2; 12];
        if self.version == 4 {
            frame.extend([8, 0, 0x45 + self.options as u8, 0]);
            frame.extend((length + 20 + 4 * self.options as u16).to_be_bytes());
            frame.extend([0, 9, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend(&self.addresses[..8]);
            frame.extend(vec![1; 4 * self.options]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(self.addresses);
        }
        if self.tcp {
            frame.extend([4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 16, 1, 0, 0, 0, 0, 0]);
        } else {
            frame.extend([4, 0, 0, 53]);
            frame.extend(length.to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend(&self.payload);
        frame.resize(frame.len() + self.padding, 0xaa);
        frame
    }

    /// Returns the sum of pseudo header and segment, as RFC 793 and RFC 8200 define it.
    fn sum(&self, frame: &[u8]) -> u16 {
        let (start, end) = (self.start(), self.end());
        let addresses = if self.version == 4 { 26..34 } else { 22..54 };
        let mut all = frame[addresses].to_vec();
        all.extend(((end - start) as u32).to_be_bytes());
        all.extend([0, 0, 0, if self.tcp { 6 } else { 17 }]);
        all.extend(&frame[start..end]);
        plain(&all)
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let payload = proptest::collection::vec(any::<u8>(), 0..60);
    (any::<bool>(), any::<bool>(), 0..=10usize, payload, 0..8usize, any::<[u8; 32]>()).prop_map(
        |(old, tcp, options, payload, padding, addresses)| {
            let version = if old { 4 } else { 6 };
            Packet { version, tcp, options, payload, padding, addresses }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn a_sum_is_that_of_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(fold(sum_of(&bytes)), plain(&bytes));
        let (head, tail) = bytes.split_at(bytes.len() / 4 * 2);
        prop_assert_eq!(fold(sum_of(head) + sum_of(tail)), plain(&bytes), "in two parts");
    }

    /// A filled frame is right by the definition, and no bit of its packet may change.
    #[test]
    fn a_filled_frame_is_right_and_no_other(packet in packet(), at: u16, bit in 0..8u8) {
        let mut frame = packet.frame();
        let before = frame.clone();
        fill(&mut frame);
        prop_assert_eq!(packet.sum(&frame), 0xffff);
        prop_assert_eq!(transport_is_right(&frame), Some(true));
        prop_assert_eq!(header_is_right(&frame), (packet.version == 4).then_some(true));
        prop_assert_eq!(&frame[packet.end()..], &before[packet.end()..], "the padding");
        let field = packet.start() + if packet.tcp { 16 } else { 6 };
        prop_assert!(packet.tcp || frame[field..field + 2] != [0, 0], "zero means no sum");

        let at = packet.start() + usize::from(at) % (packet.end() - packet.start());
        frame[at] ^= 1 << bit;
        prop_assert_ne!(transport_is_right(&frame), Some(true));
        frame[at] ^= 1 << bit;
        if packet.version == 4 {
            frame[22] ^= 1 << bit; // the time to live
            prop_assert_eq!(header_is_right(&frame), Some(false));
            fill_header(&mut frame[14..packet.start()]);
            prop_assert_eq!(header_is_right(&frame), Some(true));
        }
    }

    /// A checksum that a sender left to its device is completed. A complete one stays.
    #[test]
    fn a_partial_sum_is_completed_once(packet in packet()) {
        let mut right = packet.frame();
        fill(&mut right);
        let mut partial = right.clone();
        let (start, field) = (packet.start(), if packet.tcp { 16 } else { 6 });
        partial[start + field..start + field + 2].fill(0);
        let addresses = if packet.version == 4 { 26..34 } else { 22..54 };
        let pseudo = sum_of(&partial[addresses])
            + u64::from(partial[if packet.version == 4 { 23 } else { 20 }])
            + (packet.end() - start) as u64;
        partial[start + field..start + field + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
        let mut told = partial[..packet.end()].to_vec();
        complete(&mut told, start, field);
        prop_assert_eq!(&told[..], &right[..packet.end()]);
        complete_partial(&mut partial);
        prop_assert_eq!(&partial, &right);
        complete_partial(&mut partial);
        prop_assert_eq!(partial, right);
    }

    /// Frames of strangers keep their length, and bytes before the packet stay.
    #[test]
    fn no_frame_panics(
        packet in packet(),
        changes in proptest::collection::vec((0..70usize, any::<u8>()), 0..6),
        length in 0..130usize,
        (start, offset) in (0..200usize, 0..200usize),
    ) {
        let mut frame = packet.frame();
        for (at, byte) in changes {
            if let Some(old) = frame.get_mut(at) {
                *old = byte;
            }
        }
        frame.truncate(length);
        header_is_right(&frame);
        transport_is_right(&frame);
        for change in [fill as fn(&mut [u8]), complete_partial, |f| complete(f, 0, 0)] {
            change(&mut frame.clone());
        }
        let mut told = frame.clone();
        complete(&mut told, start, offset);
        if start + offset + 2 > frame.len() {
            prop_assert_eq!(told, frame, "the field is outside");
        }
    }
}
