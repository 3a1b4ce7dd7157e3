//! Large packets that are cut as a device would cut them, and packets that only claim to be large.

use pando_flow::checksum;
use pando_net::offload::{Offload, cut};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A large TCP or UDP packet without a tag.
#[derive(Clone, Debug)]
struct Packet {
    v6: bool,
    tcp: bool,
    /// Words of options in the headers of IPv4 and TCP.
    options: [usize; 2],
    payload: Vec<u8>,
    flags: u8,
    sequence: u32,
    id: u16,
    padding: usize,
}

impl Packet {
    fn transport(&self) -> usize {
        if self.v6 { 54 } else { 34 + 4 * self.options[0] }
    }

    fn start(&self) -> usize {
        self.transport() + if self.tcp { 20 + 4 * self.options[1] } else { 8 }
    }

    fn frame(&self) -> Vec<u8> {
        let protocol = if self.tcp { 6 } else { 17 };
        let length = (self.start() - self.transport() + self.payload.len()) as u16;
        let mut frame = vec![2; 12];
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([1; 32]);
        } else {
            frame.extend([8, 0, 0x45 + self.options[0] as u8, 0]);
            frame.extend((20 + 4 * self.options[0] as u16 + length).to_be_bytes());
            frame.extend(self.id.to_be_bytes());
            frame.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9]);
            frame.extend(vec![1; 4 * self.options[0]]);
        }
        if self.tcp {
            frame.extend([4, 0, 0, 80]);
            frame.extend(self.sequence.to_be_bytes());
            let words = 0x50 + ((self.options[1] as u8) << 4);
            frame.extend([0, 0, 0, 9, words, self.flags, 1, 0, 0, 0, 0, 0]);
            frame.extend(vec![1; 4 * self.options[1]]);
        } else {
            frame.extend([4, 0, 0, 80]);
            frame.extend(length.to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend(&self.payload);
        checksum::fill(&mut frame);
        frame.resize(frame.len() + self.padding, 0xaa);
        frame
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let payload = proptest::collection::vec(any::<u8>(), 1..2000);
    let headers = (any::<bool>(), any::<bool>(), [0..=10usize, 0..=10usize]);
    (headers, payload, any::<u8>(), any::<u32>(), any::<u16>(), 0..6usize).prop_map(
        |((v6, tcp, options), payload, flags, sequence, id, padding)| Packet {
            v6,
            tcp,
            options,
            payload,
            flags,
            sequence,
            id,
            padding,
        },
    )
}

fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// The pieces have the payload in order, the numbers and flags of TCP, and right sums. None is
    /// longer than asked.
    #[test]
    fn pieces_are_packets_of_their_own(packet in packet(), segment in 1..1500u16) {
        let whole = packet.frame();
        let Some(pieces) = cut(&whole, segment) else {
            let short = packet.payload.len() <= usize::from(segment);
            prop_assert!(short || whole.len() <= usize::from(segment));
            return Ok(());
        };
        prop_assert_eq!(pieces.len(), packet.payload.len().div_ceil(segment.into()));
        let (transport, start) = (packet.transport(), packet.start());
        let mut payload = Vec::new();
        for (n, piece) in pieces.iter().enumerate() {
            prop_assert_eq!(checksum::transport_is_right(piece), Some(true));
            let carried = &piece[start..];
            prop_assert!(!carried.is_empty() && carried.len() <= segment.into());
            if packet.v6 {
                prop_assert_eq!(usize::from(be16(piece, 18)), piece.len() - 54);
            } else {
                prop_assert_eq!(checksum::header_is_right(piece), Some(true));
                prop_assert_eq!(usize::from(be16(piece, 16)), piece.len() - 14);
                prop_assert_eq!(be16(piece, 18), packet.id.wrapping_add(n as u16));
            }
            if packet.tcp {
                let sequence = packet.sequence.wrapping_add(payload.len() as u32).to_be_bytes();
                prop_assert_eq!(&piece[transport + 4..transport + 8], &sequence);
                let (first, last) = (n == 0, n + 1 == pieces.len());
                let keeps = if first { 0xff } else { 0x7f } & if last { 0xff } else { 0xf6 };
                prop_assert_eq!(piece[transport + 13], packet.flags & keeps);
                prop_assert_eq!(&piece[transport + 20..start], &whole[transport + 20..start]);
            } else {
                let length = usize::from(be16(piece, transport + 4));
                prop_assert_eq!(length, piece.len() - transport);
            }
            payload.extend_from_slice(carried);
        }
        prop_assert_eq!(payload, packet.payload);
    }

    /// A function may leave any headers and any length. Its packet leaves in pieces, or whole.
    #[test]
    fn a_spoilt_packet_is_cut_without_a_panic(
        packet in packet(),
        changes in proptest::collection::vec((12..80usize, any::<u8>()), 0..6),
        length in 14..400usize,
        segment in 0..300u16,
        tag: bool,
    ) {
        let mut frame = packet.frame();
        for (at, byte) in changes {
            if let Some(old) = frame.get_mut(at) {
                *old = byte;
            }
        }
        if tag {
            frame.splice(12..12, [0x81, 0, 0, 7]);
        }
        frame.truncate(length);
        let pieces = cut(&frame, segment).unwrap_or_default();
        prop_assert!(pieces.iter().all(|piece| piece.len() <= frame.len()));
    }

    /// A header of the kernel with wrong offsets changes no other bytes than two, and no length.
    #[test]
    fn a_sum_at_any_place_stays_in_its_frame(
        header: [u8; Offload::LENGTH_BYTES],
        frame in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut done = frame.clone();
        Offload::read(header).complete(&mut done);
        prop_assert_eq!(done.len(), frame.len());
        prop_assert!(done.iter().zip(&frame).filter(|(a, b)| a != b).count() <= 2);
    }
}

/// A function left a header of IPv4 that claims fewer than 20 bytes. The bytes behind it look like
/// one of TCP.
#[test]
fn half_a_header_is_not_cut() {
    for words in 0..5u8 {
        let mut frame = vec![0x55; 400];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x40 | words;
        frame[16..18].copy_from_slice(&386u16.to_be_bytes());
        frame[23] = 6;
        assert_eq!(cut(&frame, 100), None, "{words} words");
    }
}
