//! Kills units of a group at any moment while flows move between them. Packets and messages are
//! lost, doubled and late. The output and the final state of each flow equal those of a run that
//! never received the lost packets. A function before the tested one records the packets of each
//! flow's state. Needs root and Go; without root the tests report that and skip.
//! PANDO_GROUP_KILLS=N kills N times per function.

mod bed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pando_abi::BATCH_PACKETS;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_flow::FlowKey;
use pando_net::packet::Port;
use pando_unit::unit;
use pando_wasm::{Function, Limits, Runtime};
use serde_json::Value;

use bed::cases::{CASES, Case, FLOWS, Traffic};
use bed::group::Bench;

const UNITS: usize = 3;

fn soon<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        std::thread::yield_now();
    }
}

/// A packet sent by the test.
struct Sent {
    frame: Vec<u8>,
    key: FlowKey,
}

/// The sent packets by the number in their Ethernet header, the output, and the end that each
/// output left by.
struct Run<'a> {
    bench: &'a mut Bench,
    case: &'a Case,
    traffic: Traffic,
    sent: Vec<Sent>,
    left: BTreeMap<u32, Vec<u8>>,
    kills: u64,
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[8..12].try_into().unwrap())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn send(port: &mut Port, frames: &[Vec<u8>]) {
    assert_eq!(port.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()), frames.len());
}

impl Run<'_> {
    fn socket(&self, name: &str) -> PathBuf {
        self.bench.directory.join("run").join(name).join("control.sock")
    }

    /// Sends a request to a unit or to the group.
    fn ask(&self, name: &str, request: &str) -> Option<Value> {
        serde_json::from_str(&unit::request(&self.socket(name), request).ok()?).ok()
    }

    /// Returns the names of the units that take packets.
    fn members(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.bench.directory.join("run")).unwrap().flatten();
        let names = names.filter_map(|e| e.file_name().into_string().ok());
        names.filter(|n| n.starts_with("g.") && n != "g.log").collect()
    }

    /// Waits until all killed units are replaced.
    fn whole(&self) -> Value {
        soon("the group is whole", || {
            let status = self.ask("g", "status")?;
            let group = &status["group"];
            (group["counts"]["died"] == self.kills && group["units"] == UNITS).then_some(status)
        })
    }

    fn burst(&mut self, packets: u64) {
        let mut frames = Vec::new();
        for _ in 0..packets {
            let frame = self.traffic.frame();
            let key = FlowKey::of_frame(&frame).unwrap().0;
            self.sent.push(Sent { frame: frame.clone(), key });
            frames.push(frame);
        }
        send(&mut self.bench.inner, &frames);
    }

    /// Receives the output, and answers some of it from outside.
    fn drain(&mut self) -> usize {
        let (mut came, mut answers) = (Vec::new(), Vec::new());
        for port in [&mut self.bench.outer, &mut self.bench.inner] {
            let mut slots = Vec::new();
            port.receive(1024, &mut slots);
            came.push(slots.iter().map(|s| port.frame(s).frame.to_vec()).collect::<Vec<_>>());
            port.release(slots.len());
        }
        for frame in &came[0] {
            if self.traffic.draw(4) == 0 && frame.len() >= 42 {
                let key = self.sent[number(frame) as usize - 1].key;
                let answer = self.traffic.answer(frame);
                self.sent.push(Sent { frame: answer.clone(), key });
                answers.push(answer);
            }
        }
        send(&mut self.bench.outer, &answers);
        let count = came.iter().map(Vec::len).sum();
        for frame in came.into_iter().flatten() {
            let number = number(&frame);
            assert!(
                self.left.insert(number, frame).is_none(),
                "{}: packet {number} left twice",
                self.case.name
            );
        }
        count
    }

    fn kill(&mut self) {
        let members: Vec<i64> = self
            .members()
            .iter()
            .filter_map(|name| self.ask(name, "status")?["pid"].as_i64())
            .collect();
        let victim = members[self.traffic.draw(members.len() as u64) as usize];
        let at = self.traffic.draw(8);
        for burst in 0..8 {
            let packets = self.traffic.draw(BATCH_PACKETS as u64 * 2) + 1;
            self.burst(packets);
            if burst == at {
                let moment = Instant::now() + Duration::from_nanos(self.traffic.draw(300_000));
                while Instant::now() < moment {
                    self.drain();
                }
                // SAFETY: a unit of this test's own group, which answered just now.
                assert_eq!(unsafe { libc::kill(victim as i32, libc::SIGKILL) }, 0);
            }
            // A pause that ends flowlets, so that units push states and flows move.
            let pause = Instant::now() + Duration::from_millis(1 + self.traffic.draw(2));
            while Instant::now() < pause {
                self.drain();
            }
        }
        self.kills += 1;
        self.traffic.first += 6; // some flows end, others begin
        self.whole();
    }

    /// Waits until no packet is in flight, and returns the group's status.
    fn settled(&mut self) -> Value {
        let mut last = Instant::now();
        soon("nothing is on its way", || {
            if self.drain() > 0 {
                last = Instant::now();
            }
            let status = self.ask("g", "status")?;
            (status["handover"]["held"] == 0 && last.elapsed() > Duration::from_millis(300))
                .then_some(status)
        })
    }

    /// Returns the state of each flow at each unit that holds one.
    fn states(&self) -> BTreeMap<FlowKey, Vec<Vec<u8>>> {
        let mut found = BTreeMap::<FlowKey, Vec<Vec<u8>>>::new();
        for name in self.members() {
            let states = self.ask(&name, "states").unwrap();
            for (key, state) in states.as_object().unwrap() {
                let key = FlowKey::from_bytes(hex(key).try_into().unwrap());
                found.entry(key).or_default().push(hex(state.as_str().unwrap()));
            }
        }
        found
    }
}

