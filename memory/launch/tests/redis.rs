//! An unmodified Redis on far memory: right, through saves, lost hosts and a guide.

mod far;

use far::*;
use std::time::{Duration, Instant};

const KEYS: u64 = 2400; // 100 MB

fn key(k: u64) -> Vec<u8> {
    format!("k{k}").into_bytes()
}

fn load<S: std::io::Read + std::io::Write>(c: &mut Client<S>) {
    for k in 0..KEYS {
        assert_eq!(c.call(&[b"SET", &key(k), &value(k, 0)]), Reply::Text(b"OK".into()));
    }
}

fn check<S: std::io::Read + std::io::Write>(c: &mut Client<S>, version: impl Fn(u64) -> u64) {
    for k in 0..KEYS {
        assert!(
            c.call(&[b"GET", &key(k)]) == Reply::Text(value(k, version(k))),
            "key {k} is wrong"
        );
    }
}

#[test]
fn a_snapshot_taken_by_fork_holds_the_moment_of_the_fork() {
    let h = host(&["--size", "512MiB"]);
    let r = redis("fork", &["--local", "25MiB", "--from", &h.address], &[]);
    let mut c = r.client();
    load(&mut c);
    for round in 1..=2u64 {
        assert!(matches!(c.call(&[b"BGSAVE"]), Reply::Text(_)));
        // The parent writes while the child reads its snapshot.
        for k in (0..KEYS).step_by(3) {
            c.call(&[b"SET", &key(k), &value(k, round)]);
        }
        until("the snapshot is written", || match c.call(&[b"INFO", b"persistence"]) {
            Reply::Text(t) => {
                let t = String::from_utf8_lossy(&t).into_owned();
                assert!(t.contains("rdb_last_bgsave_status:ok"), "{t}");
                t.contains("rdb_bgsave_in_progress:0")
            }
            other => panic!("{other:?}"),
        });
        let dump = r.dir.join("dump.rdb");
        // An ordinary Redis with all its memory local reads the file.
        let plain = redis(
            &format!("plain{round}"),
            &[],
            &["--dbfilename", "dump.rdb", "--dir", r.dir.to_str().unwrap()],
        );
        check(&mut plain.client(), |k| if k % 3 == 0 { round - 1 } else { 0 });
        assert!(dump.exists());
        check(&mut c, |k| if k % 3 == 0 { round } else { 0 });
    }
    assert_eq!(figure(r.pid(), "forks"), 2);
}

