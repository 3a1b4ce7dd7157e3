//! Compares a unit on AF_XDP with a unit on AF_PACKET, on a veth. Its driver runs XDP programs, but
//! copies. Needs root; without root the tests report that and skip.

mod bed;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use pando_flow::checksum;
use pando_net::packet::Port;
use pando_traffic::{Shape, generate};

use bed::{Bench, bench, ip};

const SHAPING_NOTHING: [&str; 4] = ["--set", "rate=1000000000", "--set", "burst=1000000000"];

impl Bench {
    /// Returns the number of this device's XDP program, if any.
    fn program(&self, device: &str) -> Option<u32> {
        let shown = std::process::Command::new("ip")
            .args(["-j", "-d", "link", "show", device])
            .output()
            .unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown[0]["xdp"]["prog"]["id"].as_u64().map(|id| id as u32)
    }

    fn unit(&self) -> serde_json::Value {
        self.json(&["ls", "-o", "json"])[0].take()
    }

    /// Sends frames. Returns the output once the unit has handled all of them and all have arrived.
    fn through(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (mut back, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        for some in frames.chunks(32) {
            assert_eq!(
                self.near.send(&some.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                some.len()
            );
            self.drain(&mut back);
        }
        loop {
            self.drain(&mut back);
            let unit = self.unit();
            let fates: Vec<(String, u64)> = serde_json::from_value(unit["fates"].clone()).unwrap();
            let passed = fates
                .iter()
                .filter(|(word, _)| word == "passed" || word == "unseen")
                .map(|(_, n)| n)
                .sum::<u64>();
            if fates.iter().map(|(_, n)| n).sum::<u64>() == frames.len() as u64
                && back.len() as u64 == passed
            {
                return back;
            }
            assert!(
                Instant::now() < deadline,
                "{} of {} came back: {unit}",
                back.len(),
                frames.len()
            );
        }
    }

    fn drain(&mut self, into: &mut Vec<Vec<u8>>) {
        loop {
            let mut slots = Vec::new();
            self.near.receive(32, &mut slots);
            into.extend(slots.iter().map(|slot| self.near.frame(slot).frame.to_vec()));
            self.near.release(slots.len());
            if slots.is_empty() {
                return;
            }
        }
    }
}

/// Keeps this thread, and its later children, on one processor. A missing processor changes
/// nothing.
fn work_on(processor: usize) {
    // SAFETY: an all-zero set is valid, and lives during the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Both ways produce the same bytes in the same order at the same price.
#[test]
fn both_ways_give_the_same_packets_and_the_same_bill() {
    let Some(mut bench) = bench("ways") else { return };
    // A thread that changes its processor reorders packets of a veth.
    work_on(0);
    let made = generate(&Shape { flows: 120, seconds: 1.0, ..Shape::default() });
    let frames: Vec<Vec<u8>> = made.packets.into_iter().map(|p| p.frame).collect();
    // A flow's NAT port depends on the other packets of its batch, except for packets that take
    // theirs.
    let outward: Vec<Vec<u8>> =
        frames.iter().filter(|f| f[12] == 8 && f[26] == 10).cloned().collect();
    let nat = ["--set", "address=203.0.113.7", "--set", "inside=10.0.0.0/8"];
    for (n, (function, settings, frames)) in
        [("nat", nat, &outward), ("policer", SHAPING_NOTHING, &frames)].into_iter().enumerate()
    {
        let mut came = Vec::new();
        for way in ["packet", "xdp"] {
            bench.start_with(function, &[&settings[..], &["--port", way]].concat());
            let how = bench.unit()["ways"][0].as_str().unwrap().to_owned();
            assert_eq!(
                how,
                if way == "xdp" {
                    "far: AF_XDP, copied by the kernel, 1 queue"
                } else {
                    "far: AF_PACKET"
                }
            );
            came.push(bench.through(frames));
            assert!(bench.run(&["rm", "n"]).status.success());
        }
        assert!(
            came[0].len() == frames.len(),
            "{function}: {} of {} went through",
            came[0].len(),
            frames.len()
        );
        let differs = came[0].iter().zip(&came[1]).find(|(packet, xdp)| packet != xdp);
        assert!(
            came[0] == came[1],
            "{function}: {} and {} packets; {differs:?}",
            came[0].len(),
            came[1].len()
        );
        let bill = bench.json(&["bill", "-o", "json"]);
        // A call has its own cost, so fuel depends on the batches.
        let counts = |way: usize| {
            ["packets", "bytes", "trapped"]
                .map(|word| bill["records"][2 * n + way]["functions"][0][word].clone())
        };
        assert_eq!(counts(0), counts(1));
        assert_eq!((&counts(0)[0], &bill["owed"][n]["lost"]), (&frames.len().into(), &0.into()));
    }
}

/// A packet from a program of this machine has a partial checksum on a veth, and an XDP program is
/// not informed.
#[test]
fn checksums_that_were_left_to_a_device_are_completed() {
    for way in ["packet", "xdp"] {
        std::thread::spawn(move || half_a_checksum(way)).join().unwrap();
    }
}

fn half_a_checksum(way: &str) {
    let Some(mut bench) = bench(&format!("half-{way}")) else { return };
    bench.start_with("policer", &[&SHAPING_NOTHING[..], &["--port", way]].concat());
    ip("address add 10.9.0.1/24 dev near");
    ip("neighbor add 10.9.0.2 lladdr 02:00:00:00:00:09 dev near");
    let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
    for n in 0..20u8 {
        socket.send_to(&vec![n; 100 + usize::from(n)], "10.9.0.2:53").unwrap();
    }
    let ours = |frame: &[u8]| frame.get(30..34) == Some(&[10, 9, 0, 2]);
    bench.back(20, |frame| ours(frame) && checksum::transport_is_right(frame) == Some(true));
}

/// A program left on a device would take its packets forever.
#[test]
fn a_killed_unit_leaves_no_program() {
    let Some(mut bench) = bench("left") else { return };
    let start =
        |bench: &Bench| bench.start_with("nat", &["--set", "address=203.0.113.7", "--port", "xdp"]);
    start(&bench);
    let program = bench.program("far").expect("a program is attached");
    bench.exchange(0..100);
    bench.kill();
    let deadline = Instant::now() + Duration::from_secs(10);
    while bench.program("far").is_some() || is_loaded(program) {
        assert!(Instant::now() < deadline, "program {program} is still there");
    }
    // The kernel has the device again.
    let mut far = Port::open("far", 512).unwrap();
    assert_eq!(bench.near.send(&[&bed::frame(1)]), 1);
    let mut slots = Vec::new();
    while slots.is_empty() {
        assert!(Instant::now() < deadline, "the packet does not come to the kernel");
        far.receive(1, &mut slots);
    }
    drop(far);
    // The next unit also has it, and a unit that ends normally leaves nothing.
    start(&bench);
    bench.exchange(100..200);
    assert!(bench.run(&["rm", "n"]).status.success());
    while bench.program("far").is_some() {
        assert!(Instant::now() < deadline, "a unit that ended has left its program");
    }
    let bill = bench.json(&["bill", "-o", "json"]);
    assert_eq!(bill["owed"][0]["packets"], 200);
}

/// Returns whether the kernel still has a program of this number.
fn is_loaded(program: u32) -> bool {
    const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
    let question = [program, 0, 0];
    // SAFETY: the question has the given size; a returned descriptor is closed.
    unsafe {
        let fd =
            libc::syscall(libc::SYS_bpf, BPF_PROG_GET_FD_BY_ID, &question, size_of_val(&question));
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// The packets of a queue without a socket would bypass the function.
#[test]
fn packets_of_all_queues_come() {
    let Some(mut bench) = bench("queues") else { return };
    ip("link add many numtxqueues 2 numrxqueues 2 type veth peer name wide numtxqueues 2 \
         numrxqueues 2");
    ip("link set many up");
    ip("link set wide up");
    let module = format!("{}/../functions/policer/policer.wasm", env!("CARGO_MANIFEST_DIR"));
    let place =
        ["--iface", "wide", "--name", "n", "--detach", "--ring-frames", "4096", "--port", "xdp"];
    let started = bench.run(&[&["run", &module], &SHAPING_NOTHING[..], &place].concat());
    assert!(started.status.success(), "{started:?}");
    let said = String::from_utf8(started.stdout).unwrap();
    assert!(said.contains("wide: AF_XDP, copied by the kernel, 2 queues"), "{said}");
    bench.near = Port::open("many", 4096).unwrap();
    // A packet socket sends by its processor's queue.
    for processor in 0..2 {
        work_on(processor);
        let frames: Vec<Vec<u8>> = (0..500).map(bed::frame).collect();
        assert_eq!(bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()), 500);
        bench.back(500, |_| true);
    }
    assert_eq!(bench.unit()["functions"][0]["packets"], 1000);
}

/// Impossible settings are refused before the first packet, with the next step.
#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let Some(bench) = bench("refused") else { return };
    ip("link add many mtu 9000 type veth peer name wide mtu 9000");
    let module = format!("{}/../functions/nat/nat.wasm", env!("CARGO_MANIFEST_DIR"));
    let try_on = |name: &str, device: &str, more: &[&str]| {
        let run = [
            "run",
            &module,
            "--set",
            "address=203.0.113.7",
            "--name",
            name,
            "--detach",
            "--ring-frames",
            "512",
            "--iface",
            device,
        ];
        let output = bench.run(&[&run[..], more].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let refused = |device: &str, more: &[&str], code: i32, words: &[&str]| {
        let (got, said) = try_on("m", device, &[&["--port", "xdp"][..], more].concat());
        assert!(
            got == code && words.iter().all(|word| said.contains(word)),
            "{device}: {got}: {said}"
        );
    };
    refused("wide", &[], 3, &["ip link set wide mtu 3822", "9000", "--port packet"]);
    refused("lo", &[], 3, &["lo", "--port packet"]);
    refused("none", &[], 4, &["ip link"]);
    refused("far", &["--durability", "log"], 3, &["--port packet"]);
    bench.start_with("nat", &["--set", "address=203.0.113.7", "--port", "xdp"]);
    refused("far", &[], 6, &["another XDP program", "--port packet"]);
    // Without --port the unit picks its own way: a veth is no physical device.
    let (code, said) = try_on("m", "near", &[]);
    assert_eq!(code, 0, "{said}");
    let units = bench.json(&["ls", "-o", "json"]);
    assert_eq!(
        (&units[0]["ways"][0], &units[1]["ways"][0]),
        (&"near: AF_PACKET".into(), &"far: AF_XDP, copied by the kernel, 1 queue".into())
    );
    assert!(bench.run(&["rm", "m"]).status.success());
}
