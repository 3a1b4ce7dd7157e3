//! Functions receive whole datagrams, however they were fragmented.

use std::path::Path;

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_flow::{FlowKey, checksum};
use pando_rules as rules;
use pando_wasm::{Function, Limits, Runtime};

fn chain(function: &str, configuration: &[u8]) -> Chain<Function> {
    let path = format!("{}/../functions/{function}/{function}.wasm", env!("CARGO_MANIFEST_DIR"));
    let function =
        Runtime::new(Limits::default(), 2).load(Path::new(&path), configuration).unwrap();
    Chain::new(vec![Stage::new(function, Leases::new(40_000..=40_999))], Policy::default())
}

/// A UDP datagram from 10.0.0.1:53 to 192.0.2.9:54.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let length = |more: usize| ((payload.len() + more) as u16).to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(length(28));
    frame.extend([0, 9, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9, 0, 53, 0, 54]);
    frame.extend(length(8));
    frame.extend([0, 0]);
    frame.extend(payload);
    checksum::fill(&mut frame);
    frame
}

/// Returns its fragments of at most `most` bytes of payload.
fn cut(whole: &[u8], most: usize) -> Vec<Vec<u8>> {
    let parts = whole[34..].chunks(most).enumerate().map(|(n, part)| {
        let more = 34 + n * most + part.len() < whole.len();
        let mut frame = [&whole[..34], part].concat();
        frame[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        frame[20..22]
            .copy_from_slice(&((n * most / 8) as u16 | u16::from(more) << 13).to_be_bytes());
        checksum::fill_header(&mut frame[14..34]);
        frame
    });
    parts.collect()
}

/// Calls the chain once per packet, so that a datagram spans batches. Returns each call's output.
fn through(chain: &mut Chain<Function>, frames: &[Vec<u8>]) -> Vec<(Fate, Vec<Vec<u8>>)> {
    let mut outputs = Vec::new();
    for (n, frame) in frames.iter().enumerate() {
        let arrivals = [Arrival { frame, time_ns: n as u64, outer: false, steered: None }];
        assert_eq!(chain.process(&arrivals), 1);
        outputs.extend(
            chain
                .outputs(&arrivals)
                .map(|(fate, out)| (fate, out.iter().map(<[u8]>::to_vec).collect())),
        );
    }
    outputs
}

fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = parts[0].clone();
    parts[1..].iter().for_each(|p| whole.extend(&p[34..]));
    let length = whole.len() as u16 - 14;
    whole[16..18].copy_from_slice(&length.to_be_bytes());
    whole[20..22].fill(0);
    checksum::fill_header(&mut whole[14..34]);
    whole
}

fn ids() -> Chain<Function> {
    let rule = "alert ip any any -> any any (content:\"needle\"; sid:7;)";
    chain(
        "ids",
        &rules::compile(&rules::parse(rule, "rule", &Default::default()).unwrap().patterns)
            .unwrap(),
    )
}

#[test]
fn a_content_across_fragments_is_found_in_its_flow_and_they_leave_as_they_came() {
    let whole = datagram(&[b"0123456789-nee".as_slice(), b"dle and more", &[b'.'; 40]].concat());
    let parts = cut(&whole, 24);
    let mut order = parts.clone();
    order.rotate_left(1); // the first one arrives last
    let mut chain = ids();
    let mut out = through(&mut chain, &order);
    let last = out.pop().unwrap();
    assert!(out.iter().all(|(fate, frames)| *fate == Fate::Held && frames.is_empty()), "{out:?}");
    assert_eq!(last, (Fate::Passed, parts));
    assert_eq!(
        chain.events.iter().map(|e| (e.code, e.key)).collect::<Vec<_>>(),
        [(7, FlowKey::of_frame(&whole).unwrap().0)]
    );
    assert_eq!(chain.work().next().unwrap().packets, 1, "a datagram is one packet on the bill");
}

#[test]
fn a_translated_datagram_leaves_as_fragments_with_one_right_checksum() {
    let whole = datagram(&[7; 3000]);
    let out =
        through(&mut chain("nat", b"address=203.0.113.7\ninside=10.0.0.0/8\n"), &cut(&whole, 1480));
    let parts = &out.last().unwrap().1;
    assert_eq!(parts.len(), 3);
    assert!(
        parts
            .iter()
            .all(|p| p[26..30] == [203, 0, 113, 7] && checksum::header_is_right(p) == Some(true)),
        "{parts:?}"
    );
    let joined = join(parts);
    assert_eq!(checksum::transport_is_right(&joined), Some(true));
    assert_eq!(joined[42..], whole[42..]);
}

#[test]
fn largest_datagrams_share_batches_with_others() {
    let large = cut(&datagram(&[1; 65_000]), 1480);
    let small = datagram(b"needle");
    let mut frames: Vec<Vec<u8>> = Vec::new();
    // Datagrams completed one after the other, more than a batch has room for.
    for part in &large {
        for id in 0..4 {
            let mut frame = part.clone();
            frame[19] = id;
            checksum::fill_header(&mut frame[14..34]);
            frames.push(frame);
        }
    }
    frames.push(small);
    let arrivals: Vec<Arrival> = frames
        .iter()
        .enumerate()
        .map(|(n, frame)| Arrival { frame, time_ns: n as u64, outer: false, steered: None })
        .collect();
    let mut chain = ids();
    let (mut at, mut passed) = (0, Vec::new());
    while at < arrivals.len() {
        let count = chain.process(&arrivals[at..]);
        passed.extend(
            chain.outputs(&arrivals[at..]).flat_map(|(_, out)| out.iter()).map(<[u8]>::to_vec),
        );
        at += count;
    }
    assert_eq!(passed.len(), frames.len());
    assert_eq!(chain.work().next().unwrap().packets, 5);
    assert_eq!(chain.events.len(), 1);
}

#[test]
fn a_datagram_that_is_dropped_or_trapped_on_leaves_nothing() {
    let parts = cut(&datagram(&[7; 100]), 48);
    let out = through(&mut chain("whitelister", b"inside=172.16.0.0/12\n"), &parts);
    assert_eq!(
        out.iter().map(|(fate, _)| *fate).collect::<Vec<_>>(),
        [Fate::Held, Fate::Held, Fate::Dropped]
    );
    assert!(out.iter().all(|(_, frames)| frames.is_empty()));
}
