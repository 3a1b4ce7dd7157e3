//! A group without a stated capacity, under small packets and a slow function. Needs root and Go;
//! without root the test reports that and skips.

mod bed;

use std::time::{Duration, Instant};

use bed::group::bench;
use bed::numbers::frame;

/// Packets of 100 bytes, 3,000 a second: by their bytes, a hundredth of a unit's nominal rate.
const EVERY: Duration = Duration::from_micros(333);

/// Units may use a fifth of a processor each, and the load needs more than one.
#[test]
fn a_group_grows_by_the_processor_time_of_its_units() {
    let Some(bench) = bench("busy", &["spin"]) else { return };
    let module = bench.module("spin");
    let output = bench.pando(&[
        "run",
        module.to_str().unwrap(),
        "--iface",
        "inner1",
        "--out",
        "outer1",
        "--name",
        "g",
        "--detach",
        "--units",
        "1..4",
        "--unit-cpus",
        "0.2",
        "--tenant",
        &format!("busy{}", std::process::id()),
    ]);
    assert!(output.status.success(), "{output:?}");
    let (mut sequence, began) = (0u32, Instant::now());
    let mut looked = began;
    loop {
        while EVERY * sequence > began.elapsed() {
            std::thread::yield_now();
        }
        bench.inner.send(&[&frame((sequence % 400) as u16, sequence / 400, 100)]);
        sequence += 1;
        if looked.elapsed() < Duration::from_millis(500) {
            continue;
        }
        looked = Instant::now();
        let listed: serde_json::Value =
            serde_json::from_slice(&bench.pando(&["ls", "-o", "json"]).stdout).unwrap_or_default();
        let served = |unit: &serde_json::Value| {
            let packets = unit["fates"][0][1].as_f64().unwrap_or_default();
            unit["name"] != "g" && packets >= 100.0
        };
        let busy = listed.as_array().map_or(0, |all| all.iter().filter(|u| served(u)).count());
        if busy >= 2 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "one unit serves all: {listed}");
    }
}
