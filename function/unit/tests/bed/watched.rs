//! A unit with an output log and a standby, and the deaths of each.

use std::time::{Duration, Instant};

use pando_abi::BATCH_PACKETS;
use serde_json::Value;

use super::{Bench, frame};

pub const LOG: [&str; 2] = ["--durability", "log"];
pub const NAT: [&str; 2] = ["--set", "address=203.0.113.7"];

pub fn status(bench: &Bench) -> Value {
    bench.json(&["ls", "-o", "json"])[0].clone()
}

pub fn soon<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::yield_now();
    }
}

pub fn signal(pid: i64, signal: i32) {
    // SAFETY: a process of this test.
    unsafe { libc::kill(pid as i32, signal) };
}

pub fn pid(bench: &Bench) -> i64 {
    status(bench)["pid"].as_i64().unwrap_or(0)
}

/// Waits until the unit's process is not `dead`, and its standby is ready.
pub fn next_unit(bench: &Bench, dead: i64, epoch: u32) -> i64 {
    soon("the standby serves", || {
        Some(pid(bench)).filter(|&p| p != dead && p != 0).filter(|_| standing_by(bench, epoch))
    })
}

/// Returns whether this many units were started. The last one is then a standby.
pub fn standing_by(bench: &Bench, epoch: u32) -> bool {
    bench.json(&["bill", "-o", "json"])["records"]
        .as_array()
        .is_some_and(|r| r.len() as u32 >= epoch)
}

/// Returns another child of the watching process, the parent of this bench's unit.
pub fn sibling(bench: &Bench, found: impl Fn(i64, &[u8]) -> bool) -> i64 {
    let unit = pid(bench);
    let parent = |pid: i64| -> Option<i64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let watch = parent(unit).expect("the unit has a parent");
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i64>().ok());
    let such = |&p: &i64| {
        p != unit
            && parent(p) == Some(watch)
            && std::fs::read(format!("/proc/{p}/cmdline")).is_ok_and(|c| found(p, &c))
    };
    all.into_iter().find(such).expect("the unit has a log and a standby")
}

pub fn log_pid(bench: &Bench) -> i64 {
    sibling(bench, |_, command| command.ends_with(b"log\0--inside\0"))
}

pub fn standby_pid(bench: &Bench) -> i64 {
    sibling(bench, |_, command| command.ends_with(b"--unit\0"))
}

/// Returns the translations of 200 flows, one packet each.
pub fn translate(bench: &mut Bench) -> Vec<Vec<u8>> {
    translate_from(bench, 0)
}

/// Returns the translations of 200 flows from number `first` on.
pub fn translate_from(bench: &mut Bench, first: u32) -> Vec<Vec<u8>> {
    let frames: Vec<Vec<u8>> = (first..first + 200).map(frame).collect();
    let sent: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let (mut back, mut slots) = (Vec::new(), Vec::new());
    assert_eq!(bench.near.send(&sent), 200);
    soon("200 packets come back", || {
        slots.clear();
        bench.near.receive(BATCH_PACKETS, &mut slots);
        back.extend(slots.iter().map(|s| bench.near.frame(s).frame.to_vec()));
        bench.near.release(slots.len());
        (back.len() >= 200).then_some(())
    });
    back.sort();
    back
}
