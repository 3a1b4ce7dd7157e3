use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

const LINKS: [&[u8]; 5] = [
    &[],
    &[0x81, 0, 0, 7],
    &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8],
    &[0x88, 0x64, 0x11, 0, 0, 9, 0, 0], // a PPPoE session; its length is filled in
    &[0x88, 0x64, 0x11, 0, 0, 9, 0, 0], // one that compresses the protocol number
];

/// A whole UDP datagram behind link headers.
fn datagram(version: u8, link: usize, payload: &[u8]) -> Vec<u8> {
    let mut frame = [[2; 12].as_slice(), LINKS[link]].concat();
    let ethertype = if version == 4 { [8, 0] } else { [0x86, 0xdd] };
    let name = [0, if version == 4 { 0x21 } else { 0x57 }];
    frame.extend(if link == 3 {
        &name[..]
    } else if link == 4 {
        &name[1..]
    } else {
        &ethertype
    });
    let ip = frame.len();
    match version {
        4 => frame.extend([0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]),
        _ => frame.extend([&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[1; 16], &[2; 16]].concat()),
    }
    frame.extend([0, 53, 0, 54]);
    frame.extend((payload.len() as u16 + 8).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    finish(&mut frame, ip, version, 0);
    frame
}

/// An IPv4 fragment of a datagram.
fn piece(id: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = [
        [2; 12].as_slice(),
        &[8, 0, 0x45, 0, 0, 0, 0, id, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
        payload,
    ]
    .concat();
    finish(&mut frame, 14, 4, (offset / 8) | (u16::from(more) << 13));
    frame
}

fn payload(taken: Taken) -> Vec<u8> {
    let Taken::Complete(complete) = taken else { panic!("{taken:?}") };
    complete.frame[34..].to_vec()
}

proptest! {
    /// A function may leave any length from an Ethernet header on.
    #[test]
    fn what_a_function_shortened_is_taken_apart_without_a_panic(
        version in prop_oneof![Just(4u8), Just(6u8)],
        link in 0..5usize,
        length in 14..80usize,
    ) {
        let mut frame = datagram(version, link, &[7; 40]);
        frame.truncate(length);
        let parts = Cut { largest: 32, id: 9 }.apart(&frame);
        prop_assert!(!parts.is_empty());
    }

    #[test]
    fn what_is_taken_apart_comes_together_in_any_order(
        version in prop_oneof![Just(4u8), Just(6u8)],
        link in 0..5usize,
        bytes in proptest::collection::vec(any::<u8>(), 200..3000),
        largest in 100..1500usize,
        seed: u64,
        again: bool,
    ) {
        let whole = datagram(version, link, &bytes);
        let parts = Cut { largest, id: 9 }.apart(&whole);
        prop_assert_eq!(parts.len() > 1, whole.len() - network(&whole).unwrap().1 > largest);
        prop_assume!(parts.len() > 1);
        let mut order: Vec<&Vec<u8>> = parts.iter().collect();
        order.sort_by_key(|p| {
            p.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
        });
        if again {
            order.insert(1, order[0]);
        }
        let mut fragments = Fragments::default();
        let mut taken: Vec<Taken> = order.iter().map(|p| fragments.take(p, 5)).collect();
        let Some(Taken::Complete(complete)) = taken.pop() else { panic!("{taken:?}") };
        prop_assert!(taken.iter().all(|t| *t == Taken::Held));
        prop_assert_eq!(&complete.frame, &whole);
        prop_assert_eq!(complete.cut.apart(&complete.frame), parts.clone());
        prop_assert!(parts.iter().all(|p| p.len() - network(p).unwrap().1 <= largest));
        prop_assert_eq!((fragments.bytes, fragments.datagrams.len(), fragments.expired), (0, 0, 0));
    }

    #[test]
    fn no_fragments_panic(
        frames in proptest::collection::vec(
            (
                0..3u8,
                0..40u16,
                any::<bool>(),
                proptest::collection::vec(any::<u8>(), 0..64),
                0..90usize,
            ),
            0..60,
        ),
    ) {
        let mut fragments = Fragments::default();
        for (id, offset, more, payload, cut) in frames {
            let frame = piece(id, offset * 8, more, &payload);
            if let Taken::Complete(complete) =
                fragments.take(&frame[..frame.len().saturating_sub(cut / 40 * cut)], 0)
            {
                complete.cut.apart(&complete.frame);
            }
        }
    }
}

/// The policy of BSD and Suricata: the fragment with the lower offset wins. Of two with the same
/// offset, the first to arrive wins.
#[test]
fn where_fragments_overlap_the_one_that_begins_earlier_counts() {
    let mut fragments = Fragments::default();
    assert_eq!(fragments.take(&piece(1, 8, true, b"BBBBBBBBbbbbbbbb"), 0), Taken::Held);
    assert_eq!(fragments.take(&piece(1, 0, true, b"AAAAAAAAaaaaaaaa"), 0), Taken::Held);
    assert_eq!(
        payload(fragments.take(&piece(1, 16, false, b"CCCCCCCCcccc"), 0)),
        b"AAAAAAAAaaaaaaaabbbbbbbbcccc"
    );
    assert_eq!(fragments.take(&piece(2, 0, true, b"firstone"), 0), Taken::Held);
    assert_eq!(fragments.take(&piece(2, 0, true, b"theother"), 0), Taken::Held);
    assert_eq!(payload(fragments.take(&piece(2, 8, false, b"end"), 0)), b"firstoneend");
}

#[test]
fn what_cannot_be_a_datagram_is_refused() {
    let mut fragments = Fragments::default();
    assert_eq!(
        fragments.take(&piece(1, 0, true, b"seven b"), 0),
        Taken::Refused,
        "not a multiple of 8, and not the last"
    );
    assert_eq!(
        fragments.take(&piece(1, 65_528, false, &[7; 100]), 0),
        Taken::Refused,
        "ends behind 65,535 bytes"
    );
    assert_eq!(fragments.take(&piece(1, 8, true, b""), 0), Taken::Refused);
    assert_eq!(fragments.take(&piece(1, 0, true, &[7; 64])[..60], 0), Taken::Refused, "cut off");
    for n in 0..FRAGMENTS_MAX as u16 {
        assert_eq!(fragments.take(&piece(1, 8 * n, true, &[7; 8]), 0), Taken::Held);
    }
    assert_eq!(
        fragments.take(&piece(1, 8 * FRAGMENTS_MAX as u16, true, &[7; 8]), 0),
        Taken::Refused,
        "too many"
    );
    assert_eq!((fragments.bytes, fragments.datagrams.len()), (0, 0));
}

#[test]
fn what_does_not_come_in_time_is_given_up() {
    let mut fragments = Fragments::default();
    assert_eq!(fragments.take(&piece(1, 0, true, b"too late"), 0), Taken::Held);
    assert_eq!(fragments.take(&piece(2, 0, true, b"in time."), HELD_NS_MAX), Taken::Held);
    assert_eq!(
        fragments.take(&piece(1, 8, false, b"x"), HELD_NS_MAX + 1),
        Taken::Held,
        "of a datagram that is forgotten"
    );
    assert_eq!(payload(fragments.take(&piece(2, 8, false, b"x"), 2 * HELD_NS_MAX)), b"in time.x");
    assert_eq!(fragments.expired, 1);
}

#[test]
fn a_flood_has_a_bound_and_others_get_through() {
    let mut fragments = Fragments::default();
    let flood = |n: u32| {
        let mut frame = piece(0, 0, true, &[7; 1400]);
        frame[26..30].copy_from_slice(&n.to_be_bytes()); // each from another address
        frame
    };
    let (start, end) = (piece(9, 0, true, b"unharmed"), piece(9, 8, false, b"!"));
    for n in 0..20_000 {
        assert_eq!(fragments.take(&flood(n), u64::from(n)), Taken::Held);
        assert!(
            fragments.bytes <= HELD_BYTES_MAX
                && fragments.began.len() <= 2 * fragments.datagrams.len() + 65
        );
        match n % 1000 {
            0 => assert_eq!(fragments.take(&start, u64::from(n)), Taken::Held),
            999 => assert_eq!(payload(fragments.take(&end, u64::from(n))), b"unharmed!"),
            _ => {}
        }
    }
    assert!(fragments.expired > 15_000, "{}", fragments.expired);
}

/// Returns the datagram that pieces make by the rule: of the pieces with a byte, the one with the
/// lowest offset has it, and of those the first to arrive.
fn by_rule(pieces: &[(u16, bool, Vec<u8>)]) -> Option<Vec<u8>> {
    let ends = |(offset, _, payload): &(u16, bool, Vec<u8>)| usize::from(*offset) + payload.len();
    let length = pieces.iter().find(|(_, more, _)| !more).map(ends)?;
    pieces.iter().find(|(offset, ..)| *offset == 0)?;
    let byte = |at: usize| {
        let has = |piece: &&(u16, bool, Vec<u8>)| (usize::from(piece.0)..ends(piece)).contains(&at);
        let winner = pieces.iter().filter(has).min_by_key(|(offset, ..)| *offset)?;
        Some(winner.2[at - usize::from(winner.0)])
    };
    (0..length).map(byte).collect()
}

/// A strategy of pieces in units of 8 bytes; the last may have any length.
fn some_piece() -> impl Strategy<Value = (u16, bool, Vec<u8>)> {
    (0..6u16, prop_oneof![3 => Just(true), 1 => Just(false)], 1..4usize, 0..8usize, any::<u8>())
        .prop_map(|(offset, more, units, less, first)| {
            let more = more || offset == 0; // or it is a whole packet
            let length = 8 * units - if more { 0 } else { less };
            (8 * offset, more, (0..length).map(|n| first.wrapping_add(n as u8)).collect())
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// However pieces overlap, repeat and arrive, a datagram is complete as soon as all its bytes
    /// are here, and has the bytes of the rule.
    #[test]
    fn overlapping_pieces_make_the_datagram_of_the_rule(
        pieces in proptest::collection::vec(some_piece(), 1..24),
    ) {
        let (mut fragments, mut held) = (Fragments::default(), Vec::new());
        for (offset, more, bytes) in pieces {
            let taken = fragments.take(&piece(1, offset, more, &bytes), 0);
            held.push((offset, more, bytes));
            match by_rule(&held) {
                Some(whole) => {
                    prop_assert_eq!(payload(taken), whole);
                    held.clear();
                    prop_assert_eq!((fragments.bytes, fragments.datagrams.len()), (0, 0));
                }
                None => prop_assert_eq!(taken, Taken::Held),
            }
        }
    }

    /// Extension headers that each router reads stay in each fragment. The others are in the first.
    #[test]
    fn extension_headers_come_together_again(
        kinds in proptest::collection::vec(
            (prop_oneof![Just(0u8), Just(43), Just(60)], 0..3usize),
            0..4,
        ),
        bytes in proptest::collection::vec(any::<u8>(), 200..900),
        largest in 200..400usize,
    ) {
        let mut whole = datagram(6, 0, &bytes);
        let mut headers = Vec::new();
        for (n, (_, units)) in kinds.iter().enumerate() {
            let next = kinds.get(n + 1).map_or(17, |(kind, _)| *kind);
            headers.extend([next, *units as u8]);
            headers.resize(headers.len() + 6 + 8 * units, 1);
        }
        whole[20] = kinds.first().map_or(17, |(kind, _)| *kind);
        whole.splice(54..54, headers);
        finish(&mut whole, 14, 6, 0);
        let parts = Cut { largest, id: 7 }.apart(&whole);
        prop_assume!(parts.len() > 1);
        prop_assert!(parts.iter().all(|part| part.len() - 14 <= largest));
        let mut fragments = Fragments::default();
        let mut taken: Vec<Taken> = parts.iter().rev().map(|p| fragments.take(p, 5)).collect();
        let Some(Taken::Complete(complete)) = taken.pop() else { panic!("{taken:?}") };
        prop_assert_eq!(&complete.frame, &whole);
        prop_assert_eq!(complete.cut.apart(&whole), parts);
    }

    /// A function may leave any headers. Their packet leaves in some pieces, or whole.
    #[test]
    fn what_a_function_spoilt_is_taken_apart_without_a_panic(
        version in prop_oneof![Just(4u8), Just(6u8)],
        link in 0..5usize,
        changes in proptest::collection::vec((12..60usize, any::<u8>()), 0..6),
        cut in 0..200usize,
        largest in 0..120usize,
    ) {
        let mut frame = datagram(version, link, &[7; 120]);
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame.truncate(frame.len() - cut.min(frame.len() - 14));
        let parts = Cut { largest, id: 9 }.apart(&frame);
        prop_assert!(!parts.is_empty());
        let mut fragments = Fragments::default();
        parts.iter().for_each(|part| drop(fragments.take(part, 0)));
    }
}

/// A header of IPv4 is at least 20 bytes long. A function left one that claims fewer.
#[test]
fn a_packet_with_half_a_header_leaves_whole() {
    let whole = datagram(4, 0, &[7; 100]);
    for words in 0..5 {
        let mut frame = whole.clone();
        frame[14] = 0x40 | words;
        assert_eq!(Cut { largest: 60, id: 9 }.apart(&frame), [frame], "{words} words");
    }
}

/// Each fragment alone fits into 65,535 bytes. With the longer header of the first, the datagram
/// does not: its length field would begin again at zero.
#[test]
fn a_datagram_that_is_too_long_only_as_a_whole_is_refused() {
    let mut first = piece(1, 0, true, &[7; 80]);
    first[14] = 0x4f; // 40 bytes of the payload are options
    crate::checksum::fill_header(&mut first[14..74]);
    let last = |bytes: usize| piece(1, 65_504, false, &vec![7; bytes]);
    let mut fragments = Fragments::default();
    for order in [[0, 1], [1, 0]] {
        let both = [first.clone(), last(8)];
        let taken = order.map(|n: usize| fragments.take(&both[n], 0));
        assert_eq!(taken, [Taken::Held, Taken::Refused]);
    }
    assert_eq!((fragments.bytes, fragments.datagrams.len(), fragments.expired), (0, 0, 4));
}

/// Fragments of different datagrams stay apart, though their ids are equal.
#[test]
fn an_id_counts_between_two_addresses_and_in_one_protocol() {
    let change = |at: usize| {
        move |mut frame: Vec<u8>| {
            frame[at] ^= 1;
            crate::checksum::fill_header(&mut frame[14..34]);
            frame
        }
    };
    let mut fragments = Fragments::default();
    let (start, end) = (piece(1, 0, true, b"startingstarting"), piece(1, 16, false, b"end"));
    // The id, the protocol, an address of each end.
    for at in [19, 23, 29, 33] {
        assert_eq!(fragments.take(&change(at)(start.clone()), 0), Taken::Held);
    }
    assert_eq!(fragments.take(&end, 0), Taken::Held);
    assert_eq!(payload(fragments.take(&start, 0)), b"startingstartingend");
    for at in [19, 23, 29, 33] {
        assert_eq!(payload(fragments.take(&change(at)(end.clone()), 0)), b"startingstartingend");
    }
}

/// A stray fragment lies behind the end of the datagram. It does not hold the datagram up.
#[test]
fn a_piece_behind_the_end_delays_nothing() {
    let mut fragments = Fragments::default();
    assert_eq!(fragments.take(&piece(1, 32, true, b"straying"), 0), Taken::Held);
    assert_eq!(fragments.take(&piece(1, 8, false, b"end"), 0), Taken::Held);
    assert_eq!(payload(fragments.take(&piece(1, 0, true, b"thebegin"), 0)), b"thebeginend");
    assert_eq!((fragments.bytes, fragments.datagrams.len()), (0, 0));
}
