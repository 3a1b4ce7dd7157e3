//! Tests each function as WebAssembly against its twin: same packets, output, state, events and
//! leases.

mod modules;

use pando_abi::executor::Executor;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Event, Fate, Policy, Stage};
use pando_flow::checksum;
use pando_rules as rules;
use pando_traffic::{Shape, generate, pcap};
use pando_twins::Twin;
use pando_wasm::{Function, Limits, Runtime};
use proptest::prelude::*;

/// A packet of one of a few flows. Few flows make state, replies and several packets per batch
/// frequent.
#[derive(Clone, Debug)]
struct Step {
    client: u8,
    reply: bool,
    tcp: bool,
    payload: Vec<u8>,
    flip: Option<(usize, u8)>,
    cut: Option<usize>,
    pause_ns: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let payload = proptest::collection::vec(
        prop_oneof![Just(b'a'), Just(b'b'), Just(b'c'), any::<u8>()],
        0..40,
    );
    let flip = proptest::option::weighted(0.2, (12..60usize, any::<u8>()));
    let cut = proptest::option::weighted(0.1, 0..60usize);
    (0..6u8, any::<bool>(), any::<bool>(), payload, flip, cut, 0..50_000_000u32).prop_map(
        |(client, reply, tcp, payload, flip, cut, pause_ns)| Step {
            client,
            reply,
            tcp,
            payload,
            flip,
            cut,
            pause_ns,
        },
    )
}