/// A flow as stored by a unit.
struct Flow {
    export: Vec<u8>,
    lease: Option<u32>,
    /// Numbers and times of the packets that made its state.
    journal: Vec<(u32, u64)>,
}

/// The chain under test, in this process.
struct Model {
    journal: Function,
    function: Function,
}

impl Model {
    fn new(journal: &Path, case: &Case) -> Model {
        let journal = Runtime::new(Limits::default(), 8).load(journal, &[]).unwrap();
        Model { journal, function: case.function() }
    }

    fn chain(&self, lease: u32) -> Chain<Function> {
        let stage = |f: &Function| Stage::new(f.another().unwrap(), Leases::new(lease..=lease));
        Chain::new(vec![stage(&self.journal), stage(&self.function)], Policy::default())
    }

    /// Reads a unit's export of a flow.
    fn read(&self, key: &FlowKey, export: Vec<u8>) -> Flow {
        let mut chain = self.chain(0);
        assert!(chain.import(key, &export, 1), "{key:?}: {export:x?}");
        let id = chain.flows.find(key).unwrap();
        let word = |at: usize| {
            u32::from_le_bytes(chain.flows.state(id, 0)[4 * at..][..4].try_into().unwrap())
        };
        let entry = |n: usize| {
            (word(2 + 3 * n), u64::from(word(3 + 3 * n)) | u64::from(word(4 + 3 * n)) << 32)
        };
        assert!(word(0) <= 340, "the journal is full");
        let flow = chain.flows.flow(id);
        Flow {
            lease: (flow.taken & 2 != 0).then_some(flow.leases[1]),
            journal: (0..word(0) as usize).map(entry).collect(),
            export,
        }
    }

    /// Replays these packets of a flow. Returns the final state and the output of each packet.
    fn replay(
        &self,
        key: FlowKey,
        flow: &Flow,
        sent: &[Sent],
    ) -> (Vec<u8>, BTreeMap<u32, Vec<u8>>) {
        let mut chain = self.chain(flow.lease.unwrap_or(0));
        let arrival = |&(number, time_ns): &(u32, u64)| {
            let frame = &sent[number as usize - 1].frame;
            Arrival {
                frame,
                time_ns,
                outer: false,
                steered: Some((key, FlowKey::of_frame(frame).unwrap().0 != key)),
            }
        };
        let arrivals: Vec<Arrival> = flow.journal.iter().map(arrival).collect();
        let (mut outputs, mut at) = (BTreeMap::new(), 0);
        while at < arrivals.len() {
            let count = chain.process(&arrivals[at..]);
            for (n, (_, out)) in chain.outputs(&arrivals[at..]).enumerate() {
                outputs.extend(out.iter().map(|frame| (flow.journal[at + n].0, frame.to_vec())));
            }
            at += count;
        }
        (chain.export(&key), outputs)
    }
}

/// Sends a packet of each flow until the flow's state contains it; returns the flows.
fn last_words(run: &mut Run, model: &Model) -> (BTreeMap<FlowKey, Flow>, Value) {
    let mut missing: BTreeSet<u32> = (0..run.traffic.first + FLOWS).collect();
    soon("every flow has an owner", || {
        let mut probes = Vec::new();
        for &flow in &missing {
            let frame = run.traffic.frame_of(flow);
            let key = FlowKey::of_frame(&frame).unwrap().0;
            run.sent.push(Sent { frame: frame.clone(), key });
            probes.push((flow, key, run.traffic.made, frame));
        }
        send(&mut run.bench.inner, &probes.iter().map(|p| p.3.clone()).collect::<Vec<_>>());
        let status = run.settled();
        let mut flows = BTreeMap::new();
        for (key, exports) in run.states() {
            let mut copies: Vec<Flow> =
                exports.into_iter().map(|export| model.read(&key, export)).collect();
            copies.sort_by_key(|copy| copy.journal.len());
            let newest = copies.pop().unwrap();
            for copy in &copies {
                assert!(
                    newest.journal.starts_with(&copy.journal),
                    "{key:?}: made of {:?}, elsewhere of {:?}",
                    newest.journal,
                    copy.journal
                );
            }
            flows.insert(key, newest);
        }
        let knows = |key: &FlowKey, number: u32| {
            flows.get(key).is_some_and(|f: &Flow| f.journal.iter().any(|(n, _)| *n == number))
        };
        for (flow, key, number, _) in probes {
            if knows(&key, number) {
                missing.remove(&flow);
            }
        }
        missing.is_empty().then_some((flows, status))
    })
}

