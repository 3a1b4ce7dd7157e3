//! Fuzzes the parsers of foreign bytes with mutations of valid inputs. Seeds are numbers from 1, so
//! the gate tries the same inputs every time. PANDO_RUNS (of `make soak`) sets the number of seeds.

use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_flow::{FlowKey, checksum};
use pando_handover::{
    Admission, Effect, Handover, Header, Message, NO_UNIT, States, Steered, Timing,
};
use pando_rules as rules;
use pando_traffic::copies::Copies;
use pando_traffic::random::Random;
use pando_traffic::stamp::Stamp;
use pando_traffic::{Shape, generate, pcap};
use pando_wasm::{Function, Limits, Runtime};

const RUNS_DEFAULT: u64 = 30;
const INPUTS_PER_RUN: usize = 200;

fn runs() -> u64 {
    std::env::var("PANDO_RUNS").map_or(RUNS_DEFAULT, |n| n.parse().expect("PANDO_RUNS is a number"))
}

/// Changes a valid input in a few places: bytes, runs of bytes, its end, parts of another input.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let pick = |random: &mut Random| &corpus[random.below(corpus.len() as u64) as usize];
    let mut input = pick(random).clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len() as u64 + 1) as usize;
        let length = (1 + random.below(8) as usize).min(input.len() - at);
        let part = at..at + length;
        match random.below(8) {
            0 => input[part].iter_mut().for_each(|b| *b = random.next_u64() as u8),
            1 => input[part].fill(0xff),
            2 => input[part].fill(0),
            3 if length > 0 => input[at] ^= 1 << random.below(8),
            4 => input.truncate(at),
            5 => drop(input.drain(part)),
            6 => {
                let other = pick(random);
                let from = random.below(other.len() as u64 + 1) as usize;
                let until = (from + random.below(64) as usize).min(other.len());
                drop(input.splice(at..at, other[from..until].iter().copied()));
            }
            _ => {
                let copy = input[part].to_vec();
                drop(input.splice(at..at, copy));
            }
        }
    }
    input
}

/// Runs a target on mutations of a corpus. A failure reports its seed and its bytes.
fn fuzz(corpus: &[Vec<u8>], target: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    for input in corpus {
        target(input);
    }
    for seed in 1..=runs() {
        let mut random = Random::new(seed);
        for n in 0..INPUTS_PER_RUN {
            let input = mutate(&mut random, corpus);
            if catch_unwind(|| target(&input)).is_err() {
                panic!("seed {seed}, input {n}: {input:02x?}");
            }
        }
    }
}

/// Returns frames of all kinds: TCP and UDP, IPv4 and IPv6, with a VLAN tag, fragments, extension
/// headers.
fn frames() -> Vec<Vec<u8>> {
    let made = generate(&Shape { flows: 40, seconds: 0.1, content_every: 4, ..Shape::default() });
    let mut frames: Vec<Vec<u8>> =
        made.packets.into_iter().map(|p| p.frame).filter(|f| f.len() < 600).step_by(3).collect();
    let plain = frames.len();
    for n in 0..plain.min(40) {
        let mut tagged = frames[n].clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        let mut other = frames[n].clone();
        if other[12] == 8 {
            other[20] = 0x20; // the first of several fragments
        } else {
            let next = std::mem::replace(&mut other[20], 60); // destination options
            other.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
        }
        frames.extend([tagged, other]);
    }
    frames
}

#[test]
fn frames_have_a_flow_or_none() {
    fuzz(&frames(), |frame| {
        if let Some((key, _)) = FlowKey::of_frame(frame) {
            assert_eq!(FlowKey::from_bytes(*key.as_bytes()), key);
            assert!(!format!("{key:?}").is_empty());
        }
        checksum::transport_is_right(frame);
        checksum::header_is_right(frame);
        if let Ok(copies) = Copies::new(3, [frame].into_iter()) {
            let mut third = frame.to_vec();
            copies.rewrite(2, &mut third);
            assert_eq!(third.len(), frame.len());
        }
        Stamp::split(frame);
    });
}

