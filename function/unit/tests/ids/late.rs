//! Contents in segments that come late, twice, or beside forged ones.

use std::cell::RefCell;
use std::collections::HashMap;

use super::*;

/// The server's acknowledgment of all before a number.
fn acknowledged(number: u32) -> Vec<u8> {
    let answer = packet(Some(ACK), "10.0.0.2:80", "10.0.0.1:1000", b"");
    Packet { acknowledged: number, ..answer }.frame()
}

/// Reports whether an IDS reports the only rule, for frames of a client with its own port. A thread
/// compiles each rule once.
fn finds(rule: &'static str, frames: &[Vec<u8>]) -> bool {
    type Compiled = (Chain<Function>, u16);
    thread_local! {
        static CHAINS: RefCell<HashMap<&'static str, Compiled>> = RefCell::default();
    }
    CHAINS.with_borrow_mut(|chains| {
        let (chain, port) = chains.entry(rule).or_insert_with(|| (ids(rule), 1000));
        *port += 1;
        let mut frames = frames.to_vec();
        for frame in &mut frames {
            let at = if frame[34..36] == 80u16.to_be_bytes() { 36 } else { 34 };
            frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
        }
        !reported(chain, &frames).is_empty()
    })
}

/// Returns all orders of some numbers.
fn orders(numbers: &[usize]) -> Vec<Vec<usize>> {
    if numbers.is_empty() {
        return vec![vec![]];
    }
    let first = |n: &usize| {
        let rest: Vec<usize> = numbers.iter().copied().filter(|m| m != n).collect();
        orders(&rest).into_iter().map(|order| [vec![*n], order].concat()).collect::<Vec<_>>()
    };
    numbers.iter().flat_map(first).collect()
}

/// A content in six segments is found in all of their 720 orders.
#[test]
fn parts_of_a_content_come_in_any_order() {
    for start in [1000, u32::MAX - 3] {
        for order in orders(&[0, 1, 2, 3, 4, 5]) {
            let first = start - 6;
            let mut frames = vec![sent(ACK, first, b"before"), acknowledged(start)];
            let part = |&n: &usize| sent(ACK, start.wrapping_add(n as u32), &b"needle"[n..=n]);
            frames.extend(order.iter().map(part));
            assert!(finds(NEEDLE, &frames), "{order:?} at {start}");
        }
    }
}

const LONG: &[u8] = b"0123456789abcdef";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// So is a content of 16 bytes in up to four segments with data around it, with overlaps or
    /// with wrong data beside a part. Both ends know which data is wrong, and the IDS does not.
    #[test]
    fn wrong_data_beside_late_parts_hides_no_content(
        mut cuts in proptest::array::uniform3(1..79usize),
        order in proptest::sample::select(orders(&[0, 1, 2, 3])),
        before in 0..40usize,
        overlap in 0..4usize,
        wrong in proptest::option::of(0..4usize),
        acknowledges: bool,
    ) {
        static DATA: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let data = &DATA.get_or_init(|| {
            let around = |n: usize| [vec![b'-'; n], LONG.to_vec(), vec![b'-'; 64 - n]].concat();
            (0..40).map(around).collect()
        })[before];
        cuts.sort_unstable();
        let overlap = if wrong.is_some() { 0 } else { overlap };
        let ends = [0, cuts[0], cuts[1], cuts[2], 80];
        let mut frames = vec![sent(ACK, 994, b"before"), acknowledged(1000)];
        for n in order {
            let from = ends[n].saturating_sub(overlap);
            let number = 1000 + from as u32;
            if from == ends[n + 1] {
                continue;
            }
            if wrong == Some(n) {
                frames.push(sent(ACK, number, &[b'x'; 80][..ends[n + 1] - from]));
            }
            frames.push(sent(ACK, number, &data[from..ends[n + 1]]));
            if acknowledges && n == 0 {
                frames.push(acknowledged(1000 + ends[1] as u32));
            }
        }
        let rule = "alert tcp any any -> any any (content:\"0123456789abcdef\"; \
                    sid:1;)\n";
        prop_assert!(finds(rule, &frames));
    }

    /// Forged segments between two parts of a content hide it neither in the place of the next data
    /// nor elsewhere: three of them at once, or any number after an acknowledgment.
    #[test]
    fn several_forged_segments_hide_no_content(
        forged in proptest::collection::vec(
            (
                prop_oneof![Just(0u32), 0..20u32, any::<u32>()],
                proptest::sample::select(vec![&b"z"[..], b"dle", b"xxx", b"forged"]),
                proptest::sample::select(vec![ACK, SYN]),
            ),
            1..40,
        ),
        acknowledges: bool,
    ) {
        let several = if acknowledges { forged.len() } else { forged.len().min(3) };
        let mut frames = vec![sent(ACK, 1000, b"a nee")];
        frames.extend(acknowledges.then(|| acknowledged(1005)));
        let number = |distance: u32| 1005u32.wrapping_add(distance);
        let forge = |&(distance, data, flags): &_| sent(flags, number(distance), data);
        frames.extend(forged[..several].iter().map(forge));
        frames.push(sent(ACK, 1005, b"dle"));
        prop_assert!(finds(NEEDLE, &frames));
    }
}
