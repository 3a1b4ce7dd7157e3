//! The test bed of the runs: a namespace, two veths, a unit on one end, and the load from the
//! other.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pando_abi::BATCH_PACKETS;
use pando_net::packet::Port;
use serde_json::Value;

/// Flows of the load.
pub const FLOWS: usize = 1000;
/// Frames of every ring: more than arrive during a recovery.
pub const RING_FRAMES: usize = 32_768;
/// The file with the key of the log over TCP.
pub const KEYS: &str = "/tmp/bench-recovery.keys";
/// A deadline for packets that only a defect exceeds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The namespace and its contents.
pub struct Bed {
    directory: PathBuf,
    /// The end that sends the load.
    pub near: Port,
}

fn ip(arguments: &str) {
    let done =
        Command::new("ip").args(arguments.split(' ')).status().expect("ip is installed (iproute2)");
    assert!(done.success(), "ip {arguments}");
}

impl Bed {
    /// Moves this process into a fresh network namespace: loopback, `near` - `far`, `again` -
    /// `replay`.
    pub fn enter() -> Bed {
        // SAFETY: no memory is involved.
        assert!(
            unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0,
            "no network namespace of its own: run it as root"
        );
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
            .expect("the kernel has IPv6 to turn off");
        ip("link set lo up");
        for (one, other) in [("near", "far"), ("again", "replay")] {
            ip(&format!("link add name {one} type veth peer name {other}"));
            ip(&format!("link set {one} up"));
            ip(&format!("link set {other} up"));
        }
        let directory = std::env::temp_dir().join(format!("bench-recovery-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        Bed { directory, near: Port::open("near", RING_FRAMES).expect("open near") }
    }

    fn program() -> PathBuf {
        std::env::current_exe().expect("this program has a path").with_file_name("pando-unit")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let places = [("--run-dir", "run"), ("--data-dir", "data")]
            .map(|(flag, name)| [flag.into(), self.directory.join(name)]);
        let program = Self::program();
        let ran = Command::new(&program).args(arguments).args(places.concat()).output();
        ran.unwrap_or_else(|e| {
            panic!("{}: {e}: cargo build --release -p pando-unit makes it", program.display())
        })
    }

    /// Starts a NAT and waits until its standby, if any, is ready.
    pub fn start(&self, durability: &[&str]) {
        let nat = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
        let frames = RING_FRAMES.to_string();
        let place = [
            "run",
            nat,
            "--set",
            "address=203.0.113.7",
            "--iface",
            "far",
            "--name",
            "n",
            "-d",
            "--ring-frames",
            &frames,
        ];
        let _ = std::fs::remove_dir_all(self.directory.join("data"));
        let started = self.run(&[&place[..], durability].concat());
        assert!(started.status.success(), "{started:?}");
        let units = if durability.is_empty() { 1 } else { 2 };
        let deadline = Instant::now() + PATIENCE;
        while self.json(&["bill", "-o", "json"])["records"].as_array().map_or(0, Vec::len) < units {
            assert!(Instant::now() < deadline, "no standby");
        }
    }

    /// Stops the unit.
    pub fn stop(&mut self) {
        assert!(self.run(&["rm", "n"]).status.success(), "the unit ends");
        let mut slots = Vec::new();
        self.near.receive(RING_FRAMES, &mut slots);
        self.near.release(slots.len());
    }

    /// Starts an output log, as on another host.
    pub fn log(&self, address: &str) -> Child {
        let made = Command::new(Self::program()).args(["log", "--new-key", "default"]).output();
        let keys = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(KEYS);
        keys.and_then(|mut file| file.write_all(&made?.stdout)).expect("make a key");
        let mut log = Command::new(Self::program())
            .args(["log", "--listen", address, "--keys", KEYS])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a log");
        let mut line = String::new();
        let out = log.stdout.as_mut().expect("it is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)
            .expect("the log speaks");
        assert!(line.contains("listens"), "{line}");
        log
    }

    /// Stops the log and removes its files.
    pub fn end(self, mut log: Child) {
        let _ = log.kill();
        let _ = log.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = std::fs::remove_file(KEYS);
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.run(arguments).stdout).unwrap_or_default()
    }

    /// Returns the unit's status.
    pub fn status(&self) -> Value {
        self.json(&["ls", "-o", "json"])[0].clone()
    }

    /// Returns the status of the unit's log, once a standby follows it.
    pub fn followed(&self) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.status()["durability"].clone();
            if said["takeovers"].as_u64() >= Some(1) {
                return said;
            }
            assert!(Instant::now() < deadline, "no standby has followed: {said}");
        }
    }

