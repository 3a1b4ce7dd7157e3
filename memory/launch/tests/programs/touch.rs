//! Touches far memory in every way that is hard on a pager, and checks every byte. It uses many
//! threads, a timer with a handler that touches far memory, allocations of changing sizes, and
//! transfers through the kernel. `touch MIB THREADS ACCESSES SEED [PANDO-MEM]` prints `accesses N
//! wrong N`, then the counters from that pando-mem, and ends with 1 if anything was wrong.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

const PAGE_WORDS: usize = 512;
/// Allocations that all threads keep together, and that one keeps: with them the program needs at
/// most 80 MB beside MIB, however long it runs.
const KEPT_MAX: usize = 256;
const KEPT_BY_ONE_MAX: usize = 40;
const ALLOCATION_BYTES_MAX: usize = 300_000;
static WRONG: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Pages that are never changed, for the handler.
static FIXED: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static FIXED_PAGES: AtomicU64 = AtomicU64::new(0);

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % n as u64) as usize
    }
}

fn word(page: u64, version: u64, i: usize) -> u64 {
    mix(page << 20 ^ version << 10 ^ i as u64)
}

fn expect(is: u64, should: u64) {
    if is != should {
        WRONG.fetch_add(1, Relaxed);
    }
}

extern "C" fn on_alarm(_: i32) {
    let n = HANDLED.fetch_add(1, Relaxed);
    let page = mix(n) % FIXED_PAGES.load(Relaxed);
    let at = FIXED.load(Relaxed).wrapping_add(page as usize * PAGE_WORDS + n as usize % PAGE_WORDS);
    expect(unsafe { at.read_volatile() }, word(page, 0, n as usize % PAGE_WORDS));
}

/// Runs one thread. Every page has a version, and every word holds page, version and place.
fn work(part: &mut [u64], accesses: usize, keep: usize, seed: u64) {
    let pages = part.len() / PAGE_WORDS;
    let mut versions = vec![0u64; pages];
    let mut random = Random(seed);
    let mut kept: Vec<(usize, Vec<u8>)> = vec![];
    let mut file = tempfile();
    for k in 0..accesses {
        let page = random.below(pages);
        let words = &mut part[page * PAGE_WORDS..(page + 1) * PAGE_WORDS];
        let i = random.below(PAGE_WORDS);
        let known = if versions[page] == 0 { 0 } else { word(page as u64, versions[page], i) };
        expect(unsafe { (&raw const words[i]).read_volatile() }, known);
        if random.below(4) == 0 {
            versions[page] += 1;
            for (i, w) in words.iter_mut().enumerate() {
                *w = word(page as u64, versions[page], i);
            }
        }
        if k % 512 == 0 {
            allocations(&mut kept, keep, &mut random);
        }
        if k % 2048 == 0 {
            through_the_kernel(&mut file, part, page.min(pages.saturating_sub(40)), &mut random);
        }
    }
}

fn allocations(kept: &mut Vec<(usize, Vec<u8>)>, keep: usize, random: &mut Random) {
    let fill = random.below(251);
    kept.push((fill, vec![fill as u8; 1 + random.below(ALLOCATION_BYTES_MAX)]));
    if kept.len() > keep {
        let (fill, bytes) = kept.swap_remove(random.below(keep));
        if bytes.iter().any(|b| *b as usize != fill) {
            WRONG.fetch_add(1, Relaxed);
        }
    }
}

fn tempfile() -> std::fs::File {
    use std::os::fd::FromRawFd;
    let fd = unsafe { libc::memfd_create(c"touch".as_ptr(), 0) };
    unsafe { std::fs::File::from_raw_fd(fd) }
}

/// Writes a piece to a file from far memory, and reads it back into other far memory.
fn through_the_kernel(file: &mut std::fs::File, part: &[u64], page: usize, random: &mut Random) {
    let words =
        &part[page * PAGE_WORDS..((page + 1 + random.below(39)) * PAGE_WORDS).min(part.len())];
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.write_all(bytes))
        .expect("write from far memory");
    let mut back = vec![0u8; bytes.len()];
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_exact(&mut back))
        .expect("read into far memory");
    if back != bytes {
        WRONG.fetch_add(1, Relaxed);
    }
}

fn map(words: usize) -> &'static mut [u64] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            words * 8,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "mmap");
    unsafe { std::slice::from_raw_parts_mut(at.cast(), words) }
}

fn main() {
    let args: Vec<usize> = std::env::args()
        .skip(1)
        .take(4)
        .map(|a| a.parse().expect("MIB THREADS ACCESSES SEED"))
        .collect();
    let [mib, threads, accesses, seed] = args[..] else {
        panic!("touch MIB THREADS ACCESSES SEED")
    };
    let fixed = map(mib * (1 << 17) / 4);
    for (i, w) in fixed.iter_mut().enumerate() {
        *w = word((i / PAGE_WORDS) as u64, 0, i % PAGE_WORDS);
    }
    FIXED_PAGES.store((fixed.len() / PAGE_WORDS) as u64, Relaxed);
    FIXED.store(fixed.as_mut_ptr(), Relaxed);
    unsafe {
        libc::signal(libc::SIGALRM, on_alarm as *const () as usize);
        let every = libc::timeval { tv_sec: 0, tv_usec: 500 };
        libc::setitimer(
            libc::ITIMER_REAL,
            &libc::itimerval { it_interval: every, it_value: every },
            std::ptr::null_mut(),
        );
    }
    let all = map(mib * (1 << 17) * 3 / 4 / threads / PAGE_WORDS * PAGE_WORDS * threads);
    let (part, keep) = (all.len() / threads, (KEPT_MAX / threads).clamp(1, KEPT_BY_ONE_MAX));
    std::thread::scope(|s| {
        for (t, part) in all.chunks_mut(part).enumerate() {
            s.spawn(move || work(part, accesses / threads, keep, (seed + t) as u64));
        }
    });
    let wrong = WRONG.load(Relaxed);
    println!("accesses {accesses} handled {} wrong {wrong}", HANDLED.load(Relaxed));
    if let Some(pando_mem) = std::env::args().nth(5) {
        let args = ["top", "--once", "-o", "json", "--pid", &std::process::id().to_string()];
        std::process::Command::new(pando_mem).args(args).status().expect("pando-mem runs");
    }
    std::process::exit((wrong > 0) as i32);
}
