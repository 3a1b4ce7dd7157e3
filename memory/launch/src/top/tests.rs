//! The output for people and for programs, from counters of the test's own.

use super::*;
use memory_core::stats::bucket;
use std::net::TcpListener;

/// Returns a process with zero counters. They are mapped, as those of a real one are.
fn process(name: &str) -> Process {
    let bytes = size_of::<Stats>().next_multiple_of(4096);
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    Process { pid: 4711, name: name.into(), stats: unsafe { &*at.cast() } }
}

/// Names that a program may give itself.
const NAMES: [&str; 7] =
    ["redis", "a \"b\"", "back\\slash\\", "line\nbreak", "\u{1b}[31mred", "ümlaut 🦀", ""];

/// Reads the text between two quotes, as JSON and Prometheus do.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.strip_prefix('"')?.chars());
    loop {
        match chars.next()? {
            '"' => return Some((out, chars.as_str())),
            '\\' => out.push(chars.next().filter(|c| ['"', '\\'].contains(c))?),
            c if c.is_control() => return None,
            c => out.push(c),
        }
    }
}

#[test]
fn any_name_of_a_program_leaves_the_output_well_formed() {
    for name in NAMES {
        let p = process(name);
        let shown = name.replace(|c: char| c.is_control(), "?");
        let out = json(&p, &Look::at(p.stats));
        assert_eq!(out.matches('\n').count(), 1, "one line is one object");
        let rest = out.strip_prefix("{\"pid\":4711,\"name\":").unwrap();
        let (read, rest) = unquoted(rest).unwrap_or_else(|| panic!("{out:?}"));
        assert_eq!(read, shown);
        for field in rest.trim().strip_prefix(',').unwrap().strip_suffix('}').unwrap().split(',') {
            let (key, value) = field.split_once(':').unwrap();
            assert!(unquoted(key).is_some_and(|(_, rest)| rest.is_empty()), "{field:?}");
            assert!(value.parse::<u64>().is_ok(), "{field:?}");
        }
        let all = [p];
        for line in prometheus(&all).lines().filter(|l| !l.starts_with('#')) {
            let (_, labels) = line.split_once("name=").unwrap();
            let (read, rest) = unquoted(labels).unwrap_or_else(|| panic!("{line:?}"));
            let value = rest.rsplit_once("} ").unwrap().1;
            assert!(read == shown && value.parse::<f64>().is_ok(), "{line:?}");
        }
    }
}

#[test]
fn every_figure_is_described_once_and_read_from_a_counter_of_its_own() {
    let p = process("x");
    for (k, (_, _, get)) in (1..).zip(FIGURES) {
        // A counter that two figures share would lose the first mark.
        assert_eq!(get(p.stats).swap(k, Relaxed), 0, "two figures have one counter");
    }
    let look = Look::at(p.stats);
    for (k, (name, help, _)) in (1..).zip(FIGURES) {
        assert!(look.get(name) == k && !help.is_empty(), "{name}");
    }
    let all = [p];
    let text = prometheus(&all);
    for (name, ..) in FIGURES {
        let short = name.trim_end_matches("_now");
        let kind = if name.ends_with("_now") { "gauge" } else { "counter" };
        let total = if name.ends_with("_now") { "" } else { "_total" };
        let head = format!("# TYPE pando_mem_{short}{total} {kind}\n");
        assert_eq!(text.matches(&head).count(), 1, "{name}");
        assert_eq!(text.matches(&format!("\npando_mem_{short}{total}{{")).count(), 1, "{name}");
    }
}

#[test]
fn rates_are_of_the_time_between_two_looks() {
    let p = process("x");
    p.stats.rounds.store(100, Relaxed);
    p.stats.stalls.0[bucket(1_000)].store(50, Relaxed);
    p.stats.copies_now.store(1, Relaxed);
    p.stats.filling_now.store(34, Relaxed);
    let first = Look::at(p.stats);
    let sums = text(&p, &first, None, 2.0);
    assert!(sums.contains("\nrounds 100  per request -"), "sums at first");
    assert!(sums.contains(" 1 whole copy, 34 % of another\n"), "{sums}");
    p.stats.rounds.store(120, Relaxed);
    p.stats.requests.store(5, Relaxed);
    p.stats.stalls.0[bucket(9_000_000)].store(1, Relaxed);
    let out = text(&p, &Look::at(p.stats), Some(&first), 2.0);
    assert!(out.contains("\nrounds/s 10  per request 4.00"), "{out}");
    assert!(out.contains("stalls  p50 10485.8 us"), "only the new stall counts: {out}");
}

#[test]
fn a_process_that_took_the_number_of_another_begins_at_its_own_sums() {
    let (old, new) = (process("old"), process("new"));
    old.stats.rounds.store(1_000_000, Relaxed);
    old.stats.stalls.0[40].store(9, Relaxed);
    new.stats.rounds.store(7, Relaxed);
    new.stats.faults.store(12, Relaxed);
    let last = Look::at(old.stats);
    let out = text(&new, &Look::at(new.stats), Some(&last), 1.0);
    assert!(out.contains("\nrounds 7  per request -"), "{out}");
    // A gauge that falls is the same process.
    let p = process("x");
    p.stats.held_now.store(50, Relaxed);
    let last = Look::at(p.stats);
    p.stats.held_now.store(20, Relaxed);
    assert!(Look::at(p.stats).follows(&last));
    p.stats.stalls.0[3].store(1, Relaxed);
    assert!(Look::at(p.stats).follows(&last) && !last.follows(&Look::at(p.stats)));
}

#[test]
fn extreme_counters_are_shown() {
    let p = process("x");
    for (_, _, get) in FIGURES {
        get(p.stats).store(u32::MAX as u64, Relaxed);
    }
    p.stats.stalls.0[STALL_BUCKETS - 1].store(u32::MAX as u64, Relaxed);
    p.stats.stalls.0[0].store(1, Relaxed);
    let out = text(&p, &Look::at(p.stats), None, 1.0);
    assert!(out.contains("over budget 4294967295 times") && out.contains("(paused)"), "{out}");
    assert_eq!(bar(u64::MAX / 20, 0), format!("[{}]", "#".repeat(20)));
    assert_eq!(bar(0, 0), format!("[{}]", ".".repeat(20)));
    assert_eq!((outside(50, 100), outside(51, 100).is_empty()), (String::new(), false));
}

#[test]
fn the_time_between_looks_is_one_that_can_be_slept() {
    for (given, seconds) in [("0.1", 0.1), ("1", 1.0), ("86400", 86400.0), ("2.5", 2.5)] {
        assert_eq!(pause(given), Ok(seconds));
    }
    for bad in ["inf", "-inf", "NaN", "0", "-1", "0.05", "86401", "1e300", "", "1s"] {
        assert!(pause(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_up_the_next_scrape() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // More than the buffers of both ends hold.
    let body = "x".repeat(64 << 20);
    let silent = TcpStream::connect(address).unwrap();
    let accepted = listener.accept().unwrap().0;
    assert!(answer(accepted, &body, Duration::from_millis(20)).is_err());
    drop(silent);
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let server = listener.accept().unwrap().0;
    let served = std::thread::spawn(move || answer(server, "a 1\n", Duration::from_secs(60)));
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    served.join().unwrap().unwrap();
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\na 1\n"), "{got}");
    assert!(got.contains("\r\nContent-Length: 4\r\n"));
}
