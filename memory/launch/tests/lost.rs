//! Memory hosts that die, hang and come back under load: no error, no wrong byte, and no long stall
//! while one copy lives.

mod far;

use far::*;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const KEYS: u64 = 2400; // 100 MB
/// The size of far memory, and of each host.
const SIZE: &str = "256MiB";
/// The longest stall of a request because of a dead host, without the stalls of the machine itself.
const STALL_MAX: Duration = Duration::from_millis(50);
/// The longest stall because of a silent host, which is given up only after 250 ms.
const HANG_MAX: Duration = Duration::from_millis(500);
/// A host that was silent counts as steady only this long after its first answer. Until then no
/// other host is given up for its sake, because the link of this machine may have been cut.
const STEADY: Duration = Duration::from_millis(1000 + 250);

fn key(k: u64) -> Vec<u8> {
    format!("k{k}").into_bytes()
}

/// Measures how long a runnable thread waits for a processor: a busy machine must not fail the
/// test.
struct Noise {
    longest_us: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Noise {
    fn listen() -> Noise {
        let noise = Noise { longest_us: Arc::default(), over: Arc::default() };
        for _ in 0..2 {
            let (longest, over) = (noise.longest_us.clone(), noise.over.clone());
            std::thread::spawn(move || {
                while !over.load(Relaxed) {
                    let begun = Instant::now();
                    std::thread::park_timeout(Duration::from_millis(1));
                    longest.fetch_max(begun.elapsed().as_micros() as u64 - 1000, Relaxed);
                }
            });
        }
        noise
    }

    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Relaxed))
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// Returns how long the threads of these processes, and this one, were runnable without a
/// processor.
fn queued(pids: &[u32]) -> Duration {
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split(' ').nth(1).and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
    };
    let threads = pids.iter().flat_map(|pid| {
        std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten()
    });
    Duration::from_nanos(
        threads.map(|t| of(t.path().join("schedstat"))).sum::<u64>()
            + of("/proc/thread-self/schedstat".into()),
    )
}

/// A Redis on two hosts, and its expected content.
struct Load {
    redis: Redis,
    client: Client<std::os::unix::net::UnixStream>,
    versions: Vec<u64>,
    step: u64,
    longest: Duration,
    longest_raw: Duration,
    /// Redis and the hosts at the last sample.
    pids: [u32; 3],
}

impl Load {
    fn new(name: &str, hosts: &[Host; 2]) -> Load {
        let from = format!("{},{}", hosts[0].address, hosts[1].address);
        let redis = redis(name, &["--local", "25MiB", "--far", SIZE, "--from", &from], &[]);
        let mut client = redis.client();
        for k in 0..KEYS {
            assert_eq!(client.call(&[b"SET", &key(k), &value(k, 0)]), Reply::Text(b"OK".into()));
        }
        Load {
            redis,
            client,
            versions: vec![0; KEYS as usize],
            step: 1,
            longest: Duration::ZERO,
            longest_raw: Duration::ZERO,
            pids: [0; 3],
        }
    }

    /// Makes a request: a read, which is checked, or one time in four a write.
    fn request(&mut self) {
        self.step = self.step.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let k = (self.step >> 33) % KEYS;
        let version = &mut self.versions[k as usize];
        let (queued_before, begun) = (queued(&self.pids), Instant::now());
        if self.step >> 62 == 0 {
            *version += 1;
            assert_eq!(
                self.client.call(&[b"SET", &key(k), &value(k, *version)]),
                Reply::Text(b"OK".into())
            );
        } else {
            assert!(
                self.client.call(&[b"GET", &key(k)]) == Reply::Text(value(k, *version)),
                "key {k} is wrong"
            );
        }
        let took = begun.elapsed();
        self.longest_raw = self.longest_raw.max(took);
        if took > self.longest {
            // Do not count the time without a processor.
            self.longest = self
                .longest
                .max(took.saturating_sub(queued(&self.pids).saturating_sub(queued_before)));
        }
    }

    fn look_at(&mut self, hosts: &[Host; 2]) {
        self.pids = [self.redis.pid(), hosts[0].process.0.id(), hosts[1].process.0.id()];
    }

