//! One hostile packet among thousands of flows harms only its own flow, for every kind of fault.

mod modules;

use pando_abi::executor::Trap;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_wasm::{Function, Limits, Runtime};

use modules::{build, udp};

const FLOWS: u32 = 4000;
const PACKETS: u32 = 5;

fn chain(path: &std::path::Path, trapped_passes: bool) -> Chain<Function> {
    let limits = Limits { fuel_per_packet: 200_000, memory_bytes: 8 << 20 };
    let function = Runtime::new(limits, 2).load(path, b"").unwrap();
    Chain::new(
        vec![Stage::new(function, Leases::new(1..=1))],
        Policy { trapped_passes, ..Policy::default() },
    )
}

/// Returns packets of all flows in turn. The middle packet of flow `victim` has the command `how`.
fn packets(victim: u32, how: u8) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for round in 0..PACKETS {
        for flow in 0..FLOWS {
            let hostile = flow == victim && round == PACKETS / 2;
            packets.push(udp(flow, &[if hostile { how } else { b'.' }, round as u8, flow as u8]));
        }
    }
    packets
}

fn run(chain: &mut Chain<Function>, packets: &[Vec<u8>]) -> Vec<(Fate, Vec<u8>)> {
    let arrivals: Vec<Arrival> = packets
        .iter()
        .enumerate()
        .map(|(n, frame)| Arrival { frame, time_ns: n as u64, outer: false, steered: None })
        .collect();
    let (mut at, mut outputs) = (0, Vec::new());
    while at < arrivals.len() {
        let count = chain.process(&arrivals[at..]);
        outputs.extend(chain.outputs(&arrivals[at..]).map(|(fate, out)| (fate, out.concat())));
        at += count;
    }
    outputs
}

#[test]
fn only_the_hostile_flow_is_harmed() {
    let module = build("hostile", include_str!("hostile/hostile.c"));
    let mut calm = chain(&module.wasm, false);
    let started = calm.work().next().unwrap().fuel;
    assert!(started > 0, "a start burns fuel");
    run(&mut calm, &packets(0, b'.'));
    for (how, victim, limit) in [
        (b'L', 17, true),
        (b'R', 0, false),
        (b'O', FLOWS - 1, false),
        (b'U', 1234, false),
        (b'G', 99, false),
    ] {
        let mut chain = chain(&module.wasm, false);
        let outputs = run(&mut chain, &packets(victim, how));
        let trapped: Vec<usize> = outputs
            .iter()
            .enumerate()
            .filter(|(_, o)| o.0 != Fate::Passed)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(trapped, [(PACKETS / 2 * FLOWS + victim) as usize], "{}", how as char);
        assert_eq!(outputs[trapped[0]], (Fate::Trapped, Vec::new()));
        let trap = chain.last_traps().next().unwrap().cloned().unwrap();
        assert_eq!(matches!(trap, Trap::Limit), limit, "{}: {trap}", how as char);
        for id in calm.flows.ids() {
            let key = calm.flows.flow(id).key;
            let same = chain.flows.find(&key).map(|found| chain.flows.whole_state(found))
                == Some(calm.flows.whole_state(id));
            let is_victim = key == key_of(victim);
            assert_ne!(same, is_victim, "{}: {key:?}", how as char);
        }
        let work = chain.work().next().unwrap();
        assert_eq!((work.packets, work.trapped), ((FLOWS * PACKETS - 1).into(), 1));
        // The bill includes the fuel burnt until the trap, and the start of each new instance.
        let burnt = work.fuel - calm.work().next().unwrap().fuel;
        assert!(burnt > if limit { 2 * 200_000 } else { 2 * started }, "{}: {burnt}", how as char);
    }
}

fn key_of(flow: u32) -> pando_flow::FlowKey {
    pando_flow::FlowKey::of_frame(&udp(flow, b"x")).unwrap().0
}

#[test]
fn a_trapped_packet_passes_when_asked() {
    let module = build("passes", include_str!("hostile/hostile.c"));
    let mut chain = chain(&module.wasm, true);
    let frames = [udp(1, b"."), udp(2, b"U"), udp(3, b".")];
    let outputs = run(&mut chain, &frames);
    assert_eq!(
        outputs.iter().map(|o| o.0).collect::<Vec<_>>(),
        [Fate::Passed, Fate::Trapped, Fate::Passed]
    );
    assert_eq!(outputs[1].1, frames[1]);
}

/// An impossible length drops the packet and causes no trap.
#[test]
fn a_packet_of_an_impossible_length_is_dropped() {
    let module = build("length", include_str!("hostile/hostile.c"));
    let mut chain = chain(&module.wasm, true);
    let frames = [udp(1, b"."), udp(2, b"S"), udp(3, b"H"), udp(4, b".")];
    let outputs = run(&mut chain, &frames);
    assert_eq!(
        outputs.iter().map(|o| o.0).collect::<Vec<_>>(),
        [Fate::Passed, Fate::Dropped, Fate::Dropped, Fate::Passed]
    );
    assert!(outputs[1].1.is_empty() && outputs[2].1.is_empty());
}
