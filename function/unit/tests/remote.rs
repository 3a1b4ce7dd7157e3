//! A unit with an output log on another host. Needs root; without root the tests report that and
//! skip.

mod bed;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// The way between a unit and its log, which can lose the answers.
struct Way {
    cut: AtomicBool,
    /// Bytes of answers since the cut.
    lost: AtomicUsize,
}

impl Way {
    /// Passes connections of a port of this host on to the log. It ends with the test.
    fn open(port: u16, log: &'static str) -> Arc<Way> {
        let way = Arc::new(Way { cut: AtomicBool::new(false), lost: AtomicUsize::new(0) });
        let listener = TcpListener::bind(("192.0.2.1", port)).unwrap();
        let of_all = way.clone();
        std::thread::spawn(move || {
            for unit in listener.incoming().map_while(Result::ok) {
                let Ok(log) = TcpStream::connect(log) else { continue };
                let ends = [(&unit, &log), (&log, &unit)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
                for (n, (from, to)) in ends.into_iter().enumerate() {
                    let way = of_all.clone();
                    std::thread::spawn(move || way.pass(from, to, n == 1));
                }
            }
        });
        way
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, answers: bool) {
        let mut bytes = [0; 65536];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            if answers && self.cut.load(Ordering::SeqCst) {
                self.lost.fetch_add(length, Ordering::SeqCst);
            } else if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = (to.shutdown(std::net::Shutdown::Both), from.shutdown(std::net::Shutdown::Both));
    }
}

/// Returns all processes of a unit's host, those first that could start or replace others.
fn host(bench: &Bench) -> [i64; 3] {
    let (unit, standby) = (pid(bench), standby_pid(bench));
    let stat = std::fs::read_to_string(format!("/proc/{unit}/stat")).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap();
    [parent.parse().unwrap(), standby, unit]
}

fn kill_host(host: [i64; 3]) {
    host.iter().for_each(|&pid| signal(pid, libc::SIGKILL));
    let is_gone = |pid: &i64| !std::path::Path::new(&format!("/proc/{pid}/root")).exists();
    soon("the host is gone", || host.iter().all(is_gone).then_some(()));
}

/// Returns the packets that come until none is missing from `count`.
fn come(bench: &mut Bench, count: usize) -> Vec<Vec<u8>> {
    let (mut back, mut slots) = (Vec::new(), Vec::new());
    soon("packets come back", || {
        slots.clear();
        bench.near.receive(BATCH_PACKETS, &mut slots);
        back.extend(slots.iter().map(|s| bench.near.frame(s).frame.to_vec()));
        bench.near.release(slots.len());
        (back.len() >= count).then_some(())
    });
    back.sort();
    back
}

/// The unit, its standby and all of their host die between the append of a batch and its
/// acknowledgment. A unit that starts on another host sends that batch, and has the state of all
/// flows. The packets that waited on the dead host left nothing, so they are translated once.
#[test]
fn a_unit_on_another_host_takes_up_the_log() {
    let Some(mut bench) = bench("host") else { return };
    let elsewhere = Elsewhere::start(&bench, 7005);
    ip("link set lo up");
    let way = Way::open(7006, "192.0.2.2:7005");
    let nearer = ["--log", "192.0.2.1:7006", "--log-key", &elsewhere.keys];
    // It waits for the log all the time.
    let patient = ["--hang-ms", "60000"];
    bench.start_with("nat", &[&NAT[..], &LOG, &nearer, &patient].concat());
    let before = translate(&mut bench);
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));

    let first_host = host(&bench);
    way.cut.store(true, Ordering::SeqCst);
    let new: Vec<Vec<u8>> = (200..201).map(frame).collect();
    bench.near.send(&[&new[0]]);
    soon("the log has the batch", || (way.lost.load(Ordering::SeqCst) > 0).then_some(()));
    let later: Vec<Vec<u8>> = (300..310).map(frame).collect();
    bench.near.send(&later.iter().map(Vec::as_slice).collect::<Vec<_>>());
    kill_host(first_host);
    let mut slots = Vec::new();
    bench.near.receive(1, &mut slots);
    assert!(slots.is_empty(), "a packet left before the log had it");

    // Another host has nothing of the first one but the key.
    let first = bench.directory.clone();
    bench.directory = first.with_extension("other");
    std::fs::create_dir_all(&bench.directory).unwrap();
    let log = ["--log", "192.0.2.2:7005", "--log-key", &elsewhere.keys];
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    let last = come(&mut bench, 1);
    assert_eq!(translate(&mut bench), before, "each flow has its port");
    let durability = status(&bench)["durability"].clone();
    let counts = ["taken_up", "sent_again", "state_lost"].map(|name| durability[name].as_u64());
    assert_eq!(counts, [Some(201), Some(1), Some(0)], "{durability}");
    bench.near.send(&[&new[0]]);
    assert_eq!(come(&mut bench, 1), last, "the flow of the last batch has its port");
    let fresh = translate_from(&mut bench, 300);
    assert!(fresh.iter().all(|packet| !before.contains(packet) && !last.contains(packet)));

    // A death on the new host costs nothing, and neither does the next one of a host.
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    let unit = pid(&bench);
    signal(unit, libc::SIGKILL);
    assert_eq!(translate_from(&mut bench, 300), fresh);
    next_unit(&bench, unit, 3);
    kill_host(host(&bench));
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    come(&mut bench, 1);
    soon("the last batch left again", || {
        (status(&bench)["durability"]["taken_up"] == 401).then_some(())
    });
    translate_from(&mut bench, 300);

    // After an order to end, the next run begins without a state.
    assert!(bench.run(&["rm", "n"]).status.success());
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    translate_from(&mut bench, 300);
    assert_eq!(status(&bench)["durability"]["taken_up"], 0);
    std::fs::remove_dir_all(&first).unwrap();
}

/// A unit waits for its first log, since that may have a state. It answers requests meanwhile. Its
/// standby waits on after its death.
#[test]
fn a_unit_that_dies_before_its_first_log_is_followed() {
    let Some(mut bench) = bench("first") else { return };
    let mut elsewhere = Elsewhere::start(&bench, 7007);
    elsewhere.kill();
    let log = ["--log", "192.0.2.2:7007", "--log-key", &elsewhere.keys];
    bench.start_with("nat", &[&NAT[..], &LOG, &log].concat());
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    let unit = pid(&bench);
    signal(unit, libc::SIGKILL);
    let second = next_unit(&bench, unit, 3);
    let frames: Vec<Vec<u8>> = (0..32).map(frame).collect();
    bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_eq!(status(&bench)["pid"], second, "it answers");
    elsewhere.log = Elsewhere::log(&elsewhere.namespace, 7007, &elsewhere.keys);
    assert_eq!(come(&mut bench, 32).len(), 32, "the packets that waited");
    let before = translate(&mut bench);
    signal(second, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before);
    let durability = status(&bench)["durability"].clone();
    let counts = ["takeovers", "state_lost", "taken_up"].map(|name| durability[name].as_u64());
    assert_eq!(counts, [Some(2), Some(0), Some(0)], "{durability}");
}