    /// Kills a process of this bed.
    pub fn kill(&self, pid: i64) {
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "the unit lives");
        // SAFETY: plain system call.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

/// Returns a UDP packet of 128 bytes with its own flow.
fn frame(n: usize) -> Vec<u8> {
    let mut f = vec![0; 128];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    f[14..34].copy_from_slice(&[
        0x45,
        0,
        0,
        114,
        0,
        0,
        0,
        0,
        64,
        17,
        0,
        0,
        10,
        0,
        (n >> 8) as u8,
        n as u8,
        192,
        0,
        2,
        9,
    ]);
    f[34..42].copy_from_slice(&[4, n as u8, 0, 53, 0, 94, 0, 0]);
    f
}

/// Packets of all flows in turn.
pub struct Load {
    /// Packet `n` of the load is `frames[n % FLOWS]`.
    pub frames: Vec<Vec<u8>>,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were returned.
    pub back: u64,
    /// The longest time between two successive returned packets.
    pub silence_ns: u64,
    last_ns: u64,
}

impl Load {
    /// Returns a load that has not begun.
    pub fn new() -> Load {
        Load {
            frames: (0..FLOWS).map(frame).collect(),
            sent: 0,
            back: 0,
            silence_ns: 0,
            last_ns: 0,
        }
    }

    /// Sends the next `count` packets.
    pub fn send(&mut self, near: &mut Port, count: usize) {
        let frames: Vec<&[u8]> =
            (0..count).map(|n| self.frames[(self.sent as usize + n) % FLOWS].as_slice()).collect();
        assert_eq!(near.send(&frames), count, "the veth takes all");
        self.sent += count as u64;
    }

    /// Receives the returned packets.
    pub fn receive(&mut self, near: &mut Port) {
        let mut slots = Vec::with_capacity(8 * BATCH_PACKETS);
        near.receive(8 * BATCH_PACKETS, &mut slots);
        for slot in &slots {
            let time_ns = near.frame(slot).time_ns;
            if self.last_ns > 0 {
                self.silence_ns = self.silence_ns.max(time_ns.saturating_sub(self.last_ns));
            }
            self.last_ns = time_ns;
        }
        self.back += slots.len() as u64;
        near.release(slots.len());
        if slots.is_empty() {
            std::thread::yield_now();
        }
    }

    /// Waits until all packets are returned.
    pub fn settle(&mut self, near: &mut Port) {
        let deadline = Instant::now() + PATIENCE;
        while self.back < self.sent {
            assert!(Instant::now() < deadline, "{} of {} packets came back", self.back, self.sent);
            self.receive(near);
        }
    }

    /// Sends one packet of each flow and waits for it.
    pub fn establish(&mut self, near: &mut Port) {
        self.send(near, FLOWS);
        self.settle(near);
    }

    /// Sends `rate` packets per second for `time`.
    pub fn offer(&mut self, near: &mut Port, rate: u64, time: Duration) {
        let (began, first) = (Instant::now(), self.sent);
        while began.elapsed() < time {
            self.keep(near, rate, began, first);
        }
    }

    /// Sends the packets that are due since packet `first`, and receives the returned ones.
    pub fn keep(&mut self, near: &mut Port, rate: u64, began: Instant, first: u64) {
        let due = ((began.elapsed().as_secs_f64() * rate as f64) as u64)
            .saturating_sub(self.sent - first);
        if due >= 16 {
            self.send(near, due.min(128) as usize);
        }
        self.receive(near);
    }
}
