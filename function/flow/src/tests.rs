//! Tests of the flow of a frame.

use super::*;
use proptest::prelude::*;

fn udp4(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut f = vec![0; 12];
    f.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    f.extend(&from[..4]);
    f.extend(&to[..4]);
    f.extend(&from[4..]);
    f.extend(&to[4..]);
    f.extend([0, 8, 0, 0]);
    f
}

proptest! {
    #[test]
    fn both_directions_share_a_key(a: [u8; 6], b: [u8; 6]) {
        prop_assume!(a != b);
        let (there, way) = FlowKey::of_frame(&udp4(a, b)).unwrap();
        let (back, other) = FlowKey::of_frame(&udp4(b, a)).unwrap();
        prop_assert_eq!(there, back);
        prop_assert_ne!(way, other);
    }

    #[test]
    fn no_frame_panics(
        frame in proptest::collection::vec(any::<u8>(), 0..120),
        kind in 0..4usize,
    ) {
        let mut frame = frame;
        if frame.len() > 14 {
            frame[12..14]
                .copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0x64]][kind]);
            frame[14] = [0x45, 0x60, 8, 0x11][kind];
        }
        FlowKey::of_frame(&frame);
    }
}

#[test]
fn tags_and_sessions_are_looked_through() {
    let plain = udp4([10, 0, 0, 1, 1, 1], [10, 0, 0, 2, 2, 2]);
    let behind = |shim: &[u8], ethertype: &[u8]| {
        let mut frame = plain.clone();
        frame.splice(12..14, [shim, ethertype].concat());
        FlowKey::of_frame(&frame)
    };
    let flow = FlowKey::of_frame(&plain);
    assert!(flow.is_some());
    let session = [0x88, 0x64, 0x11, 0, 0, 9, 0, 30];
    assert_eq!(behind(&[0x81, 0, 0, 7], &[8, 0]), flow);
    assert_eq!(behind(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8], &[8, 0]), flow);
    assert_eq!(behind(&session, &[0, 0x21]), flow);
    assert_eq!(behind(&[&[0x81, 0, 0, 7][..], &session].concat(), &[0, 0x21]), flow);
    assert_eq!(behind(&session, &[0x21]), flow, "one byte of PPP's two");
    assert_eq!(behind(&session, &[0x23]), None, "another protocol");
    assert_eq!(behind(&[0x81, 0, 0, 7, 0x81, 0, 0, 7, 0x81, 0, 0, 7], &[8, 0]), None, "three tags");
    assert_eq!(behind(&session, &[0xc0, 0x21]), None, "LCP is no packet of a flow");
    assert_eq!(
        behind(&[0x88, 0x64, 0x11, 9, 0, 9, 0, 30], &[0, 0x21]),
        None,
        "a code other than session data"
    );
}

/// Returns an IP packet with this payload.
fn packet(version: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    let header = match version {
        4 => [
            &[0x45, 0][..],
            &(20 + length).to_be_bytes(),
            &[0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2],
        ]
        .concat(),
        _ => [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, 64], &[7; 16], &[8; 16]]
            .concat(),
    };
    [&header, payload].concat()
}

fn framed(version: u8, packet: &[u8]) -> Vec<u8> {
    [&[2; 12][..], if version == 4 { &[8, 0] } else { &[0x86, 0xdd] }, packet].concat()
}

#[test]
fn a_flow_is_that_of_the_innermost_packet() {
    let plain = udp4([10, 0, 0, 1, 1, 1], [10, 0, 0, 2, 2, 2]);
    let flow = FlowKey::of_frame(&plain);
    let inner = &plain[14..];
    let inner6 = packet(6, 17, &[0, 1, 0, 2, 0, 8, 0, 0]);
    let flow6 = FlowKey::of_frame(&framed(6, &inner6));
    let gre = |head: &[u8], payload: &[u8]| {
        FlowKey::of_frame(&framed(4, &packet(4, 47, &[head, payload].concat())))
    };
    for version in [4, 6] {
        assert_eq!(
            FlowKey::of_frame(&framed(version, &packet(version, 4, inner))),
            flow,
            "4 in {version}"
        );
        assert_eq!(
            FlowKey::of_frame(&framed(version, &packet(version, 41, &inner6))),
            flow6,
            "6 in {version}"
        );
    }
    assert_eq!(gre(&[0, 0, 8, 0], inner), flow);
    assert_eq!(gre(&[0, 0, 0x86, 0xdd], &inner6), flow6);
    assert_eq!(
        gre(&[0xb0, 0, 8, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], inner),
        flow,
        "checksum, key and sequence"
    );
    assert_eq!(gre(&[0x20, 0, 0x65, 0x58, 1, 1, 1, 1], &plain), flow, "an Ethernet frame");
    assert_eq!(gre(&[0, 0, 0x88, 0xbe], &plain), flow, "ERSPAN, type I");
    assert_eq!(
        gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 1, 0, 0, 0, 2], &plain),
        flow,
        "ERSPAN, type II"
    );
    assert_eq!(
        gre(&[0x30, 1, 0x88, 0x0b, 0, 9, 0, 9, 0, 0, 0, 1, 0xff, 3, 0, 0x21], inner),
        flow,
        "PPTP"
    );
    assert_eq!(
        gre(&[0, 0, 0x88, 0x0b], inner),
        gre(&[0, 0, 0x88, 0x0b], &[]),
        "PPP is in version 1 only"
    );
    let twice = packet(6, 4, &packet(4, 47, &[&[0, 0, 8, 0], inner].concat()));
    assert_eq!(FlowKey::of_frame(&framed(6, &twice)), flow, "a tunnel in a tunnel");
    let cut = packet(4, 4, &inner[..19]);
    assert!(
        format!("{:?}", FlowKey::of_frame(&framed(4, &cut)).unwrap().0).starts_with("192.0.2.1:0"),
        "half a header is no packet"
    );
    let mut deep = inner.to_vec();
    (0..TUNNELS_MAX + 1).for_each(|_| deep = packet(4, 4, &deep));
    assert_ne!(FlowKey::of_frame(&framed(4, &deep)), flow, "a tunnel more than are looked into");
}

