//! The IDS reports a rule exactly for the packets that match the rule's head.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_rules::{self as rules, Head, Protocol, Variables};
use pando_wasm::{Compiler, Function, Limits, Prepared, Runtime};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

#[path = "ids/late.rs"]
mod late;

fn ids(rules: &str) -> Chain<Function> {
    let read = rules::parse(rules, "test.rules", &Variables::default()).unwrap();
    assert!(read.others.is_empty(), "{:?}", read.others);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/ids/ids.wasm");
    let configuration = rules::compile(&read.patterns).unwrap();
    let prepared: Prepared = Runtime::new(Limits::default(), 2)
        .prepare(Path::new(path), &configuration, &Compiler::Here)
        .unwrap();
    Chain::new(vec![Stage::new(prepared.start().unwrap(), Leases::new(1..=1))], Policy::default())
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// A TCP packet (with its flags) or a UDP packet.
#[derive(Clone, Debug)]
struct Packet {
    tcp: Option<u8>,
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    sequence: u32,
    acknowledged: u32,
    payload: &'static [u8],
}

impl Packet {
    fn ip(&self) -> Vec<u8> {
        let mut upper = [self.from.1.to_be_bytes(), self.to.1.to_be_bytes()].concat();
        match self.tcp {
            Some(flags) => {
                upper.extend(self.sequence.to_be_bytes());
                upper.extend(self.acknowledged.to_be_bytes());
                upper.extend([0x50, flags, 1, 0, 0, 0, 0, 0]);
            }
            None => upper.extend([(8 + self.payload.len() as u16).to_be_bytes(), [0, 0]].concat()),
        }
        upper.extend(self.payload);
        let protocol = if self.tcp.is_some() { 6 } else { 17 };
        let length = upper.len() as u16;
        let mut ip = match (self.from.0, self.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = vec![0x45, 0];
                ip.extend((20 + length).to_be_bytes());
                ip.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
                ip.extend([from.octets(), to.octets()].concat());
                ip
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut ip = vec![0x60, 0, 0, 0];
                ip.extend(length.to_be_bytes());
                ip.extend([protocol, 64]);
                ip.extend([from.octets(), to.octets()].concat());
                ip
            }
            _ => unreachable!("both ends are of one version"),
        };
        ip.extend(upper);
        ip
    }

    fn frame(&self) -> Vec<u8> {
        let ethertype = if self.from.0.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        [&[2; 12][..], &ethertype, &self.ip()].concat()
    }
}

fn packet(tcp: Option<u8>, from: &str, to: &str, payload: &'static [u8]) -> Packet {
    let end = |text: &str| {
        text.parse::<std::net::SocketAddr>().map(|end| (end.ip(), end.port())).unwrap()
    };
    Packet { tcp, from: end(from), to: end(to), sequence: 1, acknowledged: 0, payload }
}

/// Returns the sids that are reported for these frames, each in its own batch.
fn reported(chain: &mut Chain<Function>, frames: &[Vec<u8>]) -> BTreeSet<u32> {
    for (n, frame) in frames.iter().enumerate() {
        let arrivals = [Arrival { frame, time_ns: n as u64 + 1, outer: false, steered: None }];
        chain.process(&arrivals);
    }
    chain.events.drain(..).map(|event| event.code).collect()
}

/// Returns whether a head matches a packet, in a plain model.
fn speaks_of(head: &Head, packet: &Packet) -> bool {
    let protocol = match head.protocol {
        Protocol::Ip => true,
        Protocol::Tcp => packet.tcp.is_some(),
        Protocol::Udp => packet.tcp.is_none(),
    };
    let goes = |from: (IpAddr, u16), to: (IpAddr, u16)| {
        let is = |(addresses, ports): &(rules::Addresses, rules::Ports),
                  (address, port): (IpAddr, u16)| {
            addresses.has(address) && ports.has(port.into())
        };
        is(&head.from, from) && is(&head.to, to)
    };
    protocol && (goes(packet.from, packet.to) || head.both_ways && goes(packet.to, packet.from))
}

