//! Tests groups of units: real processes behind real steering. A function numbers the packets of
//! each flow. So the output shows a packet that was processed twice, or on an old state. Needs root
//! and Go; without root the tests report that and skip.

mod bed;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bed::group::Bench;

const FLOWS: u16 = 24;

fn bench(name: &str) -> Option<Bench> {
    bed::group::bench(name, &["count", "eat"])
}

fn frame(flow: u16, sequence: u32, length: usize) -> Vec<u8> {
    let [high, low] = flow.to_be_bytes();
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    f.extend((length as u16 - 14).to_be_bytes());
    f.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9, 16 + high, low, 0, 53]);
    f.extend((length as u16 - 34).to_be_bytes());
    f.extend([0; 6]);
    f.extend(sequence.to_be_bytes());
    f.resize(length, 0);
    f
}

/// The numbers that each flow's packets got, in the order of their output.
type Numbers = BTreeMap<u16, Vec<u32>>;

impl Bench {
    fn start(&self, more: &[&str]) {
        self.start_chain(&[&self.module("count")], more);
    }

    /// Plays rounds of bursts. The next round starts when the previous one has come out or nothing
    /// has for a while.
    fn play(
        &mut self,
        rounds: std::ops::Range<u32>,
        numbers: &mut Numbers,
        mut after: impl FnMut(&Bench, u32),
    ) -> u64 {
        let mut sent = 0;
        for round in rounds {
            let burst = 1 + round % 5;
            let flows: Vec<u16> =
                (0..FLOWS).filter(|flow| (u32::from(*flow) + round) % 3 < 2).collect();
            let frames: Vec<Vec<u8>> = (0..burst)
                .flat_map(|n| flows.iter().map(move |&flow| frame(flow, round * 8 + n, 900)))
                .collect();
            assert_eq!(
                self.inner.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                frames.len()
            );
            sent += frames.len() as u64;
            self.drain(frames.len(), numbers);
            after(self, round);
        }
        sent
    }

    fn drain(&mut self, most: usize, numbers: &mut Numbers) {
        let (mut came, mut last) = (0, Instant::now());
        while came < most && last.elapsed() < self.patience {
            let mut slots = Vec::new();
            self.outer.receive(64, &mut slots);
            for slot in &slots {
                let frame = self.outer.frame(slot).frame;
                assert_eq!(frame.len(), 900, "something else came out: {frame:x?}");
                let flow = u16::from_be_bytes([frame[34] - 16, frame[35]]);
                numbers
                    .entry(flow)
                    .or_default()
                    .push(u32::from_be_bytes(frame[42..46].try_into().unwrap()));
                (came, last) = (came + 1, Instant::now());
            }
            self.outer.release(slots.len());
            std::thread::yield_now();
        }
    }

    /// Waits for this time and checks that nothing arrives.
    fn silence(&mut self, time: Duration) {
        let (patience, mut none) = (std::mem::replace(&mut self.patience, time), Numbers::new());
        self.drain(usize::MAX, &mut none);
        self.patience = patience;
        assert_eq!(came(&none), 0, "more came than was sent: {none:?}");
    }
}

/// Returns the number of packets that came out.
fn came(numbers: &Numbers) -> u64 {
    numbers.values().map(|n| n.len() as u64).sum()
}

/// Checks that each number occurs once, as from a single unit with the same packets.
fn assert_as_from_one_unit(numbers: &Numbers) {
    for (flow, numbers) in numbers {
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            (1..=numbers.len() as u32).collect::<Vec<_>>(),
            "flow {flow}: {numbers:?}"
        );
    }
}

fn handed_over(status: &serde_json::Value, what: &str) -> u64 {
    status["handover"][what].as_u64().unwrap()
}

