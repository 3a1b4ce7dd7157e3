//! A flow begins inside. A packet of the outer device begins none, whatever address it claims.

#[path = "bed/mod.rs"]
mod bed;

use std::path::Path;
use std::time::{Duration, Instant};

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_flow::checksum;
use pando_net::packet::Port;
use pando_wasm::{Function, Limits, Runtime};

const INSIDE: [u8; 4] = [10, 0, 0, 2];
const FELLOW: [u8; 4] = [10, 0, 0, 99];
const SERVER: [u8; 4] = [192, 0, 2, 9];
const NAT: [u8; 4] = [203, 0, 113, 7];

fn chain(function: &str, configuration: &str) -> Chain<Function> {
    let path = format!("{}/../functions/{function}/{function}.wasm", env!("CARGO_MANIFEST_DIR"));
    let function = Runtime::new(Limits::default(), 2)
        .load(Path::new(&path), configuration.as_bytes())
        .unwrap();
    Chain::new(vec![Stage::new(function, Leases::new(40_000..=40_009))], Policy::default())
}

/// Returns a datagram.
fn datagram(from: [u8; 4], from_port: u16, to: [u8; 4], to_port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32];
    frame.extend([0, 9, 0, 0, 64, 17, 0, 0]);
    frame.extend([from, to].concat());
    frame.extend([from_port.to_be_bytes(), to_port.to_be_bytes(), [0, 12], [0, 0]].concat());
    frame.extend(b"text");
    checksum::fill(&mut frame);
    frame
}

/// Sends a batch through the chain. Each packet has its side: outer or not.
fn through(chain: &mut Chain<Function>, packets: &[(bool, &[u8])]) -> Vec<Option<Vec<u8>>> {
    let arrivals: Vec<Arrival> = packets
        .iter()
        .map(|&(outer, frame)| Arrival { frame, time_ns: 1, outer, steered: None })
        .collect();
    let (mut rest, mut outputs) = (&arrivals[..], Vec::new());
    while !rest.is_empty() {
        let count = chain.process(rest);
        outputs.extend(
            chain.outputs(rest).map(|(fate, bytes)| (fate == Fate::Passed).then(|| bytes.concat())),
        );
        rest = &rest[count..];
    }
    outputs
}

fn one(chain: &mut Chain<Function>, outer: bool, frame: &[u8]) -> Option<Vec<u8>> {
    through(chain, &[(outer, frame)]).remove(0)
}

/// An outside host uses its own address, that of an inside host, and that of a living flow.
#[test]
fn an_outside_host_reaches_no_inside_one_through_the_nat() {
    for inside in ["", "inside=10.0.0.0/8\n"] {
        let mut nat = chain("nat", &format!("address=203.0.113.7\n{inside}"));
        let lies = [datagram(SERVER, 5, INSIDE, 9999), datagram(FELLOW, 5555, INSIDE, 9999)];
        for lie in &lies {
            assert_eq!(one(&mut nat, true, lie), None, "{inside:?}");
        }
        assert_eq!((nat.flows.len(), nat.leases_free(0)), (0, 10), "a lie takes a port");
        let asked = datagram(INSIDE, 4000, SERVER, 53);
        let out = one(&mut nat, false, &asked).expect("a flow begins inside");
        assert_eq!(out[26..30], NAT);
        let port = u16::from_be_bytes([out[34], out[35]]);
        let answer = one(&mut nat, true, &datagram(SERVER, 53, NAT, port)).expect("an answer");
        assert_eq!(answer[30..34], INSIDE);
        assert_eq!(one(&mut nat, true, &asked), None, "a living flow, claimed from outside");
        assert_eq!(one(&mut nat, true, &datagram(SERVER, 53, INSIDE, 4000)), None);
        assert!(one(&mut nat, false, &asked).is_some(), "the flow lives on");
    }
}

/// A lie in the same batch before the first packet of a flow does not turn the flow round.
#[test]
fn a_lie_before_the_first_packet_harms_no_flow() {
    let mut nat = chain("nat", "address=203.0.113.7\n");
    let asked = datagram(INSIDE, 4000, SERVER, 53);
    let lie = datagram(SERVER, 53, INSIDE, 4000);
    let out = through(&mut nat, &[(true, &lie), (false, &asked), (false, &asked)]);
    assert_eq!(out.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    assert!(one(&mut nat, false, &asked).is_some());
}

#[test]
fn an_outside_host_is_no_inside_one_to_the_whitelister() {
    let mut whitelister = chain("whitelister", "inside=10.0.0.0/8\n");
    let lie = datagram(FELLOW, 5555, INSIDE, 9999);
    assert_eq!(one(&mut whitelister, true, &lie), None);
    let answer = datagram(INSIDE, 9999, FELLOW, 5555);
    assert!(one(&mut whitelister, false, &answer).is_some(), "inside may ask");
    assert_eq!(one(&mut whitelister, true, &lie), None, "a remembered flow, claimed from outside");
    let asked = datagram(INSIDE, 4000, SERVER, 53);
    let reply = datagram(SERVER, 53, INSIDE, 4000);
    assert_eq!(one(&mut whitelister, true, &reply), None);
    assert!(one(&mut whitelister, false, &asked).is_some());
    assert!(one(&mut whitelister, true, &reply).is_some());
}

/// With one device the sides are unknown, and `inside` is all that a function has.
#[test]
fn with_one_device_the_configured_network_counts() {
    let mut nat = chain("nat", "address=203.0.113.7\ninside=10.0.0.0/8\n");
    assert!(one(&mut nat, false, &datagram(INSIDE, 4000, SERVER, 53)).is_some());
    assert_eq!(one(&mut nat, false, &datagram(SERVER, 5, INSIDE, 9999)), None);
}

fn arrives(port: &mut Port, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> bool {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        let mut slots = Vec::new();
        port.receive(1, &mut slots);
        let Some(slot) = slots.first() else {
            std::thread::yield_now();
            continue;
        };
        let found = wanted(port.frame(slot).frame);
        port.release(1);
        if found {
            return true;
        }
    }
    false
}

/// A unit with two devices tells their packets apart.
#[test]
fn a_unit_knows_its_outer_device() {
    let Some(mut bench) = bed::bench("sides") else { return };
    bed::ip("link add name out type veth peer name wire");
    bed::ip("link set out up");
    bed::ip("link set wire up");
    let mut wire = Port::open("wire", 512).unwrap();
    bench.start_with("nat", &["--set", "address=203.0.113.7", "--out", "out"]);
    let text = |from: [u8; 4]| move |f: &[u8]| f.len() > 34 && f[26..30] == from;
    let lie = datagram(FELLOW, 5555, INSIDE, 9999);
    assert_eq!(wire.send(&[&lie, &datagram(SERVER, 5, INSIDE, 9999)]), 2);
    assert_eq!(bench.near.send(&[&datagram(INSIDE, 4000, SERVER, 53)]), 1);
    assert!(arrives(&mut wire, Duration::from_secs(10), text(NAT)), "no flow from inside");
    // The unit took the lies before the flow's answer, which comes by the same device.
    assert_eq!(wire.send(&[&lie, &datagram(SERVER, 53, NAT, 32_768)]), 2);
    let answered = |f: &[u8]| f.len() > 34 && f[26..30] == SERVER && f[35] == 53;
    let came = arrives(&mut bench.near, Duration::from_secs(10), |f| {
        let foreign = f.len() > 34 && f[23] == 17 && !answered(f);
        assert!(!foreign, "an outside host reached an inside one: {f:02x?}");
        answered(f)
    });
    assert!(came, "no answer came back");
}
