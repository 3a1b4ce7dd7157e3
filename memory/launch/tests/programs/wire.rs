//! The baselines of `bench/memory/fault`, and the faults themselves. Each output line is one
//! figure.
//!
//! `wire rtt ADDRESS N`: p50 of one page read over the wire by a plain client, microseconds.
//! `wire copy N`: p50 of one UFFDIO_COPY, microseconds.
//! `wire stream ADDRESS CLIENTS SECONDS`: bytes per second that CLIENTS borrowers read together.
//! `wire raw CLIENTS SECONDS`: bytes per second of as many plain sockets.
//! `wire fault MIB N` (on far memory): p50 and p99 of N random reads that faulted, microseconds.

use memory_core::PAGE_BYTES;
use memory_core::wire::{Hello, Op, Request, Welcome};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn quantile(took: &mut [f64], q: f64) -> f64 {
    took.sort_by(f64::total_cmp);
    took[((took.len() - 1) as f64 * q) as usize]
}

fn map(bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

struct Borrower {
    stream: TcpStream,
    slots: u64,
}

impl Borrower {
    fn new(address: &str, slots: u64) -> Borrower {
        let mut stream = TcpStream::connect(address).expect("the host listens");
        stream.set_nodelay(true).unwrap();
        let hello = Hello { lease: 0, slots, token: [0; 32], share: false, last: false };
        memory_host::greet(&mut stream, &hello).unwrap();
        let mut b = [0; Welcome::BYTES];
        stream.read_exact(&mut b).unwrap();
        let w = Welcome::decode(&b).unwrap();
        assert_eq!(w.status, memory_core::wire::Status::Ok);
        let mut b = Borrower { stream, slots: w.slots };
        // Every slot is written once, so that reads move memory and not the page of zeros.
        let page = vec![7u8; PAGE_BYTES * 256];
        for first in (0..b.slots as u32).step_by(256) {
            let n = 256.min(b.slots as u32 - first);
            b.ask(Op::Write, first, n);
            b.stream.write_all(&page[..n as usize * PAGE_BYTES]).unwrap();
            b.stream.read_exact(&mut [0; 16]).unwrap();
        }
        b
    }

    fn ask(&mut self, op: Op, first: u32, count: u32) {
        let mut out = Request { op, count, serial: 1 }.encode().to_vec();
        for slot in first..first + count {
            out.extend(slot.to_le_bytes());
        }
        self.stream.write_all(&out).unwrap();
    }

    fn read(&mut self, first: u32, count: u32, into: &mut [u8]) {
        self.ask(Op::Read, first, count);
        self.stream.read_exact(&mut into[..16 + count as usize * PAGE_BYTES]).unwrap();
    }
}

fn rtt(address: &str, n: usize) -> f64 {
    let mut b = Borrower::new(address, 4096);
    let mut buffer = vec![0; 16 + PAGE_BYTES];
    let mut took: Vec<f64> = (0..n as u64)
        .map(|i| {
            let at = Instant::now();
            b.read((mix(i) % 4096) as u32, 1, &mut buffer);
            at.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    quantile(&mut took, 0.5)
}

fn copy(n: usize) -> f64 {
    let region = map(n * PAGE_BYTES);
    let mut took = vec![];
    unsafe {
        libc::madvise(region.cast(), n * PAGE_BYTES, libc::MADV_NOHUGEPAGE);
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as i32;
        let ioctl = |nr: u64, bytes: u64, arg: *mut u64| {
            libc::ioctl(fd, 3 << 30 | bytes << 16 | 0xaa << 8 | nr, arg)
        };
        assert_eq!(ioctl(0x3f, 24, [0xaau64, 0, 0].as_mut_ptr()), 0);
        assert_eq!(ioctl(0, 32, [region as u64, (n * PAGE_BYTES) as u64, 1, 0].as_mut_ptr()), 0);
        let source = vec![1u8; PAGE_BYTES];
        for i in 0..n {
            let at = Instant::now();
            let mut c = [
                region.add(i * PAGE_BYTES) as u64,
                source.as_ptr() as u64,
                PAGE_BYTES as u64,
                0,
                0,
            ];
            assert_eq!(ioctl(3, 40, c.as_mut_ptr()), 0);
            took.push(at.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    quantile(&mut took, 0.5)
}

fn together(
    clients: usize,
    one: impl Fn(Duration) -> u64 + Send + Clone + 'static,
    seconds: f64,
) -> f64 {
    let time = Duration::from_secs_f64(seconds);
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let one = one.clone();
            std::thread::spawn(move || one(time))
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>() as f64 / seconds
}

fn stream(address: String, time: Duration) -> u64 {
    let mut b = Borrower::new(&address, 4096);
    let mut buffer = vec![0; 16 + 256 * PAGE_BYTES];
    let (begun, mut bytes, mut i) = (Instant::now(), 0, 0);
    while begun.elapsed() < time {
        i += 1;
        b.read((mix(i) % (4096 - 256)) as u32, 256, &mut buffer);
        bytes += 256 * PAGE_BYTES as u64;
    }
    bytes
}

fn raw(time: Duration) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        let memory = vec![7u8; 16 << 20];
        let mut i = 0u64;
        loop {
            i += 1;
            let at = (mix(i) % 4096) as usize * 3840;
            if s.write_all(&memory[at..at + (1 << 20)]).is_err() {
                return;
            }
        }
    });
    let mut s = TcpStream::connect(address).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (begun, mut bytes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        s.read_exact(&mut buffer).unwrap();
        bytes += buffer.len() as u64;
    }
    bytes
}

/// Measures faults: reads that took longer than any hit. Memory is many times the budget, so nearly
/// all reads are faults.
fn fault(mib: usize, n: usize) {
    let pages = mib << 8;
    let at = map(pages * PAGE_BYTES);
    for i in 0..pages {
        unsafe { at.add(i * PAGE_BYTES).cast::<u64>().write(mix(i as u64)) };
    }
    let mut took = vec![];
    for i in 0..n {
        let page = mix(mix(i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) as usize % pages;
        let begun = Instant::now();
        let is = unsafe { at.add(page * PAGE_BYTES).cast::<u64>().read_volatile() };
        let us = begun.elapsed().as_nanos() as f64 / 1e3;
        assert_eq!(is, mix(page as u64), "page {page} is wrong");
        // A second chance takes about two microseconds; a fetch over a socket several.
        if us > 4.0 {
            took.push(us);
        }
    }
    println!("{:.2} {:.2}", quantile(&mut took, 0.5), quantile(&mut took, 0.99));
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| a[i].parse::<f64>().expect("a number");
    match a[0].as_str() {
        "rtt" => println!("{:.2}", rtt(&a[1], number(2) as usize)),
        "copy" => println!("{:.3}", copy(number(1) as usize)),
        "stream" => {
            let address = a[1].clone();
            println!(
                "{:.0}",
                together(number(2) as usize, move |t| stream(address.clone(), t), number(3))
            );
        }
        "raw" => println!("{:.0}", together(number(1) as usize, raw, number(2))),
        "fault" => fault(number(1) as usize, number(2) as usize),
        other => panic!("{other}: see the source"),
    }
}
