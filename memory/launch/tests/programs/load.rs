//! The load of `bench/memory/*`: fills a Redis and asks it, every answer checked.
//!
//! `load fill-get|fill-lrange|get|lrange|set|set-beside-save SOCKET COUNT RANDOM_PERCENT SECONDS
//! CLIENTS SEED`: values are RANDOM_PERCENT random bytes, the rest zeros (100: incompressible). The
//! last one begins a BGSAVE and ends with it. A measurement prints one JSON line: requests per
//! second, p50 and p99 in microseconds, wrong answers.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const LIST_ELEMENTS: u64 = 200;
const ELEMENT_BYTES: usize = 1024;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes of a value: in every 64, the first `percent` are random.
fn content(key: u64, bytes: usize, percent: usize) -> Vec<u8> {
    let random = 64 * percent / 100;
    let mut out = vec![0; bytes];
    for (i, chunk) in out.chunks_mut(64).enumerate() {
        for (j, word) in chunk[..random].chunks_mut(8).enumerate() {
            let w = mix(key << 24 ^ (i * 8 + j) as u64).to_le_bytes();
            word.copy_from_slice(&w[..word.len()]);
        }
    }
    out
}

/// The paper's sizes in equal shares.
fn value(key: u64, percent: usize) -> Vec<u8> {
    content(key, 4096 << (key % 6), percent)
}

fn element(list: u64, i: u64, percent: usize) -> Vec<u8> {
    content(list << 8 ^ i ^ 1 << 40, ELEMENT_BYTES, percent)
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(path: &str) -> Client {
        Client(BufReader::with_capacity(
            256 << 10,
            UnixStream::connect(path).expect("redis listens"),
        ))
    }

    fn send(&mut self, args: &[&[u8]]) {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for a in args {
            out.extend(format!("${}\r\n", a.len()).bytes());
            out.extend(*a);
            out.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&out).expect("redis reads");
    }

    fn line(&mut self) -> String {
        let mut s = String::new();
        std::io::BufRead::read_line(&mut self.0, &mut s).expect("redis answers");
        assert!(!s.starts_with('-') && !s.is_empty(), "redis says {s:?}");
        s.trim_end().to_string()
    }

    /// One bulk string into a buffer; returns its length.
    fn bulk(&mut self, into: &mut Vec<u8>) -> usize {
        let n: usize = self.line()[1..].parse().expect("a value");
        into.resize(n + 2, 0);
        self.0.read_exact(into).expect("redis answers");
        n
    }
}

fn fill(c: &mut Client, lists: bool, count: u64, percent: usize) {
    for k in 0..count {
        if lists {
            let elements: Vec<Vec<u8>> =
                (0..LIST_ELEMENTS).map(|i| element(k, i, percent)).collect();
            let name = format!("l{k}");
            let mut args: Vec<&[u8]> = vec![b"RPUSH", name.as_bytes()];
            args.extend(elements.iter().map(|e| e.as_slice()));
            c.send(&args);
        } else {
            c.send(&[b"SET", format!("k{k}").as_bytes(), &value(k, percent)]);
        }
        c.line();
    }
}

/// One request; false if the answer was wrong. Length and first bytes are always checked, all of it
/// one time in 16.
fn request(
    c: &mut Client,
    lists: bool,
    k: u64,
    percent: usize,
    thorough: bool,
    buffer: &mut Vec<u8>,
) -> bool {
    if !lists {
        c.send(&[b"GET", format!("k{k}").as_bytes()]);
        let n = c.bulk(buffer);
        let all = if thorough { value(k, percent) } else { content(k, 64, percent) };
        return n == 4096 << (k % 6) && buffer[..all.len()] == all;
    }
    c.send(&[b"LRANGE", format!("l{k}").as_bytes(), b"0", b"99"]);
    let n: u64 = c.line()[1..].parse().expect("a list");
    let mut right = n == 100;
    for i in 0..n {
        let bytes = c.bulk(buffer);
        right &= bytes == ELEMENT_BYTES
            && (!(thorough || i % 25 == 0) || buffer[..bytes] == element(k, i, percent));
    }
    right
}

/// Writes the same value again, so that a later GET finds the expected bytes.
fn set(c: &mut Client, k: u64, percent: usize) -> bool {
    c.send(&[b"SET", format!("k{k}").as_bytes(), &value(k, percent)]);
    c.line() == "+OK"
}

/// Begins a snapshot.
fn save(c: &mut Client) {
    c.send(&[b"BGSAVE"]);
    c.line();
}

/// Whether the last snapshot is still being written; it must not have failed.
fn is_saving(c: &mut Client) -> bool {
    c.send(&[b"INFO", b"persistence"]);
    let mut info = vec![];
    c.bulk(&mut info);
    let info = String::from_utf8_lossy(&info);
    assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
    info.contains("rdb_bgsave_in_progress:1")
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let [what, socket, count, percent, seconds, clients, seed] = &a[..] else {
        panic!("see the source for the arguments")
    };
    let (count, percent, lists) = (
        count.parse::<u64>().unwrap(),
        percent.parse::<usize>().unwrap(),
        what.ends_with("lrange"),
    );
    if what.starts_with("fill") {
        return fill(&mut Client::new(socket), lists, count, percent);
    }
    let time = Duration::from_secs_f64(seconds.parse().unwrap());
    let clients: u64 = clients.parse().unwrap();
    let seed: u64 = seed.parse().unwrap();
    let (sets, saves) = (what.starts_with("set"), what == "set-beside-save");
    let mut saver = saves.then(|| Client::new(socket));
    if let Some(c) = &mut saver {
        save(c);
    }
    let begun = Instant::now();
    let workers: Vec<_> = (0..clients)
        .map(|t| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                let (mut c, mut buffer, mut took, mut wrong, mut n) =
                    (Client::new(&socket), vec![], vec![], 0u64, 0u64);
                while n == 0 || begun.elapsed() < time {
                    n += 1;
                    let k = mix(seed << 32 ^ t << 24 ^ n) % count;
                    let at = Instant::now();
                    let right = match sets {
                        true => set(&mut c, k, percent),
                        false => {
                            request(&mut c, lists, k, percent, n.is_multiple_of(16), &mut buffer)
                        }
                    };
                    wrong += !right as u64;
                    took.push(at.elapsed().as_nanos() as u64);
                }
                (took, wrong)
            })
        })
        .collect();
    let (mut took, mut wrong) = (vec![], 0);
    for w in workers {
        let (t, bad) = w.join().unwrap();
        took.extend(t);
        wrong += bad;
    }
    let rate = took.len() as f64 / begun.elapsed().as_secs_f64();
    // The next measurement is not to run beside this one's snapshot.
    while saver.as_mut().is_some_and(is_saving) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    took.sort_unstable();
    let at = |q: f64| took[((took.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    println!(
        "{{\"rate\":{rate:.1},\"p50_us\":{:.1},\"p99_us\":{:.1},\
         \"requests\":{},\"wrong\":{wrong}}}",
        at(0.5),
        at(0.99),
        took.len()
    );
}