#[test]
fn the_budget_holds_for_the_whole_process() {
    let h = host(&["--size", "512MiB"]);
    // A cgroup of the size of the budget holds all of the program, the kernel's share included,
    // however fast it fills.
    let group = Group::new("budget", 32 << 20);
    let r = redis_in(Some(&group), "budget", &["--local", "32MiB", "--from", &h.address], &[]);
    let mut c = r.client();
    let mut most = 0;
    for k in 0..KEYS {
        c.call(&[b"SET", &key(k), &value(k, 0)]);
        let status = std::fs::read_to_string(format!("/proc/{}/status", r.pid())).unwrap();
        let anon = status
            .lines()
            .find_map(|l| l.strip_prefix("RssAnon:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .unwrap();
        most = most.max(anon);
    }
    check(&mut c, |_| 0);
    assert_eq!(group.kills(), 0);
    assert!(
        most <= (32 << 10) * 102 / 100,
        "{most} kB of anonymous memory with a budget of 32 MiB"
    );
    assert_eq!(figure(r.pid(), "over_budget"), 0);
}

#[test]
fn a_lease_lasts_while_nothing_is_evicted() {
    let h = host(&["--size", "512MiB"]);
    let r = redis("idle", &["--local", "25MiB", "--from", &h.address], &[]);
    let begun = Instant::now();
    until("longer than a lease without a connection", || begun.elapsed() > Duration::from_secs(17));
    let mut c = r.client();
    load(&mut c);
    check(&mut c, |_| 0);
}

#[test]
fn the_only_host_dies_and_the_program_says_so() {
    let mut h = host(&["--size", "512MiB"]);
    let mut r = redis("alone", &["--local", "25MiB", "--from", &h.address], &[]);
    let mut c = r.client();
    load(&mut c);
    h.process.0.kill().unwrap();
    for k in 0..KEYS {
        match c.try_call(&[b"GET", &key(k)]) {
            Ok(reply) => assert!(reply == Reply::Text(value(k, 0)), "a wrong byte"),
            Err(_) => break,
        }
    }
    // The program ends at once, without the patience for a silent host.
    until("the program has ended", || r.process.0.try_wait().unwrap().is_some());
    assert_eq!(r.process.0.wait().unwrap().code(), Some(97));
    assert!(r.said().contains("memory host 1 held the only copy and is gone"), "{}", r.said());
}

#[test]
fn a_lying_host_is_caught() {
    let liar = host(&["--size", "512MiB", "--lie-every", "300"]);
    let mut r = redis("liar", &["--local", "25MiB", "--from", &liar.address], &[]);
    let mut c = r.client();
    load(&mut c);
    for k in 0..KEYS {
        match c.try_call(&[b"GET", &key(k)]) {
            Ok(reply) => assert!(reply == Reply::Text(value(k, 0)), "a wrong byte"),
            Err(_) => break,
        }
    }
    assert_eq!(r.process.0.wait().unwrap().code(), Some(97));
    // With an honest second copy it is served from there.
    let honest = host(&["--size", "512MiB"]);
    let liar = host(&["--size", "512MiB", "--lie-every", "300"]);
    let from = format!("{},{}", liar.address, honest.address);
    let r = redis("liar2", &["--local", "25MiB", "--far", "256MiB", "--from", &from], &[]);
    let mut c = r.client();
    load(&mut c);
    check(&mut c, |_| 0);
    assert!(figure(r.pid(), "pages_bad") > 0);
}

#[test]
fn the_guide_fetches_a_range_in_one_round() {
    let h = host(&["--size", "512MiB"]);
    let r = redis("guide", &["--local", "20MiB", "--from", &h.address, "--guide", "redis"], &[]);
    let mut c = r.client();
    for l in 0..400u64 {
        let elements: Vec<Vec<u8>> = (0..200).map(|j| content(l, j, 1024)).collect();
        let name = format!("l{l}").into_bytes();
        let mut args: Vec<&[u8]> = vec![b"RPUSH", &name];
        args.extend(elements.iter().map(|e| e.as_slice()));
        assert_eq!(c.call(&args), Reply::Number(200));
    }
    let before = figure(r.pid(), "rounds");
    let requests = 800;
    for k in 0..requests {
        let l = k * 7919 % 400;
        let Reply::Many(got) = c.call(&[b"LRANGE", format!("l{l}").as_bytes(), b"0", b"99"]) else {
            panic!("no list")
        };
        assert!(
            got.len() == 100
                && got
                    .iter()
                    .enumerate()
                    .all(|(j, e)| *e == Reply::Text(content(l, j as u64, 1024)))
        );
    }
    let rounds = (figure(r.pid(), "rounds") - before) as f64 / requests as f64;
    assert!(rounds <= 1.3, "{rounds} rounds per request");
    // Read backwards from the end, past both ends, and from a value that is not a list.
    let Reply::Many(got) = c.call(&[b"LRANGE", b"l1", b"-3", b"500"]) else { panic!("no list") };
    assert_eq!(got, (197..200).map(|j| Reply::Text(content(1, j, 1024))).collect::<Vec<_>>());
    assert_eq!(c.call(&[b"LRANGE", b"nothing", b"0", b"99"]), Reply::Many(vec![]));
    c.call(&[b"SET", b"s", &value(5, 1)]);
    assert!(matches!(c.call(&[b"LRANGE", b"s", b"0", b"99"]), Reply::Error(_)));
    assert_eq!(
        c.call(&[b"MGET", b"s", b"nothing"]),
        Reply::Many(vec![Reply::Text(value(5, 1)), Reply::Nil])
    );
}

#[test]
fn redis_benchmark_runs_without_an_error() {
    let h = host(&["--size", "512MiB"]);
    let r = redis("benchmark", &["--local", "20MiB", "--from", &h.address], &[]);
    let socket = r.dir.join("redis.sock");
    let tests = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,mset";
    let mut command = std::process::Command::new("redis-benchmark");
    command.args([
        "-s",
        socket.to_str().unwrap(),
        "-t",
        tests,
        "-n",
        "6000",
        "-r",
        "6000",
        "-d",
        "6000",
        "-c",
        "16",
        "-P",
        "4",
        "--csv",
    ]);
    let out = command.output().expect("redis-benchmark is installed");
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    // There is a line for each test, and a header.
    assert!(out.status.success() && !text.contains("rror"), "{text}");
    assert_eq!(
        text.lines().filter(|l| l.starts_with('"')).count(),
        tests.split(',').count() + 1,
        "{text}"
    );
    let Reply::Text(errors) = r.client().call(&[b"INFO", b"errorstats"]) else {
        panic!("no errorstats")
    };
    assert!(
        !String::from_utf8_lossy(&errors).contains("errorstat_"),
        "{}",
        String::from_utf8_lossy(&errors)
    );
    assert!(
        figure(r.pid(), "faults_fetch") > 1000,
        "all of it was local: {} fetches",
        figure(r.pid(), "faults_fetch")
    );
}