    fn until_whole(&mut self) {
        let pid = self.redis.pid();
        until("a second copy is whole again", || {
            self.request();
            figure(pid, "copies_now") == 2
        });
    }

    fn check(mut self, what: &str, stall_max: Duration, noise: &Noise) {
        for k in 0..KEYS {
            assert!(
                self.client.call(&[b"GET", &key(k)])
                    == Reply::Text(value(k, self.versions[k as usize])),
                "key {k} is wrong"
            );
        }
        println!(
            "{what}: longest {:?} ({:?} with the wait for a processor), noise {:?}",
            self.longest,
            self.longest_raw,
            noise.longest()
        );
        assert!(
            self.longest <= stall_max + noise.longest(),
            "{what}: {:?} with {:?} of noise",
            self.longest,
            noise.longest()
        );
    }
}

fn two() -> [Host; 2] {
    // Each host has room for one lease: the old one ends where the next one begins.
    std::array::from_fn(|_| host(&["--size", SIZE]))
}

#[test]
fn killed_hosts_cost_no_request_no_byte_and_no_long_stall() {
    let noise = Noise::listen();
    let (mut hosts, kills) = (two(), times("PANDO_KILLS", 20));
    let mut load = Load::new("kill", &hosts);
    for kill in 0..kills {
        let victim = kill % 2;
        load.look_at(&hosts);
        for n in 0..200 {
            if n == 60 {
                // Kill the host during requests. The other copy serves them while this host returns
                // and is rebuilt.
                hosts[victim].kill();
            }
            load.request();
        }
        let address = hosts[victim].address.clone();
        hosts[victim] = host(&["--size", SIZE, "--listen", &address]);
        load.look_at(&hosts);
        load.until_whole();
    }
    assert!(figure(load.redis.pid(), "hosts_lost") >= kills as u64);
    load.check(&format!("{kills} kills"), STALL_MAX, &noise);
}

#[test]
fn a_host_that_hangs_is_left_alone_and_filled_again() {
    let noise = Noise::listen();
    let (hosts, pauses) = (two(), times("PANDO_PAUSES", 6));
    let mut load = Load::new("hang", &hosts);
    load.look_at(&hosts);
    for pause in 0..pauses {
        let victim = hosts[pause % 2].process.0.id() as i32;
        let lost = figure(load.redis.pid(), "hosts_lost");
        unsafe { libc::kill(victim, libc::SIGSTOP) };
        until("the host is given up", || {
            load.request();
            figure(load.redis.pid(), "hosts_lost") > lost
        });
        // The host wakes with old requests in its buffers, while new ones arrive.
        unsafe { libc::kill(victim, libc::SIGCONT) };
        let awake = Instant::now();
        load.until_whole();
        while awake.elapsed() < STEADY {
            load.request();
        }
    }
    assert_eq!(figure(load.redis.pid(), "pages_bad"), 0);
    load.check(&format!("{pauses} pauses"), HANG_MAX, &noise);
}

/// The borrower's own link is cut for a moment: no host answers, and no copy is worse than another.
#[test]
fn both_hosts_are_silent_for_a_moment_and_both_stay() {
    const MOMENT: Duration = Duration::from_millis(400);
    let noise = Noise::listen();
    let hosts = two();
    let mut load = Load::new("blip", &hosts);
    for blip in 0..times("PANDO_BLIPS", 5) {
        for host in &hosts {
            unsafe { libc::kill(host.process.0.id() as i32, libc::SIGSTOP) };
        }
        let (begun, over) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                while begun.elapsed() < MOMENT {
                    std::thread::park_timeout(MOMENT.saturating_sub(begun.elapsed()));
                }
                // The order varies: the second host to wake must not be given up because the
                // first one answers.
                for k in 0..2 {
                    unsafe {
                        libc::kill(hosts[(k + blip) % 2].process.0.id() as i32, libc::SIGCONT)
                    };
                }
                over.store(true, Relaxed);
            });
            while !over.load(Relaxed) {
                load.request();
            }
        });
        (0..200).for_each(|_| load.request());
    }
    let pid = load.redis.pid();
    assert_eq!(figure(pid, "pages_bad"), 0);
    assert_eq!(
        (figure(pid, "hosts_lost"), figure(pid, "copies_now")),
        (0, 2),
        "hosts given up and whole copies, {:?} of noise",
        noise.longest()
    );
}

struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// The keys of a program on one host. 34 MB.
const FEW_KEYS: u64 = 800;

/// Starts a Redis on one host, and fills it.
fn begin(name: &str, host: &Host, extra: &[&str]) -> (Redis, Client<UnixStream>) {
    let redis = redis(
        &format!("{name}{}", extra.len()),
        &[&["--local", "16MiB", "--far", "96MiB", "--from", &host.address], extra].concat(),
        &[],
    );
    let mut client = redis.client();
    for k in 0..FEW_KEYS {
        assert_eq!(client.call(&[b"SET", &key(k), &value(k, 0)]), Reply::Text(b"OK".into()));
    }
    (redis, client)
}

/// Reads and writes all keys until `over`. Returns their versions.
fn use_keys(client: &mut Client<UnixStream>, over: &AtomicBool) -> Vec<u64> {
    let mut versions = vec![0; FEW_KEYS as usize];
    while !over.load(Relaxed) {
        for k in 0..FEW_KEYS {
            let version = &mut versions[k as usize];
            if k % 3 == 0 {
                *version += 1;
                assert_eq!(
                    client.call(&[b"SET", &key(k), &value(k, *version)]),
                    Reply::Text(b"OK".into())
                );
            }
            assert!(
                client.call(&[b"GET", &key(k)]) == Reply::Text(value(k, *version)),
                "key {k} is wrong"
            );
        }
    }
    versions
}

/// The only host of two programs is silent for a while. One program is patient enough, the other is
/// not.
fn silent(name: &str, host: &Host, silence: impl Fn(bool)) {
    let (patient, mut client) = begin(name, host, &[]);
    let (mut hasty, mut hasty_client) = begin(name, host, &["--patience", "6s"]);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        // This also runs after a panic, or the other thread would never end.
        let end = AtEnd(|| over.store(true, Relaxed));
        let versions = s.spawn(|| use_keys(&mut client, &over));
        silence(true);
        for k in 0.. {
            match hasty_client.try_call(&[b"GET", &key(k % FEW_KEYS)]) {
                Ok(reply) => assert!(reply == Reply::Text(value(k % FEW_KEYS, 0)), "a wrong byte"),
                Err(_) => break,
            }
        }
        until("the program without patience has ended", || {
            hasty.process.0.try_wait().unwrap().is_some()
        });
        assert_eq!(hasty.process.0.wait().unwrap().code(), Some(97));
        assert!(
            hasty.said().contains("held the only copy and has not answered for 6 s"),
            "{}",
            hasty.said()
        );
        until("the other says why it stands still", || {
            patient.said().contains("stands still: memory host 1")
        });
        silence(false);
        until("it goes on", || patient.said().contains("memory host 1 answers again"));
        drop(end);
        let versions = versions.join().unwrap();
        let mut client = patient.client();
        for k in 0..FEW_KEYS {
            assert!(
                client.call(&[b"GET", &key(k)]) == Reply::Text(value(k, versions[k as usize])),
                "key {k} is wrong"
            );
        }
    });
    assert_eq!(figure(patient.pid(), "pages_bad"), 0);
    assert_eq!(patient.said().matches("stands still").count(), 1, "{}", patient.said());
}

#[test]
fn the_only_host_is_paused_and_waited_for() {
    let host = host(&["--size", SIZE]);
    silent("paused", &host, |on| unsafe {
        libc::kill(host.process.0.id() as i32, if on { libc::SIGSTOP } else { libc::SIGCONT });
    });
}

#[test]
fn the_link_to_the_only_host_is_cut_and_waited_for() {
    // Make a network namespace for this thread and its children.
    assert_eq!(
        unsafe { libc::unshare(libc::CLONE_NEWNET) },
        0,
        "root is wanted: {}",
        std::io::Error::last_os_error()
    );
    let link = |state: &str| {
        assert!(
            std::process::Command::new("ip")
                .args(["link", "set", "lo", state])
                .status()
                .unwrap()
                .success()
        )
    };
    link("up");
    let host = host(&["--size", SIZE]);
    silent("cut", &host, |on| link(if on { "down" } else { "up" }));
}
