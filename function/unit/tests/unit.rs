//! A unit on a veth in its own network namespace: real packets, a real kill, and the bill
//! afterwards. Needs root; without root the test reports that and skips.

#[path = "../../twins/tests/modules/mod.rs"]
mod modules;

mod bed;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pando_net::packet::Port;

use bed::bench;

/// The bill has every returned packet once, however often the unit was killed, and nothing else.
#[test]
fn the_bill_is_right_across_kills() {
    let Some(mut bench) = bench("bill") else { return };
    for kill in 0..3 {
        bench.start();
        bench.exchange(kill * 500..(kill + 1) * 500);
        bench.kill();
    }
    bench.start();
    let bill = bench.json(&["bill", "-o", "json"]);
    let billed: Vec<u64> = bill["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["functions"][0]["packets"].as_u64().unwrap())
        .collect();
    assert_eq!(billed, [500, 500, 500, 0]);
    assert_eq!(
        (&bill["owed"][0]["packets"], &bill["owed"][0]["bytes"]),
        (&1500.into(), &(1500 * 46).into())
    );
    assert_eq!(bench.json(&["ls", "-o", "json"])[0]["epoch"], 4);
}

/// A stopped unit is neither dead nor gone: its name stays taken, and `rm` ends it.
#[test]
fn a_unit_that_does_not_answer_is_no_dead_one() {
    let Some(bench) = bench("silent") else { return };
    bench.start();
    let pid = bench.json(&["ls", "-o", "json"])[0]["pid"].as_i64().unwrap() as i32;
    // SAFETY: the unit of this test, which is alive.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let text = |output: Vec<u8>| String::from_utf8(output).unwrap();
    let listed = text(bench.run(&["ls"]).stdout);
    assert!(listed.contains(&format!("silent   process {pid} does not answer")), "{listed}");
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
    let second = bench.run(&[
        "run",
        module,
        "--set",
        "address=203.0.113.7",
        "--iface",
        "far",
        "--name",
        "n",
        "--detach",
    ]);
    let said = text(second.stderr);
    assert!(
        second.status.code() == Some(6)
            && said.contains(&format!("there is a unit n: process {pid} does not answer")),
        "{said}"
    );
    assert_eq!(bench.run(&["rm", "n"]).status.code(), Some(0));
    // Its watcher reaps it.
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::path::Path::new(&format!("/proc/{pid}/root")).exists() {
        assert!(Instant::now() < deadline, "process {pid} is still there");
        std::thread::yield_now();
    }
    assert_eq!(bench.json(&["ls", "-o", "json"]), serde_json::json!([]));
}

/// A unit gets no processor for a while. The packets without room in its ring are counted, even if
/// it is then killed.
#[test]
fn what_a_ring_had_no_room_for_is_counted_and_outlives_the_unit() {
    for way in ["packet", "xdp"] {
        // Each thread has its own namespace.
        std::thread::spawn(move || overrun(way)).join().unwrap();
    }
}

fn overrun(way: &str) {
    let Some(bench) = bench(&format!("ring-{way}")) else { return };
    bench.start_with("nat", &["--set", "address=203.0.113.7", "--port", way]);
    let pid = bench.json(&["ls", "-o", "json"])[0]["pid"].as_i64().unwrap() as i32;
    let frames: Vec<Vec<u8>> = (0..6000).map(bed::frame).collect();
    // SAFETY: the unit of this test, which is alive.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    assert_eq!(
        bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        frames.len()
    );
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    let wire = Command::new("ip").args(["-j", "-s", "link", "show", "near"]).output().unwrap();
    let wire: serde_json::Value = serde_json::from_slice(&wire.stdout).unwrap();
    let dropped = wire[0]["stats64"]["tx"]["dropped"].as_u64().unwrap();
    let accounted = || {
        let owed = &bench.json(&["bill", "-o", "json"])["owed"][0];
        let [served, lost] = ["packets", "lost"].map(|word| owed[word].as_u64().unwrap());
        (served + lost + dropped, lost)
    };
    // The unit learns of the loss from one more packet, once the ring has room again.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut sent = 6000;
    while accounted().0 < sent {
        assert!(Instant::now() < deadline, "{:?} of {sent} are accounted for", accounted());
        if bench.json(&["bill", "-o", "json"])["owed"][0]["packets"].as_u64().unwrap() >= 4000
            && sent == 6000
        {
            sent += bench.near.send(&[&bed::frame(6000)]) as u64;
        }
    }
    bench.kill();
    let (all, lost) = accounted();
    assert!(
        all == sent && lost + dropped >= 6000 - 4096,
        "{all} of {sent} accounted for, {lost} lost in the ring, {dropped} on the wire"
    );
    let printed = String::from_utf8(bench.run(&["bill"]).stdout).unwrap();
    assert!(printed.lines().any(|line| line.ends_with(&format!(" {lost}"))), "{printed}");
}

