//! Measures the processor time of a packet through the NAT, against nftables' masquerade and XDP
//! forwarding. The unit runs once by AF_PACKET and once by AF_XDP.
//!
//! Each way has its own router, and all routers exist at the same time. Slices of 250 ms take
//! turns, so other load on the machine affects all ways alike. A round with stolen processor time
//! is repeated.
//!
//! A slice's cost is the time of the generator's thread while it sends, of the unit and of
//! ksoftirqd. The kernel works on a veth's packet in the sender's context; the sender's sleep does
//! not count. The cost of the unit and of ksoftirqd in a slice without packets is subtracted. So is
//! the cost of the same packets at a router that ignores them, in the adjacent slice.
//!
//! Prints CSV: round, way, burst, nanoseconds per packet, share that arrived.

#[path = "../tests/router/mod.rs"]
mod router;
#[path = "../../twins/src/steal.rs"]
mod steal;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pando_net::packet::Port;

use router::{Router, SERVER, frame};

/// Slices of each way under each load.
const ROUNDS: usize = 48;
/// Uncounted slices before the others, for the first-time work of routers and units.
const WARMING: usize = 2;
const FLOWS: u16 = 64;
/// If no packet arrives for this time, even on a busy machine, the missing packets are lost.
const DRAINED: Duration = Duration::from_millis(300);
const PAYLOAD: [u8; 300] = [7; 300];
const MASQUERADE: &str = "add table ip t; add chain ip t c { type nat hook postrouting priority \
    100; }; add rule ip t c oifname r_out masquerade";
const NOTHING: &str = "add table ip t";
/// The packets per send, the time between two sends, and the number of sends. 100,000 packets a
/// second, and 20,000 a second one at a time, each of which wakes the unit.
const LOADS: [(usize, Duration, usize); 2] =
    [(32, Duration::from_micros(320), 780), (1, Duration::from_micros(50), 5000)];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ignored,
    Nftables,
    Xdp,
    Unit,
    UnitXdp,
}

const XDP: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int forward(struct xdp_md *ctx)
{
	unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (p + 34 > end || p[12] != 8 || p[13] != 0 || p[22] <= 1)
		return XDP_PASS;
	p[22]--;
	unsigned int sum = (p[24] << 8 | p[25]) + 0x100;
	sum += sum >> 16;
	p[24] = sum >> 8;
	p[25] = sum;
	return bpf_redirect(OUT, 0);
}
char _license[] SEC("license") = "GPL";
"#;

