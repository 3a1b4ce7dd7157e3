//! Tests groups of units: real processes behind real steering. A function numbers the packets of
//! each flow. So the output shows a packet that was processed twice, or on an old state. Needs root
//! and Go; without root the tests report that and skip.

mod bed;

use std::time::{Duration, Instant};

use bed::group::Bench;
use bed::numbers::{
    FLOWS, Numbers, assert_as_from_one_unit, bench, came, frame, handed_over, until,
};

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