/// No packet makes one of the five functions trap. The output grows at most as far as the interface
/// allows.
#[test]
fn no_frame_makes_a_function_trap() {
    let rule = "alert ip any any -> any any (content:\"pando\"; nocase; sid:1;)";
    let ids =
        rules::compile(&rules::parse(rule, "rule", &Default::default()).unwrap().patterns).unwrap();
    let configured: [(&str, &[u8]); 5] = [
        ("nat", b"address=203.0.113.7\n"),
        ("policer", b"rate=1000000\nburst=10000\n"),
        ("ids", &ids),
        ("balancer", b"service=198.51.100.1\nservers=10.9.0.1,10.9.0.2\n"),
        ("whitelister", b"inside=10.0.0.0/8\n"),
    ];
    let corpus = frames();
    for (name, configuration) in configured {
        let path = format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
        let function =
            Runtime::new(Limits::default(), 2).load(path.as_ref(), configuration).unwrap();
        let mut chain = Chain::new(
            vec![Stage::new(function, Leases::new(1024..=2047))],
            Policy { flows_max: 500, ..Policy::default() },
        );
        for seed in 1..=runs() {
            let mut random = Random::new(seed);
            let inputs: Vec<Vec<u8>> =
                (0..INPUTS_PER_RUN).map(|_| mutate(&mut random, &corpus)).collect();
            pass(&mut chain, &inputs);
            let trap = chain.last_traps().next().unwrap();
            assert!(trap.is_none(), "{name}, seed {seed}: {trap:?}");
        }
    }
}

fn pass(chain: &mut Chain<Function>, frames: &[Vec<u8>]) {
    let arrivals: Vec<Arrival> = frames
        .iter()
        .enumerate()
        .map(|(n, frame)| Arrival {
            frame,
            time_ns: n as u64 * 1_000_000,
            outer: false,
            steered: None,
        })
        .collect();
    let mut at = 0;
    while at < arrivals.len() {
        let count = chain.process(&arrivals[at..]);
        for (arrival, (_, out)) in arrivals[at..].iter().zip(chain.outputs(&arrivals[at..])) {
            let most = (arrival.frame.len() + pando_abi::GROWTH_BYTES).next_multiple_of(64);
            assert!(
                out.iter().all(|frame| frame.len() <= most || FlowKey::of_frame(frame).is_some()),
                "{out:?}"
            );
        }
        at += count;
    }
}