fn address() -> impl Strategy<Value = &'static str> {
    let all = [
        "any",
        "10.1.0.0/16",
        "!10.1.2.3",
        "[10.1.2.3,2001:db8::1]",
        "[!2001:db8::/127,!10.0.0.0/8]",
        "$HOME_NET",
        "$EXTERNAL_NET",
    ];
    proptest::sample::select(all.to_vec())
}

fn port() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "any",
        "53",
        "!53",
        "1000:",
        ":999",
        "[53,443,1000:2000]",
        "[1:2000,!53]",
        "$HTTP_PORTS",
    ])
}

/// A thousand heads, compiled once.
fn heads() -> &'static String {
    static HEADS: OnceLock<String> = OnceLock::new();
    HEADS.get_or_init(|| {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let arrow = proptest::sample::select(vec!["->", "->", "<>"]);
        let protocol = proptest::sample::select(vec!["ip", "tcp", "udp"]);
        let head = (protocol, address(), port(), arrow, address(), port());
        let text = |n: u32| {
            let (protocol, from, from_port, arrow, to, to_port) =
                head.new_tree(&mut runner).unwrap().current();
            format!(
                "alert {protocol} {from} {from_port} {arrow} {to} {to_port} \
                (content:\"needle\"; sid:{n};)\n"
            )
        };
        (1..=1000).map(text).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn heads_speak_of_what_a_plain_model_says(
        v6: bool,
        tcp: bool,
        ends in proptest::array::uniform2((
            0..4usize,
            proptest::sample::select(vec![1u16, 53, 80, 443, 999, 1000, 2001, 65535]),
        )),
    ) {
        let addresses = if v6 {
            ["2001:db8::1", "2001:db8::2", "fe80::1", "::1"]
        } else {
            ["10.1.2.3", "10.1.2.4", "10.2.0.1", "198.51.100.1"]
        };
        let [from, to] = ends.map(|(n, port)| (addresses[n].parse().unwrap(), port));
        let of = packet(tcp.then_some(ACK), "10.0.0.1:1", "10.0.0.1:1", b"a needle");
        let packet = Packet { from, to, ..of };
        let expected: BTreeSet<u32> = rules::parse(heads(), "heads", &Variables::default())
            .unwrap()
            .patterns
            .iter()
            .filter(|p| speaks_of(&p.head, &packet))
            .map(|p| p.sid)
            .collect();
        prop_assert_eq!(reported(&mut ids(heads()), &[packet.frame()]), expected);
    }
}

#[test]
fn a_rule_of_udp_reports_no_tcp() {
    let mut chain = ids(
        "alert udp any any -> any 9999 (content:\"needle\"; sid:1;)\nalert tcp any any -> any 9999 \
         (content:\"needle\"; sid:2;)\n",
    );
    let to = |port: u16| {
        [packet(Some(ACK), "10.0.0.1:1000", &format!("10.0.0.2:{port}"), b"needle").frame()]
    };
    assert_eq!(reported(&mut chain, &to(9998)), [].into());
    assert_eq!(reported(&mut chain, &to(9999)), [2].into());
}

const FLOW_RULES: &str = "alert ip any any -> any any (flow:to_server; content:\"needle\"; sid:1;)
alert ip any any -> any any (flow:to_client; content:\"needle\"; sid:2;)
alert ip any any -> any any (flow:established; content:\"needle\"; sid:3;)
alert ip any any -> any any (flow:established,from_client; content:\"needle\"; sid:4;)
alert ip any any -> any any (flow:stateless; content:\"needle\"; sid:5;)\n";

/// The server sends first, as in SMTP or FTP: the handshake decides which end is the server.
#[test]
fn the_server_is_who_answers_a_syn() {
    for port in [25, 2525] {
        let (client, server) = ("10.0.0.1:1000", format!("10.0.0.2:{port}"));
        let syn = packet(Some(SYN), client, &server, b"").frame();
        let answer = packet(Some(SYN | ACK), &server, client, b"").frame();
        let banner = packet(Some(ACK), &server, client, b"a needle").frame();
        let command = packet(Some(ACK), client, &server, b"a needle").frame();
        let mut chain = ids(FLOW_RULES);
        assert_eq!(
            reported(&mut chain, &[syn.clone(), answer.clone(), banner]),
            [2, 3, 5].into(),
            "port {port}"
        );
        assert_eq!(
            reported(&mut ids(FLOW_RULES), &[syn, answer, command]),
            [1, 3, 4, 5].into(),
            "port {port}"
        );
    }
}

#[test]
fn without_a_handshake_the_ports_say_who_is_the_server() {
    let from = |port: u16| {
        packet(Some(ACK), &format!("10.0.0.2:{port}"), "10.0.0.1:1000", b"a needle").frame()
    };
    let mut high = packet(Some(ACK), "10.0.0.2:25", "10.0.0.1:2000", b"a needle");
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[high.frame()]),
        [2, 3, 5].into(),
        "25 is a server's"
    );
    high.from.1 = 2525;
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[high.frame()]),
        [1, 3, 4, 5].into(),
        "the first to speak is the client"
    );
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[from(25)]),
        [1, 3, 4, 5].into(),
        "both ports are a server's"
    );
}

