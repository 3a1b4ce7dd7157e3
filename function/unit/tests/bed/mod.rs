//! The test bed of a unit: a network namespace, a veth, and a unit on its far end.
#![allow(dead_code)] // each test uses its part

pub mod cases;
pub mod group;
pub mod numbers;
pub mod watched;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pando_net::packet::Port;

/// The namespace of this thread, the directory of its units, and the near end.
pub struct Bench {
    pub directory: PathBuf,
    pub near: Port,
}

/// Moves this thread into a fresh network namespace with a veth `near` - `far`. It ends with the
/// thread.
pub fn bench(name: &str) -> Option<Bench> {
    // SAFETY: plain system calls.
    if unsafe { libc::geteuid() } != 0 || unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        println!("skipped: needs root for a network namespace");
        return None;
    }
    // Otherwise the kernel's own multicast would be billed.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip("link add name near type veth peer name far");
    ip("link set near up");
    ip("link set far up");
    clear("pando-unit-");
    let directory = std::env::temp_dir().join(format!("pando-unit-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    Some(Bench { directory, near: Port::open("near", 4096).unwrap() })
}

/// Removes the directories of killed tests. Their names end with the process ids.
pub fn clear(prefix: &str) {
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let pid = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.rsplit_once('-'))
            .and_then(|(_, pid)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

pub fn ip(arguments: &str) {
    assert!(
        Command::new("ip").args(arguments.split(' ')).status().unwrap().success(),
        "ip {arguments}"
    );
}

/// Returns a UDP packet with its own flow.
pub fn frame(n: u32) -> Vec<u8> {
    let [_, a, b, c] = n.to_be_bytes();
    let mut f = vec![
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, a,
        b, c, 192, 0, 2, 9,
    ];
    f.extend([4, c, 0, 53, 0, 12, 0, 0, a, b, c, 0]);
    f
}

impl Bench {
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
        let (run, data) = (self.directory.join("run"), self.directory.join("data"));
        command
            .args(arguments)
            .arg("--run-dir")
            .arg(run)
            .arg("--data-dir")
            .arg(data)
            .output()
            .unwrap()
    }

    pub fn start(&self) {
        self.start_with("nat", &["--set", "address=203.0.113.7"]);
    }

    pub fn start_with(&self, function: &str, settings: &[&str]) {
        let module =
            format!("{}/../functions/{function}/{function}.wasm", env!("CARGO_MANIFEST_DIR"));
        self.start_at(Path::new(&module), settings);
    }

    pub fn start_at(&self, module: &Path, settings: &[&str]) {
        let place = ["--iface", "far", "--name", "n", "--detach", "--ring-frames", "4096"];
        let output = self.run(&[&["run", module.to_str().unwrap()], settings, &place].concat());
        assert!(output.status.success(), "{output:?}");
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.run(arguments);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }

    /// Sends packets and waits until all of them return translated.
    pub fn exchange(&mut self, packets: std::ops::Range<u32>) {
        let frames: Vec<Vec<u8>> = packets.map(frame).collect();
        assert_eq!(
            self.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            frames.len()
        );
        self.back(frames.len(), |f| f.get(26..30) == Some(&[203, 0, 113, 7]));
    }

    /// Waits until `count` matching packets have returned.
    pub fn back(&mut self, count: usize, such: impl Fn(&[u8]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut back = 0;
        while back < count {
            assert!(Instant::now() < deadline, "{back} of {count} packets came back");
            let mut slots = Vec::new();
            self.near.receive(32, &mut slots);
            back += slots.iter().filter(|s| such(self.near.frame(s).frame)).count();
            self.near.release(slots.len());
        }
    }

    pub fn kill(&self) {
        let pid = self.json(&["ls", "-o", "json"])[0]["pid"].as_i64().unwrap();
        // SAFETY: the unit of this test, which is alive.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        let deadline = Instant::now() + Duration::from_secs(5);
        while Path::new(&format!("/proc/{pid}/root")).exists() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "what the unit said:\n{}",
                String::from_utf8_lossy(&self.run(&["logs", "n"]).stdout)
            );
        }
        self.run(&["rm", "n"]);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
