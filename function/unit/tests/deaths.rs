//! Tests the death of a group's units: another unit replaces each, and states and bills are right.
//! Units are real processes behind real steering. Needs root and Go; without root the tests report
//! that and skip.

mod bed;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bed::group::Bench;
use bed::numbers::{
    FLOWS, Numbers, assert_as_from_one_unit, bench, came, frame, handed_over, until,
};

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

/// The process of a group is killed, and with it its units. Another one serves again by itself.
/// After `pando fn rm` none does.
#[test]
fn a_killed_group_is_started_again() {
    let Some(mut bench) = bench("killed") else { return };
    bench.start(&["--units", "2"]);
    let pid = |status: &serde_json::Value| status["pid"].as_i64();
    let mut killed = pid(&bench.status("g")).unwrap();
    for _ in 0..2 {
        // SAFETY: the process of this test's own group, which answered just now.
        assert_eq!(unsafe { libc::kill(killed as i32, libc::SIGKILL) }, 0);
        let since = Instant::now();
        let again = |status: &serde_json::Value| {
            status["group"]["units"] == 2 && pid(status) != Some(killed)
        };
        let status = until(&mut bench, again, |_| std::thread::yield_now());
        println!("{} ms without a group", since.elapsed().as_millis());
        killed = pid(&status).unwrap();
        let mut numbers = Numbers::new();
        let sent = bench.play(0..10, &mut numbers, |_, _| {});
        assert_eq!(came(&numbers), sent, "{}", bench.status("g"));
    }
    assert!(bench.pando(&["rm", "g"]).status.success());
    assert!(bench.status("g").is_null());
    let folder = bench.directory.join("run/g");
    assert!(!folder.exists(), "{} is there again", folder.display());
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