/// Starts a group with the function of a case, behind the function that records packets.
fn start<'a>(bench: &'a mut Bench, case: &'a Case, seed: u64) -> Run<'a> {
    let mut arguments = case.arguments(&bench.directory.join("test.rules"));
    for argument in arguments.iter_mut().filter(|a| a.contains('=')) {
        argument.insert_str(0, &format!("{}.", case.name));
    }
    let more = ["--units", "3", "--durability", "log", "--chaos", "1,2,2"].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().chain(&more).map(String::as_str).collect();
    bench.start_chain(&[&bench.module("journal"), &case.module()], &arguments);
    Run {
        bench,
        case,
        traffic: Traffic { seed, first: 0, made: 0 },
        sent: Vec::new(),
        left: BTreeMap::new(),
        kills: 0,
    }
}

/// Checks that each flow's state and output follow from the packets that the state contains.
/// Returns the number of packets that were processed, and of those without output.
fn assert_states_follow_from_packets(
    run: &mut Run,
    model: &Model,
    flows: &BTreeMap<FlowKey, Flow>,
    context: &str,
) -> (u64, u64) {
    let (mut leases, mut made_of, mut unsent) = (BTreeSet::new(), BTreeMap::new(), 0u64);
    for (key, flow) in flows {
        assert!(
            flow.lease.is_none_or(|lease| leases.insert(lease)),
            "{context}: two flows have number {:?}",
            flow.lease
        );
        for (number, _) in &flow.journal {
            assert_eq!(
                run.sent[*number as usize - 1].key,
                *key,
                "{context}: packet {number} is another flow's"
            );
            assert!(
                made_of.insert(*number, key).is_none(),
                "{context}: packet {number} was processed twice"
            );
        }
        let (state, outputs) = model.replay(*key, flow, &run.sent);
        assert_eq!(
            flow.export, state,
            "{context}: {key:?}: the state that these packets make: {:?}",
            flow.journal
        );
        for (number, output) in outputs {
            match run.left.remove(&number) {
                Some(left) => assert_eq!(left, output, "{context}: {key:?}: packet {number}"),
                None => unsent += 1,
            }
        }
    }
    (made_of.len() as u64, unsent)
}

fn killed(bench: &mut Bench, case: &Case, kills: u64) {
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
            as u64;
    let model = Model::new(&bench.module("journal"), case);
    let mut run = start(bench, case, seed);
    for _ in 0..kills {
        run.kill();
    }
    let (flows, status) = last_words(&mut run, &model);
    let context = format!("{} with seed {seed}: {status}", case.name);
    let (processed, unsent) = assert_states_follow_from_packets(&mut run, &model, &flows, &context);
    assert!(
        run.left.is_empty(),
        "{context}: what left is in no state, or should not have: {:?}",
        run.left.keys()
    );
    assert!(
        unsent <= BATCH_PACKETS as u64 * kills,
        "{context}: {unsent} packets were processed and did not leave"
    );
    let (sent, billed) = (run.sent.len(), run.bench.billed());
    assert!(
        processed > sent as u64 / 2,
        "{context}: only {processed} of {sent} packets came to a function"
    );
    assert!(
        billed >= processed && billed <= processed + BATCH_PACKETS as u64 * kills,
        "{context}: {billed} billed, {processed} processed"
    );
    let moved = ["seamless", "pulled"].map(|what| status["handover"][what].as_u64().unwrap_or(0));
    assert!(moved.iter().sum::<u64>() > 0, "{context}: no flow moved");
    println!(
        "{}: {kills} kills, {sent} packets sent, {processed} processed, {unsent} of them did not \
         leave; {status}",
        case.name
    );
    run.bench.pando(&["rm", "g"]);
    std::fs::remove_dir_all(run.bench.directory.join("data")).unwrap();
}

#[test]
fn units_of_a_group_are_killed_and_no_state_is_stale() {
    let kills = std::env::var("PANDO_GROUP_KILLS")
        .map_or(3, |n| n.parse().expect("PANDO_GROUP_KILLS is a number"));
    let Some(mut bench) = bed::group::bench("crash", &["journal"]) else { return };
    for case in &CASES {
        killed(&mut bench, case, kills);
    }
}