#[test]
fn four_units_do_what_one_does() {
    for exchange in ["memory", "udp"] {
        let Some(mut bench) = bench(exchange) else { return };
        bench.start(&["--units", "4", "--exchange", exchange]);
        let mut numbers = Numbers::new();
        let sent = bench.play(0..200, &mut numbers, |_, _| {});
        let status = bench.status("g");
        assert_eq!(came(&numbers), sent, "{status}");
        assert_as_from_one_unit(&numbers);
        assert_eq!(bench.billed(), sent);
        assert!(
            handed_over(&status, "seamless") > 20 && handed_over(&status, "pushes") > 20,
            "hardly a flow moved: {status}"
        );
        assert_eq!(
            ["gave_up", "with_gap", "stale", "updates_lost"].map(|what| handed_over(&status, what)),
            [0; 4],
            "{status}"
        );
    }
}

/// During a pause units push states to sleeping units. Flows that move then find their states
/// there.
#[test]
fn after_a_silence_hardly_a_flow_waits_for_its_state() {
    let Some(mut bench) = bench("ahead") else { return };
    bench.start(&["--units", "3"]);
    let (mut numbers, mut sent) = (Numbers::new(), 0);
    for round in 0..150 {
        sent += bench.play(round..round + 1, &mut numbers, |_, _| {});
        bench.silence(Duration::from_millis(2));
    }
    let status = bench.status("g");
    assert_eq!(came(&numbers), sent, "{status}");
    assert_as_from_one_unit(&numbers);
    let [seamless, pulled] = ["seamless", "pulled"].map(|what| handed_over(&status, what));
    assert!(seamless > 20 && seamless > 5 * pulled, "{status}");
}

/// Packets are lost, repeated and late between steering and units, and messages are lost and
/// repeated between units. No unit updates a stale state. So the numbers are those of a unit that
/// never received the lost packets.
#[test]
fn a_bad_network_makes_no_stale_update() {
    let Some(mut bench) = bench("chaos") else { return };
    bench.start(&["--units", "4", "--chaos", "2,5,5"]);
    let mut numbers = Numbers::new();
    bench.patience = Duration::from_millis(5);
    bench.play(0..150, &mut numbers, |_, _| {});
    // On a busy machine packets take long, but all billed packets arrive.
    bench.patience = Duration::from_millis(500);
    let deadline = Instant::now() + Duration::from_secs(30);
    bench.drain(usize::MAX, &mut numbers);
    while came(&numbers) < bench.billed() && Instant::now() < deadline {
        bench.drain(usize::MAX, &mut numbers);
    }
    let status = bench.status("g");
    assert!(handed_over(&status, "stale") > 20, "nothing was repeated: {status}");
    // If a unit lost the only packet of a flow, it has no state of it. Then all units are asked,
    // and the newest state wins.
    assert_eq!(came(&numbers), bench.billed(), "{status}");
    assert_as_from_one_unit(&numbers);
    // Every arrived packet was answered or refused. Refused packets count as lost, also next to the
    // bill.
    let told = |status: &serde_json::Value| {
        let count = |what: &str| status["handover"][what].as_u64();
        count("stale")
            .is_some_and(|stale| count("payload_bytes") == Some(900 * (came(&numbers) + stale)))
    };
    let status = until(&mut bench, told, |_| std::thread::yield_now());
    let lost = status["lost"].as_u64().unwrap();
    assert!(lost >= handed_over(&status, "stale"), "{status}");
    assert_eq!(bench.bill()["owed"][0]["lost"], lost, "{status}");
}