#[test]
fn datagrams_are_established_when_both_ends_have_spoken() {
    let (client, server) = ("10.0.0.1:1000", "10.0.0.2:53");
    let there = |payload| packet(None, client, server, payload).frame();
    let back = |payload| packet(None, server, client, payload).frame();
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[there(b"a needle"), there(b"a needle")]),
        [1, 5].into()
    );
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[there(b"nothing"), back(b"a needle")]),
        [2, 3, 5].into()
    );
    assert_eq!(
        reported(&mut ids(FLOW_RULES), &[there(b"nothing"), back(b"nothing"), there(b"a needle")]),
        [1, 3, 4, 5].into()
    );
}

/// An unanswered SYN leaves no flow, so a flood of them fills no table.
#[test]
fn a_syn_leaves_no_flow() {
    let mut chain = ids(FLOW_RULES);
    reported(&mut chain, &[packet(Some(SYN), "10.0.0.1:1000", "10.0.0.2:80", b"").frame()]);
    assert_eq!(chain.flows.len(), 0);
}

/// The IDS searches tunnels, and rules apply to the inner packet.
#[test]
fn tunnels_are_looked_into() {
    let inner = packet(Some(ACK), "10.0.0.1:1000", "10.0.0.2:80", b"a needle");
    let rules = "alert tcp 10.0.0.1 1000 -> 10.0.0.2 80 (content:\"needle\"; sid:1;)\n";
    let outer4 = |protocol: u8, payload: &[u8]| {
        let length = (20 + payload.len() as u16).to_be_bytes();
        [
            &[2; 12][..],
            &[8, 0, 0x45, 0],
            &length,
            &[0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2],
            payload,
        ]
        .concat()
    };
    let outer6 = |protocol: u8, payload: &[u8]| {
        let length = (payload.len() as u16).to_be_bytes();
        [
            &[2; 12][..],
            &[0x86, 0xdd, 0x60, 0, 0, 0],
            &length,
            &[protocol, 64],
            &[7; 16],
            &[8; 16],
            payload,
        ]
        .concat()
    };
    let gre = |head: &[u8], payload: &[u8]| outer4(47, &[head, payload].concat());
    let (ip, frame) = (inner.ip(), inner.frame());
    let session =
        |name: &[u8]| [&[2; 12][..], &[0x88, 0x64, 0x11, 0, 0, 9, 0, 60], name, &ip].concat();
    let tunnels = [
        ("4 in 4", outer4(4, &ip)),
        ("4 in 6", outer6(4, &ip)),
        ("GRE", gre(&[0, 0, 8, 0], &ip)),
        ("GRE with a key", gre(&[0x20, 0, 8, 0, 1, 1, 1, 1], &ip)),
        ("an Ethernet frame in GRE", gre(&[0, 0, 0x65, 0x58], &frame)),
        ("ERSPAN I", gre(&[0, 0, 0x88, 0xbe], &frame)),
        ("ERSPAN II", gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 1, 0, 0, 0, 2], &frame)),
        ("PPTP", gre(&[0x30, 1, 0x88, 0x0b, 0, 9, 0, 9, 0, 0, 0, 1, 0xff, 3, 0, 0x21], &ip)),
        ("PPPoE", session(&[0, 0x21])),
        ("PPPoE, compressed", session(&[0x21])),
    ];
    for (name, frame) in tunnels {
        let mut chain = ids(rules);
        let arrivals = [Arrival { frame: &frame, time_ns: 1, outer: false, steered: None }];
        chain.process(&arrivals);
        let events: Vec<String> =
            chain.events.iter().map(|e| format!("{} on {:?}", e.code, e.key)).collect();
        assert_eq!(events, ["1 on 10.0.0.1:1000<>10.0.0.2:80/6"], "{name}");
    }
}

