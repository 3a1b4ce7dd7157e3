//! A unit with an output log on another host. Needs root; without root the tests report that and
//! skip.

mod bed;

use std::process::{Child, Command, Stdio};

use pando_abi::BATCH_PACKETS;

use bed::watched::*;
use bed::{Bench, bench, frame, ip};

/// Makes a file of the bench with a new key of the default tenant.
fn new_key(bench: &Bench, name: &str) -> String {
    let file = bench.directory.join(name);
    let made = Command::new(env!("CARGO_BIN_EXE_pando-unit"))
        .args(["log", "--new-key", "default"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::write(&file, made.stdout).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A log in its own namespace, on another veth: as on another host.
struct Elsewhere {
    log: Child,
    namespace: String,
    keys: String,
}

impl Elsewhere {
    /// Starts the log with a new key of the default tenant, in a file of the bench.
    fn start(bench: &Bench, port: u16) -> Elsewhere {
        let namespace = format!("log-{}-{port}", std::process::id()); // others run beside it
        ip(&format!("netns add {namespace}"));
        ip(&format!("link add name here type veth peer name there netns {namespace}"));
        ip("address add 192.0.2.1/24 dev here");
        ip("link set here up");
        for command in ["address add 192.0.2.2/24 dev there", "link set there up"] {
            ip(&format!("-n {namespace} {command}"));
        }
        let keys = new_key(bench, "log.keys");
        Elsewhere { log: Self::log(&namespace, port, &keys), namespace, keys }
    }

    fn log(namespace: &str, port: u16, keys: &str) -> Child {
        let mut log = Command::new("nsenter");
        log.arg(format!("--net=/run/netns/{namespace}")).arg(env!("CARGO_BIN_EXE_pando-unit"));
        let mut log = log
            .args(["log", "--listen", &format!("192.0.2.2:{port}"), "--keys", keys])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(log.stdout.take().unwrap()),
            &mut line,
        )
        .unwrap();
        assert!(line.contains("listens on"), "{line}");
        log
    }

    fn kill(&mut self) {
        self.log.kill().unwrap();
        self.log.wait().unwrap();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.kill();
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

#[test]
fn a_log_on_another_host_does_the_same() {
    let Some(mut bench) = bench("remote") else { return };
    let mut elsewhere = Elsewhere::start(&bench, 7001);
    let log = ["--log", "192.0.2.2:7001", "--log-key", &elsewhere.keys];
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    let before = translate(&mut bench);
    let first = pid(&bench);
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    signal(first, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the standby translates as the unit did");
    let second = next_unit(&bench, first, 3);

    // Without a log nothing leaves. Then the unit fills the new log and continues.
    elsewhere.kill();
    let frames: Vec<Vec<u8>> = (0..32).map(frame).collect();
    bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let said = |bench: &Bench, what: &str| {
        String::from_utf8(bench.run(&["logs", "n"]).stdout).unwrap().contains(what).then_some(())
    };
    soon("the unit misses its log", || said(&bench, "nothing leaves"));
    soon("the address of the missing log is in the log of the unit", || {
        said(&bench, "`pando fn log --listen 192.0.2.2:7001 --keys FILE`")
    });
    let mut slots = Vec::new();
    bench.near.receive(1, &mut slots);
    assert!(slots.is_empty(), "a packet left without a log");
    elsewhere.log = Elsewhere::log(&elsewhere.namespace, 7001, &elsewhere.keys);
    soon("the return of the log is in the log of the unit", || {
        said(&bench, "the output log at 192.0.2.2:7001 answers")
    });
    soon("the packets that were held come", || {
        slots.clear();
        bench.near.receive(BATCH_PACKETS, &mut slots);
        (slots.len() == 32).then_some(())
    });
    bench.near.release(32);
    signal(second, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the new log has the state of the old one");
    assert_eq!(status(&bench)["durability"]["state_lost"], 0);
}

/// With --on-log-lost go-on, packets leave after a while without a log, and are counted. A log that
/// returns gets the state, and protects the flows again.
#[test]
fn a_unit_may_serve_without_its_log() {
    let Some(mut bench) = bench("alone") else { return };
    let mut elsewhere = Elsewhere::start(&bench, 7003);
    let log = ["--log", "192.0.2.2:7003", "--log-key", &elsewhere.keys];
    let alone = ["--on-log-lost", "go-on", "--log-lost-ms", "200"];
    bench.start_with("nat", &[&NAT[..], &LOG, &log, &alone].concat());
    let before = translate(&mut bench);
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    assert_eq!(status(&bench)["durability"]["unlogged"], 0);
    elsewhere.kill();
    assert_eq!(translate(&mut bench), before, "packets leave without a log");
    let newer = translate_from(&mut bench, 200);
    let durability = status(&bench)["durability"].clone();
    assert!(durability["unlogged"].as_u64() >= Some(200), "{durability}");
    let said = String::from_utf8(bench.run(&["logs", "n"]).stdout).unwrap();
    assert!(said.contains("packets leave without an output log"), "{said}");
    assert!(said.contains("after 200ms packets leave without it"), "{said}");

    elsewhere.log = Elsewhere::log(&elsewhere.namespace, 7003, &elsewhere.keys);
    soon("the log and the standby have the state", || {
        let durability = status(&bench)["durability"].clone();
        (durability["refills"].as_u64() >= Some(2) && durability["behind"] == 0).then_some(())
    });
    let unit = pid(&bench);
    signal(unit, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before);
    assert_eq!(translate_from(&mut bench, 200), newer, "flows of the time without a log");
    let durability = status(&bench)["durability"].clone();
    assert_eq!(
        (&durability["takeovers"], &durability["state_lost"]),
        (&1.into(), &0.into()),
        "{durability}"
    );
}

/// A log that hung has an older state than the packets that left without it. A standby does not
/// serve with that state, and counts the loss.
#[test]
fn a_state_that_is_older_than_the_packets_counts_as_lost() {
    let Some(mut bench) = bench("older") else { return };
    let elsewhere = Elsewhere::start(&bench, 7004);
    let log = ["--log", "192.0.2.2:7004", "--log-key", &elsewhere.keys];
    let alone = ["--on-log-lost", "go-on", "--log-lost-ms", "100"];
    bench.start_with("nat", &[&NAT[..], &LOG, &log, &alone].concat());
    translate(&mut bench);
    soon("the standby has the state", || {
        let behind = &status(&bench)["durability"]["behind"];
        (standing_by(&bench, 2) && *behind == 0).then_some(())
    });
    let unit = pid(&bench);
    signal(i64::from(elsewhere.log.id()), libc::SIGSTOP);
    translate_from(&mut bench, 200);
    signal(unit, libc::SIGKILL);
    signal(i64::from(elsewhere.log.id()), libc::SIGCONT);
    next_unit(&bench, unit, 3);
    translate_from(&mut bench, 400);
    assert_eq!(status(&bench)["durability"]["state_lost"], 1);
}

/// A unit with another key than the log's gets nothing there, and its log names both files. A file
/// of keys that others may read is refused.
#[test]
fn a_unit_with_another_key_is_refused_and_says_so() {
    let Some(bench) = bench("key") else { return };
    let _elsewhere = Elsewhere::start(&bench, 7002);
    let other = new_key(&bench, "other.keys");
    let log = ["--log", "192.0.2.2:7002", "--log-key", &other];
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    soon("the reason is in the log of the unit", || {
        let said = String::from_utf8(bench.run(&["logs", "n"]).stdout).unwrap();
        (said.contains("it refuses the key of tenant default")
            && said.contains("compare the files of --log-key"))
        .then_some(())
    });
    assert!(bench.run(&["rm", "n"]).status.success());

    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let module = format!("{}/../functions/nat/nat.wasm", env!("CARGO_MANIFEST_DIR"));
    let place = ["run", &module, "--iface", "far", "--name", "n", "-d"];
    let refused = bench.run(&[&place[..], &NAT, &LOG, &log].concat());
    assert_eq!(refused.status.code(), Some(10), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("chmod 600"), "{said}");
}
