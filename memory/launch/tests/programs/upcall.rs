//! A guide that reads the program's structures at each fault: `upcall N` visits N pages, a power of
//! two, in the order of an array. With `upcall N reads`, the callback reads the next places of the
//! array and names their pages. It also reads a random page, which may be absent. Prints the faults
//! of the visit, and the wrong bytes and the short reads of the callback.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

const PAGE: usize = 4096;
/// Places of the array that a callback reads.
const AHEAD: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: *const u8,
    bytes: usize,
}

type Read = unsafe extern "C" fn(*mut u8, *const u8, usize) -> usize;
type Advise = unsafe extern "C" fn(*mut c_void, *const u8, *mut Range, usize) -> usize;

static PAGES: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static ORDER: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
static READ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static N: AtomicU64 = AtomicU64::new(0);
/// The place of the array that the program visits.
static NOW: AtomicU64 = AtomicU64::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SHORT: AtomicU64 = AtomicU64::new(0);

/// The page at a place of the array.
fn page_at(place: u64) -> u64 {
    (place * 40_503 + 17) % N.load(SeqCst)
}

/// The first word of a page.
fn content(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Returns a function of the pager.
fn find(name: &std::ffi::CStr) -> *mut c_void {
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!at.is_null(), "no pager in this process");
    at
}

unsafe extern "C" fn on_fault(_: *mut c_void, _: *const u8, out: *mut Range, max: usize) -> usize {
    let faults = FAULTS.fetch_add(1, SeqCst);
    let found = READ.load(SeqCst);
    if found.is_null() {
        return 0;
    }
    unsafe {
        let read = std::mem::transmute::<*mut c_void, Read>(found);
        let (pages, order) = (PAGES.load(SeqCst), ORDER.load(SeqCst));
        let (n, now) = (N.load(SeqCst), NOW.load(SeqCst));
        let count = AHEAD.min((n - now) as usize).min(max);
        let mut next = [0u64; AHEAD];
        let at = order.add(now as usize);
        let got = read(next.as_mut_ptr().cast(), at.cast(), count * 8) / 8;
        for (i, &page) in next[..got].iter().enumerate() {
            WRONG.fetch_add((page != page_at(now + i as u64)) as u64, SeqCst);
            *out.add(i) =
                Range { start: pages.cast::<u8>().wrapping_add(page as usize * PAGE), bytes: 1 };
        }
        let other = content(faults) % n;
        let mut word = 0u64;
        let at = pages.cast::<u8>().add(other as usize * PAGE);
        match read((&raw mut word).cast(), at, 8) {
            8 => WRONG.fetch_add((word != content(other)) as u64, SeqCst),
            _ => SHORT.fetch_add(1, SeqCst),
        };
        got
    }
}

/// Returns zeroed memory of this size: a mapping of its own.
fn memory(bytes: usize) -> *mut u64 {
    let (rw, anonymous) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rw, anonymous, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[1].parse().expect("a number of pages");
    N.store(n, SeqCst);
    let (pages, order) = (memory(n as usize * PAGE), memory(n as usize * 8));
    PAGES.store(pages, SeqCst);
    ORDER.store(order, SeqCst);
    for i in 0..n {
        unsafe {
            *order.add(i as usize) = page_at(i);
            *pages.add(i as usize * PAGE / 8) = content(i);
        }
    }
    if args.len() > 2 {
        READ.store(find(c"pando_guide_read"), SeqCst);
    }
    let register = find(c"pando_guide_register");
    unsafe {
        let register = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(Option<Advise>, *mut c_void) -> u32,
        >(register);
        register(Some(on_fault), std::ptr::null_mut());
    }
    for i in 0..n {
        NOW.store(i, SeqCst);
        let page = unsafe { *order.add(i as usize) };
        let word = unsafe { *pages.add(page as usize * PAGE / 8) };
        WRONG.fetch_add((word != content(page)) as u64, SeqCst);
    }
    let (faults, wrong, short) = (FAULTS.load(SeqCst), WRONG.load(SeqCst), SHORT.load(SeqCst));
    println!("{faults} faults, {wrong} wrong, {short} short");
}