const NEEDLE: &str = "alert tcp any any -> any any (content:\"needle\"; sid:1;)\n";

/// A packet of the client, with a sequence number.
fn sent(flags: u8, sequence: u32, payload: &'static [u8]) -> Vec<u8> {
    Packet { sequence, ..packet(Some(flags), "10.0.0.1:1000", "10.0.0.2:80", payload) }.frame()
}

/// The server's answer to a SYN with that number.
fn answered(sequence: u32, to: u32) -> Vec<u8> {
    let acknowledged = to.wrapping_add(1);
    let answer = packet(Some(SYN | ACK), "10.0.0.2:80", "10.0.0.1:1000", b"");
    Packet { sequence, acknowledged, ..answer }.frame()
}

/// The client chooses its first sequence number, also below those of its former connection.
#[test]
fn a_second_connection_is_followed_from_its_handshake() {
    for below in [1, 10, 1000, 1 << 20, 1 << 21, 0x7fff_ffff, 0x8000_0000] {
        let first = 5_000_000_u32;
        let second = first.wrapping_sub(below);
        let seen = [
            ("all of it", vec![sent(SYN, second, b""), answered(77, second)]),
            ("the client alone", vec![sent(SYN, second, b"")]),
            ("the server alone", vec![answered(77, second)]),
        ];
        for (name, handshake) in seen {
            let mut frames =
                vec![sent(SYN, first, b""), answered(9, first), sent(ACK, first + 1, b"before")];
            frames.extend(handshake);
            frames.push(sent(ACK, second.wrapping_add(1), b"a nee"));
            frames.push(sent(ACK, second.wrapping_add(6), b"dle"));
            assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into(), "{below} below, {name}");
        }
    }
}

#[test]
fn a_connection_without_a_handshake_is_followed() {
    let frames = [
        sent(ACK, 5_000_000, b"before"),
        sent(ACK, 2_000_000, b"a nee"),
        sent(ACK, 2_000_005, b"dle"),
    ];
    assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into());
}

#[test]
fn the_data_of_a_syn_has_the_numbers_after_it() {
    let frames = [sent(SYN, 9, b"nee"), sent(ACK, 13, b"dle")];
    assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into());
}

#[test]
fn forged_segments_harm_no_later_search() {
    let far = |n: u32| sent(ACK, 1000 + (n << 26), b"forged");
    let mut frames = vec![sent(ACK, 1000, b"before")];
    frames.extend((1..20).map(far));
    frames.extend([sent(ACK, 1006, b"lost "), sent(ACK, 1011, b"a nee"), sent(ACK, 1016, b"dle")]);
    assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into());
}