#[test]
fn headers_that_are_read_are_written_the_same() {
    let header = |n: u64| Header {
        flowlet_starts: n.is_multiple_of(2),
        ethertype: 0x800,
        unit: n as u16,
        previous: if n == 0 { NO_UNIT } else { 3 },
        epoch: 1 + n as u32,
        position: n as u32,
        clock: n + 1,
        replicas: n << 40,
    };
    let corpus: Vec<Vec<u8>> = (0..40).map(|n| header(n).encode().to_vec()).collect();
    fuzz(&corpus, |bytes| {
        if let Ok(header) = Header::decode(bytes) {
            header.clock_before_epoch();
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        // The flow's key follows it.
        let long = [bytes, &[7; Steered::LENGTH_BYTES - Header::LENGTH_BYTES]].concat();
        if let Ok(steered) = Steered::decode(&long) {
            assert_eq!(Steered::decode(&steered.encode()), Ok(steered));
        }
    });
}

#[test]
fn messages_that_are_read_are_written_the_same() {
    let key = FlowKey::of_frame(&frames()[0]).unwrap().0;
    let state = vec![7; 100];
    let kinds = [
        Message::Push { key, epoch: 2, clock: 9, holes: 1, state: state.clone() },
        Message::Unchanged { key, epoch: 2, clock: 9, holes: 0, print: 8 },
        Message::Pull { key, epoch: 3, clock: 10, previous: 2 },
        Message::Answer { key, epoch: 3, owned: 2, clock: 10, state: Some(state) },
        Message::Answer { key, epoch: 3, owned: 2, clock: 10, state: None },
    ];
    let mut corpus = Vec::new();
    for n in 0..kinds.len() {
        let mut datagram = Vec::new();
        kinds[n..].iter().for_each(|m| m.encode(&mut datagram));
        corpus.push(datagram);
    }
    fuzz(&corpus, |bytes| {
        if let Ok(messages) = Message::decode_all(bytes) {
            let mut again = Vec::new();
            messages.iter().for_each(|m| m.encode(&mut again));
            assert_eq!(again.len(), bytes.len());
            assert_eq!(Message::decode_all(&again), Ok(messages));
        }
    });
}

/// A unit's states in a plain map.
#[derive(Default)]
struct Kept(HashMap<FlowKey, Vec<u8>>);

impl States for Kept {
    fn snapshot(&self, key: &FlowKey) -> Vec<u8> {
        self.0.get(key).cloned().unwrap_or_default()
    }
    fn install(&mut self, key: &FlowKey, snapshot: &[u8]) {
        self.0.insert(*key, snapshot.to_vec());
    }
    fn forget(&mut self, key: &FlowKey) {
        self.0.remove(key);
    }
}

/// No datagram stops a unit. The next packet of its flow runs, is held until a state arrives, or is
/// stale. The deadline releases it.
#[test]
fn no_datagram_stops_the_state_protocol() {
    let key = FlowKey::of_frame(&frames()[0]).unwrap().0;
    let header = |epoch: u32, previous, clock| Header {
        flowlet_starts: true,
        ethertype: 0x800,
        unit: 1,
        previous,
        epoch,
        position: 0,
        clock,
        replicas: 4,
    };
    let mut corpus = Vec::new();
    for epoch in 1..4 {
        let state = vec![epoch as u8; 20];
        for message in [
            Message::Push { key, epoch, clock: 9, holes: 0, state: state.clone() },
            Message::Unchanged { key, epoch, clock: 9, holes: 0, print: 8 },
            Message::Pull { key, epoch, clock: 1, previous: epoch as u16 - 1 },
            Message::Answer { key, epoch, owned: epoch - 1, clock: 1, state: Some(state) },
        ] {
            let mut datagram = Vec::new();
            message.encode(&mut datagram);
            corpus.push(datagram);
        }
    }
    fuzz(&corpus, |bytes| {
        let Ok(messages) = Message::decode_all(bytes) else { return };
        let mut states = Kept::default();
        let mut unit = Handover::new(1, 0b1111, Timing::default());
        let first = header(1, NO_UNIT, 1);
        assert_eq!(unit.arrive(0, &key, &first, &mut states), Admission::Run);
        unit.processed(0, &key, &mut states);
        let mut now = 1;
        for (n, message) in messages.into_iter().enumerate() {
            unit.message(now, n as u16 % 80, message, &mut states);
            now += 100_000;
            unit.tick(now, &mut states);
        }
        let next = header(u32::MAX, 2, u64::MAX);
        let admission = unit.arrive(now, &key, &next, &mut states);
        unit.effects.clear();
        for _ in 0..20 {
            now += Timing::default().retry_ns;
            unit.tick(now, &mut states);
        }
        let released =
            unit.effects.iter().any(|e| matches!(e, Effect::Release(flow) if *flow == key));
        assert_eq!(admission == Admission::Hold, released, "{admission:?}");
    });
}

/// A state from another unit is accepted, or the flow has no state. The chain continues in both
/// cases.
#[test]
fn no_state_of_another_unit_stops_a_chain() {
    let frames = frames();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
    let nat = || {
        let function = Runtime::new(Limits::default(), 2)
            .load(path.as_ref(), b"address=203.0.113.7\n")
            .unwrap();
        Chain::new(vec![Stage::new(function, Leases::new(1024..=2047))], Policy::default())
    };
    let mut source = nat();
    pass(&mut source, &frames[..20]);
    let corpus: Vec<Vec<u8>> =
        source.flows.ids().map(|id| source.export(&source.flows.flow(id).key)).collect();
    let key = FlowKey::of_frame(&frames[0]).unwrap().0;
    let chain = Mutex::new(nat());
    fuzz(&corpus, |bytes| {
        let mut chain = chain.lock().unwrap();
        if chain.import(&key, bytes, 1) && !bytes.is_empty() {
            assert!(chain.flows.find(&key).is_some());
        }
        pass(&mut chain, &frames[..1]);
        // A flow owns its numbers, so a number that came with the flow is returned here.
        let free = chain.leases_free(0);
        if let Some(id) = chain.flows.find(&key) {
            chain.forget(id);
        }
        assert!((free..=free + 1).contains(&chain.leases_free(0)));
    });
}

/// Returns a capture in pcapng: a section, an interface with its clock in nanoseconds, packets, and
/// one in a simple block.
fn next_generation(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len().next_multiple_of(4);
        file.extend(kind.to_le_bytes());
        file.extend((length as u32).to_le_bytes());
        file.extend(body);
        file.resize(file.len().next_multiple_of(4), 0);
        file.extend((length as u32).to_le_bytes());
    };
    block(0x0a0d_0d0a, &[&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    block(1, &[1, 0, 0, 0, 0, 0, 4, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let (last, others) = frames.split_last().unwrap();
    for (n, frame) in others.iter().enumerate() {
        let length = frame.len() as u32;
        let head = [0, 0, n as u32, length, length].map(u32::to_le_bytes).concat();
        block(6, &[head, frame.clone()].concat());
    }
    block(3, &[(last.len() as u32).to_le_bytes().to_vec(), last.clone()].concat());
    file
}

#[test]
fn captures_are_read_whole_or_refused() {
    let frames = &frames()[..12];
    let mut writer = pcap::Writer::new(Vec::new()).unwrap();
    frames.iter().enumerate().for_each(|(n, f)| writer.write(n as u64, f).unwrap());
    let corpus = [writer.finish().unwrap(), next_generation(frames)];
    for capture in &corpus {
        let read = pcap::parse(capture, "corpus").unwrap();
        assert!(read.iter().map(|p| &p.frame).eq(frames), "the corpus is valid");
    }
    // A simple block too short for its own length, and half a block at the end.
    for tail in [&[3, 0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0][..], &[6, 0, 0, 0, 32]] {
        assert!(pcap::parse(&[&corpus[1], tail].concat(), "tail").is_err());
    }
    fuzz(&corpus, |bytes| {
        let Ok(packets) = pcap::parse(bytes, "fuzz") else { return };
        assert!(packets.iter().map(|p| p.frame.len()).sum::<usize>() <= bytes.len());
        let mut writer = pcap::Writer::new(Vec::new()).unwrap();
        packets.iter().for_each(|p| writer.write(p.time_ns, &p.frame).unwrap());
        let again = pcap::parse(&writer.finish().unwrap(), "written").unwrap();
        assert!(again.iter().map(|p| &p.frame).eq(packets.iter().map(|p| &p.frame)));
    });
}

#[test]
fn rule_files_give_automata_or_an_error_with_its_line() {
    let corpus: Vec<Vec<u8>> = [
        "# a comment\nalert tcp $HOME_NET any -> any $HTTP_PORTS (msg:\"semi\\;colon\"; \
         content:\"|0d 0A|Fast|3b|\"; nocase; sid:2; rev:3;)\n",
        "alert udp any any -> any 53 (content:\"quo\\\"te\\\\\"; sid:3;)\nalert ip \
         [!10.0.0.0/8,::/3] 1: <> any [80,!90:99] (flow:established,to_server; \
         content:!\"negated\"; sid:5;)\n",
        "alert tcp any any -> any any (content:\"several\"; content:\"of them\", depth 5; \
         pcre:\"/a{3}/\"; sid:6;)\n",
    ]
    .map(|t| t.as_bytes().to_vec())
    .to_vec();
    fuzz(&corpus, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match rules::parse(&text, "fuzz.rules", &Default::default()) {
            Ok(read) => {
                assert!(read.patterns.iter().all(|p| p.bytes.len() >= rules::PATTERN_BYTES_MIN));
                rules::compile(&read.patterns).unwrap();
            }
            Err(e) => assert!(
                (1..=text.lines().count()).contains(&e.line)
                    && e.to_string().starts_with("fuzz.rules:"),
                "{e}"
            ),
        }
    });
}