/// The kernel removes the outer tag of a packet. The function receives the tag again, and the
/// output has it.
#[test]
fn packets_leave_with_the_tags_that_they_came_with() {
    let Some(mut bench) = bench("tags") else { return };
    bench.start_with("nat", &["--set", "address=203.0.113.7", "--port", "packet"]);
    for tags in [&[0x81, 0, 0, 7][..], &[0x88, 0xa8, 0, 8, 0x81, 0, 0, 7]] {
        let plain = bed::frame(9);
        let tagged = [&plain[..12], tags, &plain[12..]].concat();
        assert_eq!(bench.near.send(&[&tagged]), 1);
        let at = 26 + tags.len();
        bench.back(1, |f| {
            f.get(12..12 + tags.len()) == Some(tags) && f.get(at..at + 4) == Some(&[203, 0, 113, 7])
        });
    }
    assert_eq!(bench.json(&["bill", "-o", "json"])["owed"][0]["packets"], 2);
}

/// A user without access to a unit learns neither that it crashed nor that it is gone.
#[test]
fn another_user_hears_that_he_may_not() {
    let Some(bench) = bench("other") else { return };
    bench.start();
    let program = bench.directory.join("pando-unit");
    std::fs::copy(env!("CARGO_BIN_EXE_pando-unit"), &program).unwrap();
    for (arguments, code, says) in [
        (
            &["ls"][..],
            0,
            "n                    unknown  another user's: only root can read its state",
        ),
        (&["rm", "n"], 10, "run it as root"),
    ] {
        let mut other = Command::new("setpriv");
        other
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(arguments);
        let output = other.arg("--run-dir").arg(bench.directory.join("run")).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            output.status.code() == Some(code) && said.contains(says),
            "{arguments:?}: {} {said}",
            output.status
        );
    }
    assert_eq!(bench.json(&["ls", "-o", "json"])[0]["state"], "running");
}

/// A full disk is reported before a unit runs. A full log ends no unit.
#[test]
fn a_full_disk_is_named_and_a_full_log_ends_nothing() {
    let Some(mut bench) = bench("full") else { return };
    // SAFETY: mounts are this thread's from here on, and end with it.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    let (disk, data, unit) =
        (bench.directory.join("disk"), bench.directory.join("data"), bench.directory.join("run/n"));
    std::fs::create_dir(&disk).unwrap();
    for words in ["--make-rprivate /", &format!("-t tmpfs -o size=16k tmpfs {}", disk.display())] {
        assert!(Command::new("mount").args(words.split(' ')).status().unwrap().success());
    }
    std::fs::write(disk.join("fill"), [0; 16 << 10]).unwrap();
    std::os::unix::fs::symlink(&disk, &data).unwrap();
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
    let output = bench.run(&[
        "run",
        module,
        "--set",
        "address=203.0.113.7",
        "--iface",
        "far",
        "--name",
        "n",
        "--detach",
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("No space left on device")
            && said.contains("--data-dir"),
        "{said}"
    );
    std::fs::remove_file(data).unwrap();
    std::fs::create_dir_all(&unit).unwrap();
    std::os::unix::fs::symlink("/dev/full", unit.join("log")).unwrap();
    bench.start();
    bench.exchange(0..50);
    bench.kill();
}

/// All threads of a unit are in the sandbox, and tenants are different users.
#[test]
fn a_unit_is_behind_its_walls() {
    let Some(bench) = bench("walls") else { return };
    let mut users = Vec::new();
    for tenant in ["one", "another"] {
        bench.start_with("nat", &["--set", "address=203.0.113.7", "--tenant", tenant]);
        let pid = bench.json(&["ls", "-o", "json"])[0]["pid"].as_i64().unwrap();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let field = |name: &str| {
                status
                    .lines()
                    .find_map(|l| l.strip_prefix(name))
                    .unwrap()
                    .split_whitespace()
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                (field("Seccomp:"), field("NoNewPrivs:")),
                (vec!["2"], vec!["1"]),
                "{status}"
            );
            assert_eq!(
                (field("CapEff:"), field("CapPrm:")),
                (vec!["0000000000000000"], vec!["0000000000000000"]),
                "{status}"
            );
            assert!(field("Groups:").is_empty(), "{status}");
            users.push(field("Uid:").join(" "));
        }
        // The unit's namespace has only a loopback device that is down.
        let devices = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
        assert!(!devices.contains("far:") && devices.contains("lo:"), "{devices}");
        assert!(bench.run(&["rm", "n"]).status.success());
    }
    users.dedup();
    assert!(
        users.len() == 2 && !users.iter().any(|u| u.split(' ').any(|id| id == "0")),
        "{users:?}"
    );
}

