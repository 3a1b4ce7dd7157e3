//! Threads that map, grow, empty and unmap far memory and check what they read, while the program
//! forks and starts others again and again and a timer's handler, with every signal blocked,
//! touches far memory on top of it all. `churn MIB THREADS FORKS SEED` prints `forks N handled N
//! wrong N` and ends with 1 if anything was wrong.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

const PAGE: usize = 4096;
static WRONG: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);
/// Pages that are never changed. The first word of each is its number.
static FIXED: AtomicPtr<u64> = AtomicPtr::new(null_mut());
static FIXED_PAGES: AtomicU64 = AtomicU64::new(0);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 29)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn expect(right: bool) {
    WRONG.fetch_add(!right as u64, Relaxed);
}

unsafe fn look(page: u64) -> bool {
    unsafe {
        let page = page % FIXED_PAGES.load(Relaxed);
        FIXED.load(Relaxed).add(page as usize * PAGE / 8).read_volatile() == !page
    }
}

extern "C" fn on_alarm(_: i32) {
    let n = HANDLED.fetch_add(1, Relaxed);
    expect(unsafe { look(n.wrapping_mul(0x9e37_79b9)) });
}

unsafe fn map(bytes: usize) -> *mut u64 {
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED, "mmap");
        at.cast()
    }
}

/// A mapping of a thread: every page's first word is its number under a key, or 0.
struct Mapping {
    at: *mut u64,
    pages: usize,
    key: u64,
}

impl Mapping {
    unsafe fn new(pages: usize, key: u64) -> Mapping {
        unsafe {
            let m = Mapping { at: map(pages * PAGE), pages, key: key | 1 };
            m.write(0);
            m
        }
    }

    unsafe fn word(&self, page: usize) -> *mut u64 {
        unsafe { self.at.add(page * PAGE / 8) }
    }

    unsafe fn write(&self, from: usize) {
        unsafe {
            (from..self.pages)
                .for_each(|p| self.word(p).write_volatile(self.key ^ (p as u64) << 32));
        }
    }

    unsafe fn check(&self, from: usize, to: usize, zeros: bool) {
        unsafe {
            for p in from..to {
                expect(
                    self.word(p).read_volatile()
                        == if zeros { 0 } else { self.key ^ (p as u64) << 32 },
                );
            }
        }
    }

    unsafe fn grow(&mut self, pages: usize) {
        unsafe {
            let at =
                libc::mremap(self.at.cast(), self.pages * PAGE, pages * PAGE, libc::MREMAP_MAYMOVE);
            assert_ne!(at, libc::MAP_FAILED, "mremap");
            let had = std::mem::replace(&mut self.pages, pages);
            self.at = at.cast();
            self.check(0, had.min(pages), false);
            self.check(had.min(pages), pages, true);
            self.write(0);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.at.cast(), self.pages * PAGE) };
    }
}

unsafe fn work(mut random: Random, pages_max: usize) {
    unsafe {
        let mut mappings: Vec<Mapping> = vec![];
        while !OVER.load(Relaxed) {
            if mappings.len() < 6 {
                mappings.push(Mapping::new(16 + random.below(pages_max), random.next()));
            }
            let i = random.below(mappings.len());
            let m = &mut mappings[i];
            match random.below(6) {
                0 => m.grow(16 + random.below(pages_max)),
                1 => {
                    let (from, n) = (random.below(m.pages), 1 + random.below(64));
                    let to = m.pages.min(from + n);
                    libc::madvise(m.word(from).cast(), (to - from) * PAGE, libc::MADV_DONTNEED);
                    m.check(from, to, true);
                    m.write(from);
                }
                2 => drop(mappings.swap_remove(i)),
                _ => m.check(0, m.pages, false),
            }
            expect(look(random.next()));
        }
        mappings.iter().for_each(|m| m.check(0, m.pages, false));
    }
}

/// Checks in a child that its memory is the snapshot; ends with 0 if so.
unsafe fn child(mut random: Random, mine: &Mapping) -> ! {
    unsafe {
        let before = WRONG.load(Relaxed);
        (0..64).for_each(|_| expect(look(random.next())));
        mine.check(0, mine.pages, false);
        let bytes = vec![5u8; 1 << 20];
        expect(bytes.iter().all(|&b| b == 5));
        libc::_exit((WRONG.load(Relaxed) != before) as i32)
    }
}

unsafe fn forks(count: usize, mut random: Random) {
    unsafe {
        let mut mine = Mapping::new(256, random.next());
        for k in 0..count {
            let mut status = 0;
            if k % 8 == 7 {
                status = libc::system(c"exit 0".as_ptr());
            } else {
                let pid = libc::fork();
                assert!(pid >= 0, "fork");
                if pid == 0 {
                    child(random, &mine);
                }
                // This change must not reach the child.
                mine.key ^= 1 << 40;
                mine.write(0);
                libc::waitpid(pid, &mut status, 0);
            }
            expect(status == 0);
            random.next();
        }
        mine.check(0, mine.pages, false);
    }
}

fn main() {
    let args: Vec<usize> =
        std::env::args().skip(1).map(|a| a.parse().expect("MIB THREADS FORKS SEED")).collect();
    let [mib, threads, count, seed] = args[..] else { panic!("churn MIB THREADS FORKS SEED") };
    unsafe {
        let pages = mib << 8;
        let fixed = map(pages * PAGE);
        (0..pages).for_each(|p| fixed.add(p * PAGE / 8).write(!(p as u64)));
        FIXED_PAGES.store(pages as u64, Relaxed);
        FIXED.store(fixed, Relaxed);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGALRM, &action, null_mut());
        let every = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        libc::setitimer(
            libc::ITIMER_REAL,
            &libc::itimerval { it_interval: every, it_value: every },
            null_mut(),
        );
        std::thread::scope(|s| {
            for t in 0..threads {
                s.spawn(move || work(Random((seed + t) as u64), 512));
            }
            forks(count, Random(!seed as u64));
            OVER.store(true, Relaxed);
        });
    }
    let wrong = WRONG.load(Relaxed);
    println!("forks {count} handled {} wrong {wrong}", HANDLED.load(Relaxed));
    std::process::exit((wrong > 0) as i32);
}