fn frame(step: &Step, sequence: &mut u32) -> Vec<u8> {
    let mut f = modules::udp(step.client.into(), &step.payload);
    if step.tcp {
        let mut head = vec![f[34], f[35], 0, 80];
        head.extend(sequence.to_be_bytes());
        head.extend([0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        *sequence = sequence.wrapping_add(step.payload.len() as u32);
        f.splice(34..42, head);
        f[23] = 6;
        let total = (f.len() - 14) as u16;
        f[16..18].copy_from_slice(&total.to_be_bytes());
    }
    if step.reply {
        for (a, b) in [(26, 30), (27, 31), (28, 32), (29, 33), (34, 36), (35, 37)] {
            f.swap(a, b);
        }
    }
    if let Some((at, with)) = step.flip
        && at < f.len()
    {
        f[at] ^= with;
    }
    f.truncate(step.cut.unwrap_or(f.len()));
    f
}

type Outcome = (Vec<(Fate, Vec<u8>)>, Vec<(String, Vec<u8>)>, Vec<Event>, usize);

/// Few flows and few numbers to lease, so that both are exhausted.
fn scarce<E: Executor>(executor: E) -> Chain<E> {
    Chain::new(
        vec![Stage::new(executor, Leases::new(5000..=5003))],
        Policy { flows_max: 5, ..Policy::default() },
    )
}

/// The limits of a unit.
fn ample<E: Executor>(executor: E) -> Chain<E> {
    Chain::new(vec![Stage::new(executor, Leases::new(32_768..=65_535))], Policy::default())
}

fn outcome<E: Executor>(mut chain: Chain<E>, frames: &[(Vec<u8>, u64)]) -> Outcome {
    let arrivals: Vec<Arrival> = frames
        .iter()
        .map(|(frame, time_ns)| Arrival { frame, time_ns: *time_ns, outer: false, steered: None })
        .collect();
    let (mut at, mut outputs) = (0, Vec::new());
    while at < arrivals.len() {
        let count = chain.process(&arrivals[at..]);
        outputs.extend(chain.outputs(&arrivals[at..]).map(|(fate, out)| (fate, out.concat())));
        at += count;
    }
    let mut states: Vec<_> = chain
        .flows
        .ids()
        .map(|id| (format!("{:?}", chain.flows.flow(id).key), chain.flows.whole_state(id).to_vec()))
        .collect();
    states.sort();
    (outputs, states, std::mem::take(&mut chain.events), chain.leases_free(0))
}

fn same(name: &str, configuration: &[u8], steps: &[Step]) -> Outcome {
    let (mut sequence, mut time_ns) = (7, 0);
    let frames: Vec<(Vec<u8>, u64)> = steps
        .iter()
        .map(|s| {
            time_ns += u64::from(s.pause_ns);
            (frame(s, &mut sequence), time_ns)
        })
        .collect();
    let with_walls = outcome(scarce(wasm(name, configuration)), &frames);
    assert_eq!(with_walls, outcome(scarce(Twin::new(name, configuration)), &frames), "{name}");
    with_walls
}

fn wasm(name: &str, configuration: &[u8]) -> Function {
    let path = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    Runtime::new(Limits::default(), 2).load(path.as_ref(), configuration).unwrap()
}

fn ids_configuration() -> Vec<u8> {
    compiled(
        r#"alert ip any any -> any any (content:"abca"; sid:1;)
alert ip any any -> any 1024: (content:"BBCA"; nocase; flow:established,to_server; sid:2;)
alert udp [!192.0.2.0/24, any] any <> ![::1, 10.0.0.0/9] any (content:"cabb"; sid:3;)"#,
    )
}

fn compiled(text: &str) -> Vec<u8> {
    rules::compile(&rules::parse(text, "test", &Default::default()).unwrap().patterns).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nat(steps in proptest::collection::vec(step(), 1..120)) {
        let (outputs, ..) = same("nat", b"address=203.0.113.7\ninside=10.0.0.0/8\n", &steps);
        for ((fate, bytes), step) in outputs.iter().zip(&steps) {
            if *fate == Fate::Passed && step.flip.is_none() && step.cut.is_none() && !step.tcp {
                prop_assert_eq!(&bytes[26..30], &[203, 0, 113, 7]);
                prop_assert_ne!(checksum::transport_is_right(bytes), Some(false));
            }
        }
    }

    #[test]
    fn policer(steps in proptest::collection::vec(step(), 1..120)) {
        same("policer", b"rate=2000\nburst=200\n", &steps);
    }

    #[test]
    fn balancer(steps in proptest::collection::vec(step(), 1..120)) {
        same("balancer", b"service=192.0.2.9\nservers=10.9.0.1,10.9.0.2,10.9.0.3\n", &steps);
    }

    #[test]
    fn whitelister(steps in proptest::collection::vec(step(), 1..120)) {
        same("whitelister", b"inside=10.0.0.0/8\n", &steps);
    }

    #[test]
    fn ids(steps in proptest::collection::vec(step(), 1..120)) {
        same("ids", &ids_configuration(), &steps);
    }
}

/// The IDS finds a content split over two packets once, and does not find it across a gap.
#[test]
fn the_ids_searches_across_packets() {
    let text = |payload: &[u8]| Step {
        client: 1,
        reply: false,
        tcp: true,
        payload: payload.to_vec(),
        flip: None,
        cut: None,
        pause_ns: 1,
    };
    let rules = compiled(
        r#"alert ip any any -> any any (content:"abca"; sid:1;)
alert ip any any -> any any (content:"BBCA"; nocase; sid:2;)"#,
    );
    let (.., events, _) = same(
        "ids",
        &rules,
        &[text(b"..ab"), text(b"ca.."), text(b"abca"), text(b"bB"), text(b"cA")],
    );
    assert_eq!(events.iter().map(|e| e.code).collect::<Vec<_>>(), [1, 2]);
}

/// Returns a generated capture and those in the folder CAPTURES, if it is set.
fn captures() -> Vec<(String, Vec<pcap::Captured>)> {
    let made = generate(&Shape {
        flows: 400,
        seconds: 2.0,
        content: b"abca-bBcA".to_vec(),
        content_every: 5,
        ..Shape::default()
    });
    let mut captures = vec![("made".to_owned(), made.packets)];
    if let Ok(folder) = std::env::var("CAPTURES") {
        let paths = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let such = paths.filter(|p| p.extension().is_some_and(|e| e == "pcap" || e == "pcapng"));
        captures.extend(such.map(|p| (p.display().to_string(), pcap::read(&p).unwrap())));
        assert!(captures.len() > 1, "no captures in {folder}");
    }
    captures
}

/// Every packet of a capture leaves a function as it leaves its twin, with the same state and
/// events.
#[test]
fn captures_come_out_the_same() {
    let ids = ids_configuration();
    let configured: [(&str, &[u8]); 5] = [
        ("nat", b"address=203.0.113.7\n"),
        ("policer", b"rate=20000\nburst=5000\n"),
        ("ids", &ids),
        ("balancer", b"service=198.51.100.1\nservers=10.9.0.1,10.9.0.2,10.9.0.3\n"),
        ("whitelister", b"inside=10.0.0.0/8\n"),
    ];
    let captures = captures();
    for (name, configuration) in configured {
        let mut seen = [0; Fate::ALL.len()];
        let mut alerts = 0;
        for (path, packets) in &captures {
            let frames: Vec<(Vec<u8>, u64)> =
                packets.iter().map(|p| (p.frame.clone(), p.time_ns)).collect();
            let with_walls = outcome(ample(wasm(name, configuration)), &frames);
            assert!(
                with_walls == outcome(ample(Twin::new(name, configuration)), &frames),
                "{name} on {path}"
            );
            with_walls.0.iter().for_each(|(fate, _)| seen[*fate as usize] += 1);
            alerts += with_walls.2.len();
        }
        println!("{name}: {seen:?} packets of {} captures, {alerts} events", captures.len());
        assert!(
            seen[Fate::Passed as usize] > 0 && seen[Fate::Trapped as usize] == 0,
            "{name}: {seen:?}"
        );
        assert_eq!(name == "ids", alerts > 0, "{name}: {alerts} events");
    }
}