/// If a packet makes the function trap, loop or eat memory, only that packet of its flow is lost.
/// The unit is a real one in its sandbox.
#[test]
fn a_hostile_packet_harms_its_flow_alone() {
    let Some(mut bench) = bench("hostile") else { return };
    let module =
        modules::build("hostile-unit", include_str!("../../twins/tests/hostile/hostile.c"));
    bench.start_at(&module.wasm, &["--fuel-per-packet", "200000", "--memory-mib", "8"]);
    let calm = |n: u32| modules::udp(n, b".calm");
    for (n, how) in b"LROUG".iter().enumerate() {
        let before = (0..16).map(calm);
        let frames: Vec<Vec<u8>> = before
            .chain([modules::udp(100 + n as u32, &[*how])])
            .chain((16..32).map(calm))
            .collect();
        assert_eq!(
            bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            frames.len()
        );
        bench.back(32, |f| f.ends_with(b".calm"));
        let unit = &bench.json(&["ls", "-o", "json"])[0];
        assert_eq!(unit["functions"][0]["trapped"], n + 1, "{}: {unit}", *how as char);
        assert_eq!(unit["functions"][0]["packets"], 32 * (n + 1), "{}: {unit}", *how as char);
        assert_eq!(
            (&unit["epoch"], &unit["flows"]),
            (&1.into(), &32.into()),
            "{}: {unit}",
            *how as char
        );
    }
}

/// A generated capture, replayed in copies, arrives whole at the other end, and `receive` confirms
/// it.
#[test]
fn a_replayed_capture_is_received_whole() {
    let Some(bench) = bench("replay") else { return };
    let tool = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_pando-unit")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let (capture, written) = (bench.directory.join("in.pcap"), bench.directory.join("out.pcap"));
    let made = tool(&[
        "generate",
        capture.to_str().unwrap(),
        "--flows",
        "40",
        "--seconds",
        "0.2",
        "-o",
        "json",
    ]);
    bench.start_with("policer", &["--set", "rate=1000000000", "--set", "burst=1000000000"]);
    let mut receive = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
    receive
        .args(["receive", "--iface", "near", "--interval-ms", "20", "-o", "json", "--write"])
        .arg(&written);
    let mut receive = receive.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(receive.stdout.take().unwrap())
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(&l.unwrap()).unwrap());
    lines.next(); // it receives
    let sent = tool(&[
        "replay",
        capture.to_str().unwrap(),
        "--iface",
        "near",
        "--copies",
        "3",
        "--stamp",
        "-o",
        "json",
    ]);
    let expected = 3 * made["packets"].as_u64().unwrap();
    assert_eq!((&sent["packets"], &sent["not_taken_by_the_device"]), (&expected.into(), &0.into()));
    let (mut came, deadline) = (0, Instant::now() + Duration::from_secs(20));
    while came < expected {
        assert!(Instant::now() < deadline, "{came} of {expected} came");
        came += lines.next().unwrap()["packets"].as_u64().unwrap();
    }
    // SAFETY: the child of this test, which is not reaped.
    unsafe { libc::kill(receive.id() as i32, libc::SIGTERM) };
    let last = lines.find(|l| l["last"] == true).unwrap();
    assert!(receive.wait().unwrap().success());
    assert_eq!(
        (&last["packets"], &last["others"], &last["losses"]),
        (&expected.into(), &0.into(), &serde_json::json!([]))
    );
    assert!(last["latency_ns"][0].as_u64().unwrap() > 0);
    assert_eq!(pando_traffic::pcap::read(&written).unwrap().len() as u64, expected);
}