/// A segment that is sent again, whole or in part, is searched once and ends no search.
#[test]
fn a_segment_that_comes_again_ends_no_search() {
    let frames = [
        sent(ACK, 1000, b"before"),
        sent(ACK, 1006, b"a nee"),
        sent(ACK, 1000, b"before"),
        sent(ACK, 1008, b"needle"),
    ];
    assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into());
    let twice = [sent(ACK, 1000, b"nee"), sent(ACK, 1000, b"nee"), sent(ACK, 1003, b"dle")];
    assert_eq!(reported(&mut ids(NEEDLE), &twice), [1].into());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The receiver ignores a packet outside its window, so it may hide no content.
    #[test]
    fn one_forged_packet_ends_no_search(
        cut in 1..6usize,
        start: u32,
        distance in prop_oneof![Just(0u32), 1..2000u32, any::<u32>()],
        behind: bool,
        flags in proptest::sample::select(vec![ACK, SYN, SYN | ACK]),
        payload in proptest::sample::select(vec![&b""[..], b"z", b"forged"]),
    ) {
        let rest = start.wrapping_add(cut as u32);
        let number = if behind { rest.wrapping_sub(distance) } else { rest.wrapping_add(distance) };
        let data = number.wrapping_add(u32::from(flags & SYN != 0));
        prop_assume!(rest.wrapping_sub(data) as usize >= payload.len(), "it is the next data");
        let frames = [
            sent(ACK, start, &b"needle"[..cut]),
            sent(flags, number, payload),
            sent(ACK, rest, &b"needle"[cut..]),
        ];
        prop_assert_eq!(reported(&mut ids(NEEDLE), &frames), [1].into());
    }
}

fn whitelister(settings: &str) -> Chain<Function> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/whitelister/whitelister.wasm");
    let function =
        Runtime::new(Limits::default(), 2).load(Path::new(path), settings.as_bytes()).unwrap();
    Chain::new(vec![Stage::new(function, Leases::new(1..=1))], Policy::default())
}

fn passes(chain: &mut Chain<Function>, packet: &Packet) -> bool {
    let frame = packet.frame();
    let arrivals = [Arrival { frame: &frame, time_ns: 1, outer: false, steered: None }];
    chain.process(&arrivals);
    chain.outputs(&arrivals).next().unwrap().0 == Fate::Passed
}

#[test]
fn a_whitelister_stops_reflection_over_ipv6() {
    let (inside, outside) = ("[2001:db8:0:1::7]:1000", "[2001:db8:0:2::7]:53");
    let (asks, answers) =
        (packet(None, inside, outside, b"?"), packet(None, outside, inside, b"!"));
    let settings = [
        "inside6=2001:db8:0:1::/64\n",
        "inside=10.0.0.0/8\ninside6=2001:db8::1:0:0:0:0/63\n",
        "inside6=2001:db8:0:1:0:0:0:0/64\n",
    ];
    for settings in settings {
        let mut chain = whitelister(settings);
        assert!(!passes(&mut chain, &answers), "{settings}: nobody has asked");
        assert!(passes(&mut chain, &asks) && passes(&mut chain, &answers), "{settings}");
    }
    assert!(!passes(&mut whitelister("inside=10.0.0.0/8\n"), &asks), "nobody may ask by IPv6");
    let tcp = packet(Some(ACK), outside, inside, b"!");
    assert!(passes(&mut whitelister("inside=10.0.0.0/8\n"), &tcp), "all but UDP passes");
    let load = |settings: &str| {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/whitelister/whitelister.wasm");
        Runtime::new(Limits::default(), 2).load(Path::new(path), settings.as_bytes()).is_ok()
    };
    for bad in [
        "inside6=2001:db8::/129\n",
        "inside6=2001:db8/32\n",
        "inside6=1::2::3/64\n",
        "inside6=12345::/16\n",
        "inside6=::1\n",
        "inside6=1:2:3:4:5:6:7:8::/64\n",
    ] {
        assert!(!load(bad), "{bad}");
    }
    assert!(load("inside6=::/0\n") && load("inside6=::1/128\n") && load("inside6=fe80::/10\n"));
}