/// An error names the flow of the packet that it quotes, and runs against that packet.
#[test]
fn an_error_belongs_to_the_flow_that_it_is_about() {
    let sent = udp4([10, 0, 0, 1, 1, 1], [10, 0, 0, 2, 2, 2]);
    let (flow, way) = FlowKey::of_frame(&sent).unwrap();
    let error = |kind: u8, quote: &[u8]| {
        let message = [&[kind, 4, 0, 0, 0, 0, 5, 0][..], quote].concat();
        FlowKey::of_frame(&framed(4, &packet(4, 1, &message))).unwrap()
    };
    for kind in [3, 11, 12] {
        let (about, against) = error(kind, &sent[14..]);
        assert_eq!(about, flow, "ICMP type {kind}");
        assert_ne!(against, way);
    }
    let plain = error(13, &sent[14..]).0;
    assert_eq!(plain.protocol(), 1, "a timestamp quotes nothing");
    assert_eq!(error(3, &sent[14..14 + 27]).0, plain, "a quote without 8 bytes of UDP");
    let about_error = packet(4, 1, &[&[3, 4, 0, 0, 0, 0, 5, 0][..], &sent[14..]].concat());
    assert_eq!(error(3, &about_error).0, plain, "no error is sent about an error");
    let six = packet(6, 17, &[0, 1, 0, 2, 0, 8, 0, 0]);
    let message = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &six].concat();
    assert_eq!(
        FlowKey::of_frame(&framed(6, &packet(6, 58, &message))).unwrap().0,
        FlowKey::of_frame(&framed(6, &six)).unwrap().0,
        "packet too big"
    );
}

#[test]
fn an_echo_and_its_answer_share_a_flow_by_their_identifier() {
    let echo = |kind: u8, id: u8| {
        let mut frame = framed(4, &packet(4, 1, &[kind, 0, 0, 0, 7, id, 0, 1]));
        if kind == 0 {
            (26..30).for_each(|at| frame.swap(at, at + 4));
        }
        FlowKey::of_frame(&frame).unwrap()
    };
    assert_eq!(echo(8, 1).0, echo(0, 1).0);
    assert_ne!(echo(8, 1).1, echo(0, 1).1);
    assert_ne!(echo(8, 1).0, echo(8, 2).0);
    assert!(format!("{:?}", echo(8, 1).0).starts_with("192.0.2.1:1793"));
}

proptest! {
    #[test]
    fn no_error_panics(
        version in prop_oneof![Just(4u8), Just(6u8)],
        kind in 0..14u8,
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut quote = bytes;
        if let Some(first) = quote.first_mut() {
            *first = version << 4 | 5;
        }
        let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quote].concat();
        let protocol = if version == 4 { 1 } else { 58 };
        let frame = framed(version, &packet(version, protocol, &message));
        prop_assert!(FlowKey::of_frame(&frame).is_some());
    }

    #[test]
    fn no_tunnel_panics(
        kind in 0..4usize,
        protocol in prop_oneof![Just(4u8), Just(41u8), Just(47u8)],
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = bytes;
        let gre: [&[u8]; 4] =
            [&[0, 0, 8, 0, 0x45], &[0x10, 0, 0x88, 0xbe], &[0x30, 1, 0x88, 0x0b], &[0x60]];
        let n = gre[kind].len().min(bytes.len());
        bytes[..n].copy_from_slice(&gre[kind][..n]);
        for version in [4, 6] {
            let frame = framed(version, &packet(version, protocol, &bytes));
            let (found, at) = innermost(&frame).unwrap();
            prop_assert!(frame[at] >> 4 == found && at + 20 <= frame.len());
            FlowKey::of_frame(&frame);
        }
    }
}

#[test]
fn only_the_first_fragment_has_the_ports() {
    let with = |offset_and_more: u8| {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 44, 64]);
        frame.extend([1; 16].into_iter().chain([2; 16]));
        frame.extend([17, 0, 0, offset_and_more, 0, 0, 0, 1, 0, 53, 0, 54, 0, 8, 0, 0]);
        format!("{:?}", FlowKey::of_frame(&frame).unwrap().0)
    };
    assert!(with(0).contains("]:53"), "{}", with(0));
    assert!(with(1).contains("]:53"), "{}", with(1));
    assert!(with(9).contains("]:0"), "{}", with(9));
}