/// Loads the forwarding program on the router's inner device.
fn attach_xdp(router: &Router) {
    let directory = std::env::temp_dir().join(format!("bench-cpu-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (source, object) = (directory.join("x.c"), directory.join("x.o"));
    let index = router.there("ip", "-o link show dev r_out");
    fs::write(&source, XDP.replace("OUT", index.split(':').next().unwrap())).unwrap();
    let clang = Command::new("clang")
        .args(["-O2", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    assert!(clang.unwrap().success());
    router.there("ip", &format!("link set dev r_in xdpgeneric obj {} sec xdp", object.display()));
    fs::remove_dir_all(directory).unwrap();
}

/// Returns the directory of a way's unit.
fn place(way: Way) -> PathBuf {
    std::env::temp_dir().join(format!("bench-cpu-{way:?}-{}", std::process::id()))
}

fn start_unit(router: &Router, way: Way, port: &str) -> (Child, u32) {
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
    let place = place(way);
    let places = ["--run-dir", "run", "--data-dir", "data"].map(|p| {
        if p.starts_with('-') { p.to_owned() } else { place.join(p).display().to_string() }
    });
    let mut command = Command::new("nsenter");
    command.arg(router.net()).arg(env!("CARGO_BIN_EXE_pando-unit")).args([
        "run",
        module,
        "--set",
        "address=203.0.113.7",
    ]);
    command
        .args(["--iface", "r_in", "--out", "r_out", "--name", "cpu", "--port", port])
        .args(places)
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said)
        .expect("the unit says that it runs");
    let inside = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    (child, inside.trim().parse().expect("the watcher has one child: the unit"))
}

/// Returns the processor time of all threads of a process, in nanoseconds.
fn process_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|t| {
            fs::read_to_string(t.path().join("schedstat"))
                .ok()?
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

fn softirq_pids() -> Vec<u32> {
    let named = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.starts_with("ksoftirqd/"))
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter(named)
        .collect()
}

/// Returns the processor time of this thread, in nanoseconds.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the number of packets that arrived at `outside` in this thread's namespace.
fn arrived() -> u64 {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = devices
        .lines()
        .find_map(|l| l.trim().strip_prefix("outside:"))
        .expect("the device is there");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A way with its router, in its own thread and namespace.
struct Stand {
    way: Way,
    router: Router,
    unit: Option<(Child, u32)>,
    frames: Vec<Vec<u8>>,
    busy: Vec<u32>,
}

impl Stand {
    fn new(way: Way) -> Stand {
        let mut router = Router::new(if way == Way::Nftables { MASQUERADE } else { NOTHING })
            .expect("needs root");
        // A ring on the outer device would add a cost of the measurement itself.
        router.outside = Port::open("lo", 512).unwrap();
        let unit = match way {
            Way::Unit => Some(start_unit(&router, way, "packet")),
            Way::UnitXdp => Some(start_unit(&router, way, "xdp")),
            Way::Xdp => {
                attach_xdp(&router);
                None
            }
            _ => None,
        };
        let mut frames: Vec<Vec<u8>> = (0..FLOWS)
            .map(|n| frame(([10, 0, 0, 2], 5000 + n), (SERVER, 80), None, 0, &PAYLOAD, true))
            .collect();
        if matches!(way, Way::Unit | Way::UnitXdp | Way::Ignored) {
            frames.iter_mut().for_each(|f| f[5] = 0x77); // for another host: the kernel ignores it
        }
        let mut busy: Vec<u32> = softirq_pids();
        busy.extend(unit.as_ref().map(|u| u.1));
        Stand { way, router, unit, frames, busy }
    }

    /// Returns the processor time of all processes except the generator.
    fn others(&self) -> u64 {
        self.busy.iter().map(|&pid| process_ns(pid)).sum()
    }

    /// Runs a slice. Returns nanoseconds per packet and the share that arrived.
    fn slice(&mut self, (burst, gap, turns): (usize, Duration, usize)) -> (f64, f64) {
        let (idle, since) = (self.others(), Instant::now());
        std::thread::sleep(gap * turns as u32 / 4);
        let idle_share = (self.others() - idle) as f64 / since.elapsed().as_nanos() as f64;
        let (before, arrived_before, start) = (self.others(), arrived(), Instant::now());
        let (mut sent, mut own) = (0, 0);
        for turn in 0..turns {
            let batch: Vec<&[u8]> = (0..burst)
                .map(|n| self.frames[(turn * burst + n) % self.frames.len()].as_slice())
                .collect();
            let began = thread_ns();
            sent += self.router.inside.send(&batch);
            own += thread_ns() - began;
            if let Some(left) = (gap * (turn as u32 + 1)).checked_sub(start.elapsed()) {
                std::thread::sleep(left);
            }
        }
        // Packets in the unit's ring still cost the unit time. The generator's wait does not count.
        let (mut came, mut last) = (arrived(), Instant::now());
        while self.way != Way::Ignored
            && came - arrived_before < sent as u64
            && last.elapsed() < DRAINED
        {
            std::thread::sleep(Duration::from_millis(1));
            let before = std::mem::replace(&mut came, arrived());
            last = if came > before { Instant::now() } else { last };
        }
        let others =
            (self.others() - before) as f64 - idle_share * start.elapsed().as_nanos() as f64;
        ((own as f64 + others) / sent as f64, (arrived() - arrived_before) as f64 / sent as f64)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let Some((watcher, pid)) = &mut self.unit else { return };
        // SAFETY: the watcher is this process's child; the unit is the watcher's and ends with it.
        unsafe { libc::kill(watcher.id() as i32, libc::SIGTERM) };
        watcher.wait().unwrap();
        assert!(
            !fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false),
            "the unit outlives its watcher"
        );
        let _ = fs::remove_dir_all(place(self.way));
    }
}

/// A requested slice, and the channel for its result.
type Turn = ((usize, Duration, usize), Sender<(f64, f64)>);

/// Starts a thread that measures a way in its turns.
fn stand(way: Way) -> (Sender<Turn>, JoinHandle<()>) {
    let (turns, mine) = channel::<Turn>();
    let thread = std::thread::spawn(move || {
        let mut stand = Stand::new(way);
        for (load, answer) in mine {
            answer.send(stand.slice(load)).expect("somebody waits for it");
        }
    });
    (turns, thread)
}

fn main() {
    println!("round,way,burst,ns_per_packet,arrived");
    let ways = [Way::Ignored, Way::Nftables, Way::Xdp, Way::Unit, Way::UnitXdp];
    let stands = ways.map(|way| (way, stand(way)));
    for load in LOADS {
        for round in 0..ROUNDS + WARMING {
            let slices = steal::undisturbed(|| {
                let slice = |at: usize| {
                    let (way, (turns, _)) = &stands[(round + at) % stands.len()];
                    let (answer, mine) = channel();
                    turns.send((load, answer)).expect("it measures");
                    (way, mine.recv().expect("the measurement"))
                };
                (0..stands.len()).map(slice).collect::<Vec<_>>()
            });
            for (way, (ns, share)) in slices {
                if let Some(round) = round.checked_sub(WARMING) {
                    println!("{round},{way:?},{},{ns:.0},{share:.4}", load.0);
                }
            }
        }
    }
    for (_, (turns, thread)) in stands {
        drop(turns);
        thread.join().expect("the way is taken down");
    }
}
