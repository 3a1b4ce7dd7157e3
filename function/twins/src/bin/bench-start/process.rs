//! Starts a new process.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pando_net::packet::{Port, RING_FRAMES};

use super::built;

/// Starts of each kind in a round; the figure is their median.
const STARTS: usize = 5;
/// Pause between two packets until one returns.
const PAUSE_NS: i64 = 50_000;
/// A deadline that only a defect exceeds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The namespace: a veth with the started programs on its far end.
pub struct Starts {
    near: Port,
    directory: PathBuf,
    module: PathBuf,
}

fn ip(arguments: &str) {
    let done =
        Command::new("ip").args(arguments.split(' ')).status().expect("ip is installed (iproute2)");
    assert!(done.success(), "ip {arguments}");
}

fn beside(name: &str) -> Command {
    Command::new(std::env::current_exe().expect("this program has a path").with_file_name(name))
}

impl Starts {
    /// Moves this process into a fresh network namespace.
    pub fn enter(directory: &Path) -> Starts {
        // SAFETY: no memory is involved.
        assert!(
            unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0,
            "no network namespace of its own: run it as root"
        );
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
            .expect("the kernel has IPv6 to turn off");
        ip("link add name near type veth peer name far");
        ip("link set near up");
        ip("link set far up");
        Starts {
            near: Port::open("near", 4096).expect("open near"),
            directory: directory.into(),
            module: built(directory, "nat"),
        }
    }

    /// Measures each way once, in microseconds.
    pub fn round(&mut self) -> Vec<(String, f64)> {
        let mut took: [(&str, Vec<f64>); 3] = [
            ("process: unit", vec![]),
            ("process: native", vec![]),
            ("process: native with a small ring", vec![]),
        ];
        for _ in 0..STARTS {
            for (series, times) in &mut took {
                let native = |frames: usize| {
                    let mut command = beside("bench-start-native");
                    command.args(["far", &frames.to_string()]);
                    command
                };
                times.push(self.start(match *series {
                    "process: unit" => self.unit(),
                    "process: native" => native(RING_FRAMES),
                    _ => native(512),
                }));
            }
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        took.into_iter().map(|(series, times)| (series.to_owned(), median(times))).collect()
    }

    fn unit(&self) -> Command {
        let mut command = beside("pando-unit");
        command.arg("run").arg(&self.module).args([
            "--set",
            "address=203.0.113.7",
            "--iface",
            "far",
            "--name",
            "n",
        ]);
        command
            .arg("--run-dir")
            .arg(self.directory.join("run"))
            .arg("--data-dir")
            .arg(self.directory.join("data"));
        command
    }

    /// Returns the microseconds from the order for a process until its first packet is on the wire.
    fn start(&mut self, mut command: Command) -> f64 {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let began_ns = realtime_ns();
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}: cargo build --release makes it"));
        let came_ns = self.first_packet(&mut child);
        // SAFETY: the child is not reaped yet, so its number is its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        child.wait().expect("the program ends");
        let mut slots = Vec::new();
        self.near.receive(4096, &mut slots);
        self.near.release(slots.len());
        (came_ns - began_ns) as f64 / 1e3
    }

    /// Sends packets until one returns. Returns the kernel's time of that packet.
    fn first_packet(&mut self, child: &mut Child) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        let packet = packet();
        loop {
            self.near.send(&[&packet]);
            let mut polled =
                libc::pollfd { fd: self.near.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let pause = libc::timespec { tv_sec: 0, tv_nsec: PAUSE_NS };
            // SAFETY: one valid entry, and the time lives during the call.
            unsafe { libc::ppoll(&mut polled, 1, &pause, std::ptr::null()) };
            let mut slots = Vec::new();
            self.near.receive(1, &mut slots);
            let came = slots.first().map(|slot| self.near.frame(slot));
            if let Some(came) = came.filter(|c| c.frame.get(26..30) == Some(&[203, 0, 113, 7])) {
                return came.time_ns;
            }
            self.near.release(slots.len());
            assert!(
                Instant::now() < deadline && matches!(child.try_wait(), Ok(None)),
                "no packet of a program that was started"
            );
        }
    }
}

fn realtime_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

/// Returns a UDP packet from 10.0.0.2 to 192.0.2.9.
fn packet() -> Vec<u8> {
    let mut f = vec![
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0,
        0, 2, 192, 0, 2, 9,
    ];
    f.extend([4, 1, 0, 53, 0, 12, 0, 0, 0, 0, 0, 0]);
    f
}
