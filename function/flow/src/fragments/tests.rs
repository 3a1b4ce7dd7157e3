use proptest::prelude::*;

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