/// A group that cannot start is refused and leaves nothing. Running groups are not disturbed.
#[test]
fn a_group_that_does_not_start_leaves_nothing() {
    let Some(bench) = bench("refused") else { return };
    let start = |name: &str, more: &[&str]| {
        let module = bench.module("count");
        let output = bench.pando(
            &[
                &[
                    "run",
                    module.to_str().unwrap(),
                    "--iface",
                    "inner1",
                    "--name",
                    name,
                    "-d",
                    "--units",
                    "1..2",
                ],
                more,
            ]
            .concat(),
        );
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (more, code, want) in [
        (&["--out", "inner1"][..], 3, "leave --out away"),
        (&["--out", "none1"], 4, "`ip link` lists them"),
        (&["--out", "outer1", "--unit-capacty", "20M"], 2, "`pando fn run --help` lists"),
        (&["--out", "outer1", "--set", "x=1"], 3, "refuses its configuration"),
    ] {
        let (got, said) = start("refused", more);
        assert!(got == Some(code) && said.contains(want), "{more:?}: exit code {got:?}: {said}");
        assert_eq!(bench.pando(&["ls", "-o", "json"]).stdout, b"[]\n", "{more:?}");
    }
    bench.start(&["--units", "1"]);
    let (got, said) = start("g", &["--out", "outer1"]);
    assert!(got == Some(6) && said.contains("`pando fn rm g` ends it"), "{got:?}: {said}");
    assert_eq!(bench.status("g")["state"], "running");
}

/// A group with one device sends its packets back on it.
#[test]
fn without_another_device_packets_go_back_where_they_came_from() {
    let Some(mut bench) = bench("stick") else { return };
    let module = bench.module("count");
    let output = bench.pando(&[
        "run",
        module.to_str().unwrap(),
        "--iface",
        "inner1",
        "--name",
        "g",
        "--detach",
        "--units",
        "1..2",
    ]);
    assert!(output.status.success(), "{output:?}");
    let frames: Vec<Vec<u8>> = (0..FLOWS).map(|flow| frame(flow, 1, 900)).collect();
    assert_eq!(
        bench.inner.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        frames.len()
    );
    let (deadline, mut back) = (Instant::now() + bench.patience, 0);
    while back < frames.len() {
        assert!(
            Instant::now() < deadline,
            "{back} of {FLOWS} packets came back: {}",
            bench.status("g")
        );
        let mut slots = Vec::new();
        bench.inner.receive(64, &mut slots);
        back += slots.iter().filter(|slot| bench.inner.frame(slot).frame.len() == 900).count();
        bench.inner.release(slots.len());
    }
}

/// While a unit cannot be started, the others continue and the group reports the reason. Later the
/// unit starts.
#[test]
fn a_unit_that_cannot_be_started_harms_no_other() {
    let Some(mut bench) = bench("unstartable") else { return };
    bench.start(&["--units", "2"]);
    let mut numbers = Numbers::new();
    let mut sent = bench.play(0..10, &mut numbers, |_, _| {});
    let (module, away) = (bench.module("count"), bench.directory.join("away"));
    std::fs::rename(&module, &away).unwrap();
    let output = bench.pando(&["ls", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let pid = listed.as_array().unwrap().iter().find(|u| u["name"] != "g").unwrap()["pid"]
        .as_i64()
        .unwrap();
    // SAFETY: a unit of this test's own group, which answered just now.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
    let failed =
        |status: &serde_json::Value| status["group"]["counts"]["failed"].as_u64() >= Some(1);
    let status = until(&mut bench, failed, |_| std::thread::yield_now());
    assert!(
        status["group"]["failure"].as_str().is_some_and(|why| why.contains("the next try is in")),
        "{status}"
    );
    let listed = String::from_utf8(bench.pando(&["ls"]).stdout).unwrap();
    assert!(listed.contains("the next try is in"), "{listed}");
    sent += bench.play(10..20, &mut numbers, |_, _| {});
    assert_eq!(came(&numbers), sent, "{}", bench.status("g"));
    std::fs::rename(&away, &module).unwrap();
    let whole = |status: &serde_json::Value| {
        status["group"]["units"] == 2 && status["group"]["failure"].is_null()
    };
    until(&mut bench, whole, |_| std::thread::yield_now());
}

/// Units are killed under load. The others are not disturbed, and each killed unit is replaced. The
/// bill matches the output, except for the current batch of each kill.
#[test]
fn a_killed_unit_is_replaced_and_the_bill_is_right() {
    let Some(mut bench) = bench("kill") else { return };
    bench.start(&["--units", "4"]);
    bench.patience = Duration::from_millis(200);
    let (mut numbers, mut killed) = (Numbers::new(), 0);
    let sent = bench.play(0..120, &mut numbers, |bench, round| {
        if round % 30 == 29 {
            let output = bench.pando(&["ls", "-o", "json"]);
            let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let busiest = listed
                .as_array()
                .unwrap()
                .iter()
                .filter(|u| u["name"] != "g")
                .max_by_key(|u| u["flows"].as_u64())
                .unwrap();
            let pid = busiest["pid"].as_i64().unwrap();
            // SAFETY: a unit of this test's own group, which answered just now.
            assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
            killed += 1;
        }
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut status = bench.status("g");
    while (status["group"]["counts"]["died"] != killed || status["group"]["units"] != 4)
        && Instant::now() < deadline
    {
        std::thread::yield_now();
        status = bench.status("g");
    }
    assert_eq!(
        (&status["group"]["counts"]["died"], &status["group"]["units"]),
        (&killed.into(), &4.into()),
        "{status}"
    );
    let out = came(&numbers);
    let billed = bench.billed();
    assert!(out + 200 > sent, "{out} of {sent} packets came out: {status}");
    assert!(
        billed >= out && billed <= out + 32 * killed,
        "{out} packets came out, {billed} are billed"
    );
    // A flow with a replica continues its count; a flow without one starts again.
    let whole = numbers.values().filter(|n| n.iter().max() == Some(&(n.len() as u32))).count();
    assert!(whole > usize::from(FLOWS) / 4, "only {whole} flows kept their states: {numbers:?}");
}

/// Waits for a status of the group, and calls `meanwhile` until then.
fn until(
    bench: &mut Bench,
    such: impl Fn(&serde_json::Value) -> bool,
    mut meanwhile: impl FnMut(&mut Bench),
) -> serde_json::Value {
    let deadline = Instant::now() + Duration::from_secs(90);
    let control = bench.directory.join("run/g/control.sock");
    loop {
        let status = pando_unit::unit::request(&control, "status").unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        if such(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status}");
        meanwhile(bench);
    }
}

/// Units take packets when load rises and end when it has fallen. Nothing is lost, each packet
/// meets its flow's latest state, and the bill counts every packet once.
#[test]
fn a_group_grows_with_its_load_and_shrinks_again() {
    let Some(mut bench) = bench("grow") else { return };
    bench.start(&["--units", "1..4"]);
    let (mut numbers, mut sent, mut sequence) = (Numbers::new(), 0u64, 0u32);
    // Sends `each` packets of each flow, with `at_once` packets in flight.
    let mut load = |bench: &mut Bench, each: u32, at_once: usize| {
        let frames: Vec<Vec<u8>> = (0..each)
            .flat_map(|n| (0..FLOWS).map(move |flow| frame(flow, sequence + n, 900)))
            .collect();
        for some in frames.chunks(at_once) {
            assert_eq!(
                bench.inner.send(&some.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                some.len()
            );
            bench.drain(some.len(), &mut numbers);
        }
        (sent, sequence) = (sent + frames.len() as u64, sequence + each);
    };
    // A unit of 40 Mbit/s has work for 70 ms, which is less than the kernel queues for a processor.
    const HIGH: (u32, usize) = (16, 16 * FLOWS as usize);
    // No packet waits. A pause follows, as long as the time that the group averages demand over.
    const LOW: (u32, usize) = (1, 1);
    const SILENCE: Duration = Duration::from_millis(20);
    let number =
        |status: &serde_json::Value, what: &str| status["group"][what].as_u64().unwrap_or(0);
    let counted = |status: &serde_json::Value, what: &str| {
        status["group"]["counts"][what].as_u64().unwrap_or(0)
    };
    until(&mut bench, |status| number(status, "accepting") == 1, |bench| load(bench, LOW.0, LOW.1));
    let grown = until(
        &mut bench,
        |status| number(status, "accepting") >= 3,
        |bench| load(bench, HIGH.0, HIGH.1),
    );
    assert!(counted(&grown, "started") >= 3 && counted(&grown, "left") == 0, "{grown}");
    let shrunk = |status: &serde_json::Value| {
        number(status, "accepting") == 1 && counted(status, "left") >= 1
    };
    until(&mut bench, shrunk, |bench| {
        load(bench, LOW.0, LOW.1);
        bench.silence(SILENCE);
    });
    load(&mut bench, HIGH.0, HIGH.1); // the states of the ended unit still exist
    let status = bench.status("g");
    assert_eq!((counted(&status, "died"), came(&numbers)), (0, sent), "{status}");
    assert_as_from_one_unit(&numbers);
    assert_eq!(
        ["gave_up", "with_gap", "stale", "updates_lost"].map(|what| handed_over(&status, what)),
        [0; 4],
        "{status}"
    );
    bench.pando(&["rm", "g"]);
    assert_eq!(bench.billed(), sent);
}

/// The kernel ends a unit beyond its memory limit, the group reports that, and another unit
/// replaces it. All control groups end with the group.
#[test]
fn a_unit_beyond_its_memory_is_replaced() {
    let Some(mut bench) = bench("eat") else { return };
    let tenant = format!("eat{}", std::process::id());
    let confined = || {
        let hierarchies = ["memory", "cpu", ""]
            .map(|h| Path::new(pando_walls::cgroup::ROOT).join(h).join("pando/fn").join(&tenant));
        hierarchies
            .iter()
            .flat_map(std::fs::read_dir)
            .flatten()
            .flatten()
            .filter(|e| e.path().is_dir())
            .count()
    };
    let limits =
        ["--unit-memory-mib", "32", "--unit-cpus", "1.5", "--fuel-per-packet", "4000000000"];
    bench.start_chain(
        &[&bench.module("eat")],
        &[&["--units", "2", "--tenant", &tenant][..], &limits].concat(),
    );
    assert!(confined() >= 2, "no control groups");
    let mut numbers = Numbers::new();
    assert_eq!(bench.play(0..10, &mut numbers, |_, _| {}), came(&numbers));
    let listed = String::from_utf8(bench.pando(&["ls"]).stdout).unwrap();
    assert!(listed.contains("32 MiB, 1.5 CPU"), "{listed}");
    assert_eq!(bench.inner.send(&[&frame(1, 0xff00_0000, 900)]), 1);
    until(
        &mut bench,
        |status| status["group"]["counts"]["died"] == 1 && status["group"]["units"] == 2,
        |bench| {
            bench.patience = Duration::from_millis(50);
            bench.drain(1, &mut Numbers::new());
        },
    );
    let said = String::from_utf8(bench.pando(&["logs", "g"]).stdout).unwrap();
    assert!(
        said.contains(
            "signal: killed: it needed more memory than its limit of 32 MiB, see --unit-memory-mib"
        ),
        "{said}"
    );
    bench.patience = Duration::from_secs(5);
    let mut numbers = Numbers::new();
    assert_eq!(bench.play(20..30, &mut numbers, |_, _| {}), came(&numbers));
    bench.pando(&["rm", "g"]);
    assert_eq!(confined(), 0, "control groups are left");
}

/// Kills a process of the group and waits until another replaces it.
fn kill_and_replace(bench: &mut Bench, pid: i64, died: u64) {
    // SAFETY: a process of this test's own group, which answered just now.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
    let log = bench.directory.join("run/g.log/control.sock");
    let whole = |status: &serde_json::Value| {
        let there = status["group"]["counts"]["died"] == died && status["group"]["units"] == 3;
        there && pando_unit::unit::request(&log, "status").is_ok()
    };
    until(bench, whole, |_| std::thread::yield_now());
}

/// With an output log, a killed unit loses no state. No number occurs twice, and missing packets
/// were in the unit.
#[test]
fn a_log_has_the_states_of_a_killed_unit() {
    let Some(mut bench) = bench("log") else { return };
    bench.start(&["--units", "3", "--replicas", "0", "--durability", "log"]);
    bench.patience = Duration::from_millis(200);
    let (mut numbers, mut sent, mut killed) = (Numbers::new(), 0, 0);
    for part in 0..6 {
        sent += bench.play(part * 15..part * 15 + 15, &mut numbers, |_, _| {});
        let output = bench.pando(&["ls", "-o", "json"]);
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let units = || listed.as_array().unwrap().iter();
        // The log itself dies twice, and the units refill it.
        let victim = match part {
            1 | 3 => units().find(|u| u["name"] == "g.log"),
            _ => units().filter(|u| u["name"] != "g").max_by_key(|u| u["flows"].as_u64()),
        };
        let pid = victim.unwrap()["pid"].as_i64().unwrap();
        let burst: Vec<Vec<u8>> = (0..2)
            .flat_map(|n| (0..FLOWS).map(move |flow| frame(flow, 5000 + part * 8 + n, 900)))
            .collect();
        assert_eq!(
            bench.inner.send(&burst.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            burst.len()
        );
        (sent, killed) = (sent + burst.len() as u64, killed + 1);
        kill_and_replace(&mut bench, pid, killed);
        bench.drain(burst.len(), &mut numbers);
    }
    sent += bench.play(90..105, &mut numbers, |_, _| {});
    let status = bench.status("g");
    let (out, billed) = (came(&numbers), bench.billed());
    assert!(
        billed >= out && billed <= out + 32 * killed,
        "{out} packets of {sent} came out, {billed} are billed: {status}"
    );
    for (flow, numbers) in &numbers {
        let mut once = numbers.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(
            once.len(),
            numbers.len(),
            "flow {flow} went on with an older state: {numbers:?}; {status}"
        );
        assert!(
            u64::from(once[once.len() - 1]) <= numbers.len() as u64 + 32 * killed,
            "flow {flow}: {numbers:?}"
        );
    }
    assert!(handed_over(&status, "kept") > 0, "{status}");
}

/// A process that ends with the test, however the test ends.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With the states in a Redis, no death loses a state, and no state is handed over.
#[test]
fn states_in_a_store_outlive_their_unit() {
    let Some(mut bench) = bench("store") else { return };
    let socket = bench.directory.join("redis.sock");
    let mut redis = Command::new("redis-server");
    redis
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(&bench.directory);
    let Ok(redis) = redis.stdout(std::process::Stdio::null()).spawn() else {
        println!("skipped: needs redis-server");
        return;
    };
    let _redis = Ended(redis);
    let until = |what: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !what() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    };
    until(&mut || socket.exists());
    bench.start(&["--units", "1", "--state-store", socket.to_str().unwrap()]);
    let mut numbers = Numbers::new();
    let sent = bench.play(0..20, &mut numbers, |bench, round| {
        if round == 9 {
            let output = bench.pando(&["ls", "-o", "json"]);
            let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let pid = listed.as_array().unwrap().iter().find(|u| u["name"] != "g").unwrap()["pid"]
                .as_i64()
                .unwrap();
            // SAFETY: a unit of this test's own group, which answered just now.
            assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
            until(&mut || {
                let status = bench.status("g");
                status["group"]["counts"]["died"] == 1 && status["group"]["accepting"] == 1
            });
        }
    });
    let status = bench.status("g");
    assert_eq!(came(&numbers), sent, "{status}");
    assert_as_from_one_unit(&numbers);
    assert_eq!(
        ["seamless", "pulled", "pushes"].map(|what| handed_over(&status, what)),
        [0; 3],
        "{status}"
    );
}
