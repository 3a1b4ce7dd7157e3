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
        let namespace = format!("log-{}", std::process::id());
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