/// With --detach, --restart leaves a process that restarts the unit until it is removed.
#[test]
fn a_detached_unit_is_started_again_when_it_crashes() {
    let Some(mut bench) = bed::bench("restart") else { return };
    bench.start_with("nat", &["--set", "address=203.0.113.7", "--restart"]);
    for n in 0..3u32 {
        bench.exchange(100 * n..100 * n + 10);
        bench.kill();
        let deadline = Instant::now() + Duration::from_secs(20);
        while bench.json(&["ls", "-o", "json"])[0]["state"] != "running" {
            assert!(Instant::now() < deadline, "it is not started again");
        }
    }
    bench.exchange(1000..1010);
    assert!(bench.run(&["rm", "n"]).status.success());
    let mine = bench.directory.to_str().unwrap().to_owned();
    let stays = || {
        let lines = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .any(|line| line.contains(&mine))
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while stays() {
        assert!(Instant::now() < deadline, "a process is left");
    }
    assert_eq!(bench.json(&["ls", "-o", "json"]), serde_json::json!([]));
}

/// Returns a frame that is short, or as long as its device allows.
fn long_or_short(n: u32) -> Vec<u8> {
    let mut frame = bed::frame(n);
    frame.resize(if n.is_multiple_of(3) { 60 } else { 8000 }, n as u8);
    frame
}

fn long_wire(name: &str) -> Option<(bed::Bench, Port)> {
    let bench = bed::bench(name)?;
    bed::ip("link set near mtu 9000");
    bed::ip("link set far mtu 9000");
    Some((bench, Port::open("far", 4096).unwrap()))
}

/// Large frames use a separate queue instead of the ring. The two stay in step, even after the
/// queue was full.
#[test]
fn large_frames_come_whole_and_in_order_or_are_counted() {
    let Some((bench, mut far)) = long_wire("large") else { return };
    const COUNT: u32 = 4000;
    assert_eq!(
        (0..COUNT).filter(|&n| bench.near.send(&[&long_or_short(n)]) == 1).count(),
        COUNT as usize
    );
    let (mut came, mut missing) = (0, Vec::new());
    let deadline = Instant::now() + Duration::from_secs(20);
    while came < COUNT {
        assert!(Instant::now() < deadline, "{came} of {COUNT} came");
        let mut slots = Vec::new();
        far.receive(64, &mut slots);
        for slot in &slots {
            match far.frame(slot).frame {
                [] => missing.push(came),
                frame => assert_eq!(frame, long_or_short(came)),
            }
            came += 1;
        }
        far.release(slots.len());
    }
    assert!(missing.iter().all(|n| *n > 500 && !n.is_multiple_of(3)), "{missing:?}");
    assert_eq!((far.too_long(), far.too_long()), (missing.len() as u64, 0));
}

/// A process took large frames from the queue and died. Those are lost, and the next process gets
/// the later ones.
#[test]
fn a_ring_that_is_adopted_is_in_step_with_its_large_frames() {
    let Some((bench, mut far)) = long_wire("step") else { return };
    let sent = [1, 2, 4, 5].map(long_or_short);
    assert_eq!(bench.near.send(&sent.each_ref().map(Vec::as_slice)), 4);
    let mut next = Port::adopt(far.share().unwrap(), "far", 4096).unwrap();
    far.receive(2, &mut Vec::new());
    let mut slots = Vec::new();
    next.receive(4, &mut slots);
    let frames: Vec<&[u8]> = slots.iter().map(|slot| next.frame(slot).frame).collect();
    assert_eq!(frames, [&[][..], &[], &sent[2], &sent[3]]);
    assert_eq!(next.too_long(), 2);
}
