//! Detached threads start and end, more at a time than the C library keeps stacks for. Meanwhile
//! all other memory of the program is driven out, including the C library's records of the threads.
//! `threads MIB ROUNDS` prints `ended N`.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

/// Stacks of 2 MiB: the C library keeps 40 MB of stacks of ended threads, and frees the others as a
/// thread ends.
const AT_ONCE: usize = 48;
static ENDED: AtomicUsize = AtomicUsize::new(0);
static ROUND: Mutex<usize> = Mutex::new(0);
static NEXT: Condvar = Condvar::new();

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        ENDED.fetch_add(1, SeqCst);
    }
}

thread_local! {
    static LAST: AtEnd = const { AtEnd };
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc").count()
}

fn main() {
    let args: Vec<usize> =
        std::env::args().skip(1).map(|a| a.parse().expect("MIB ROUNDS")).collect();
    let [mib, rounds] = args[..] else { panic!("threads MIB ROUNDS") };
    let mut all = vec![1u8; mib << 20];
    // Use more small objects than stay local, so that those of the C library leave as well.
    let mut small: Vec<Box<[u8; 200]>> = (0..mib * 1024).map(|_| Box::new([1; 200])).collect();
    let before = tasks();
    for round in 1..=rounds {
        for _ in 0..AT_ONCE {
            std::thread::spawn(move || {
                LAST.with(|_| ());
                drop(NEXT.wait_while(ROUND.lock().unwrap(), |now| *now < round));
            });
        }
        for page in all.chunks_mut(4096) {
            page[0] = page[0].wrapping_add(1);
        }
        small.iter_mut().for_each(|object| object[0] += 1);
        *ROUND.lock().unwrap() = round;
        NEXT.notify_all();
        while tasks() > before {
            std::thread::yield_now();
        }
    }
    assert!(all.chunks(4096).all(|page| page[0] == 1u8.wrapping_add(rounds as u8)), "a wrong byte");
    println!("ended {}", ENDED.load(SeqCst));
}
