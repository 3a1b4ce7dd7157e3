//! The program of `bench/memory/umap`: reads one word of every page, again and again, of memory
//! that is larger than its budget.
//!
//! `pagein MIB SECONDS THREADS random|sequential [LIBUMAP]` prints pages per second. The memory is
//! anonymous (run it on far memory), or a file in memory that LLNL's umap maps, the same medium as
//! that of a memory host on this machine. Each thread reads its own part, in order or in one random
//! order. So each page is away again at its next turn, and every read fetches a page.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn anonymous(bytes: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    for page in 0..bytes / PAGE_BYTES {
        unsafe { at.cast::<u8>().add(page * PAGE_BYTES).cast::<u64>().write(mix(page as u64)) };
    }
    at.cast()
}

fn umap(library: &str, bytes: usize) -> *mut u8 {
    type Umap = unsafe extern "C" fn(*mut u8, usize, i32, i32, i32, i64) -> *mut u8;
    let fd = unsafe { libc::memfd_create(c"pagein".as_ptr(), 0) };
    assert!(fd >= 0);
    let mut file = std::io::BufWriter::new(unsafe { std::fs::File::from_raw_fd(libc::dup(fd)) });
    for page in 0..bytes / PAGE_BYTES {
        let mut content = [0u8; PAGE_BYTES];
        content[..8].copy_from_slice(&mix(page as u64).to_ne_bytes());
        file.write_all(&content).unwrap();
    }
    file.flush().unwrap();
    let library = CString::new(library).unwrap();
    unsafe {
        let lib = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!lib.is_null(), "{}", std::ffi::CStr::from_ptr(libc::dlerror()).to_string_lossy());
        let umap: Umap = std::mem::transmute(libc::dlsym(lib, c"umap".as_ptr()));
        let at = umap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE,
            fd,
            0,
        );
        assert_ne!(at.cast(), libc::MAP_FAILED);
        at
    }
}

/// The pages of one thread in the order of their turns.
fn turns(first: usize, n: usize, random: bool) -> Vec<u32> {
    let mut order: Vec<u32> = (first as u32..(first + n) as u32).collect();
    if random {
        for i in (1..n).rev() {
            order.swap(i, mix((first + i) as u64 * 0x9e37_79b9) as usize % (i + 1));
        }
    }
    order
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let [mib, seconds, threads, order, umapped @ ..] = &a[..] else {
        panic!("see the source for the arguments")
    };
    let (bytes, threads) = (mib.parse::<usize>().unwrap() << 20, threads.parse::<usize>().unwrap());
    let memory = match umapped {
        [library] => umap(library, bytes),
        _ => anonymous(bytes),
    } as usize;
    let part = bytes / PAGE_BYTES / threads;
    let time = Duration::from_secs_f64(seconds.parse().unwrap());
    // A quarter of the time warms.
    let (begun, counted) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..threads {
            let (turns, counted) = (turns(t * part, part, order == "random"), &counted);
            s.spawn(move || {
                let mut n = 0;
                for &page in turns.iter().cycle() {
                    let is = unsafe {
                        ((memory + page as usize * PAGE_BYTES) as *const u64).read_volatile()
                    };
                    assert_eq!(is, mix(page as u64), "page {page} is wrong");
                    if page % 64 == 0 {
                        match begun.elapsed() {
                            now if now > time * 5 / 4 => break,
                            now if now < time / 4 => n = 0,
                            _ => {}
                        }
                    }
                    n += 1;
                }
                counted.fetch_add(n, Relaxed);
            });
        }
    });
    println!("{:.0}", counted.into_inner() as f64 / time.as_secs_f64());
    // umap has threads of its own that no destructor may meet.
    unsafe { libc::_exit(0) };
}
