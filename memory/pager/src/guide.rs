//! The C ABI for guides: `sdk/guide/c/pando_guide.h`.

use crate::lead::Lead;
use crate::pager::{Guard, Pager, pager, running};
use crate::sys::{Lock, apart};
use crate::{evict, fetch, mode, room, sys};
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use memory_core::page::{State, flag};
use memory_core::stats::add;
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};

/// `struct pando_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    /// The first byte.
    pub start: *const u8,
    /// Bytes of the range.
    pub bytes: usize,
}

/// Most ranges of one call; the rest are ignored.
const RANGES_MAX: usize = 1024;
/// Ranges that are handled at a time.
const LIST_MAX: usize = 64;

/// Version of the ABI that this library implements.
#[unsafe(no_mangle)]
pub extern "C" fn pando_guide_abi() -> u32 {
    1
}

/// Whether the first byte of `at` can be read without a fault right now. Memory that is not far is
/// always present.
///
/// # Safety
/// Any address will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pando_guide_is_resident(at: *const u8) -> i32 {
    let Some(pager) = pager() else { return 1 };
    let Some(page) = pager.memory.page_of(at as usize) else { return 1 };
    let g = pager.lock();
    (g.heart.pages[page as usize].state == State::Resident) as i32
}

/// Returns the bytes from `at` to the end of its allocation, rounded up to whole pages. 0 = the
/// pager has no record of an allocation of more than a page there: the memory is not far, or its
/// allocator is not wrapped.
///
/// # Safety
/// Any address will do; it is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pando_guide_extent(at: *const u8) -> usize {
    let Some(pager) = pager() else { return 0 };
    let Some(page) = pager.memory.page_of(at as usize) else { return 0 };
    pager.memory.extent_end(page).map_or(0, |end| pager.memory.at(end) as usize - at as usize)
}

/// Bytes that are copied under the lock at a time.
const READ_BYTES: usize = 512;

/// Copies memory of the program without a fault, up to the first page that is absent; returns how
/// many bytes. The evictor takes no page away meanwhile. A callback for faults may call it, so it
/// can follow the program's own structures.
///
/// # Safety
/// `from` is memory of the program, and `to` has room for `bytes`. In a callback, `to` is not far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pando_guide_read(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    let Some(pager) = pager() else {
        unsafe { from.copy_to_nonoverlapping(to, bytes) };
        return bytes;
    };
    // The caller's room may be far memory, which is not touched under the lock.
    let mut piece = [0u8; READ_BYTES];
    let mut done = 0;
    while done < bytes {
        let at = from.wrapping_add(done);
        let n = READ_BYTES.min(bytes - done).min(PAGE_BYTES - at as usize % PAGE_BYTES);
        let page = pager.memory.page_of(at as usize);
        let g = pager.lock();
        if page.is_some_and(|page| g.heart.pages[page as usize].state != State::Resident) {
            break;
        }
        unsafe { at.copy_to_nonoverlapping(piece.as_mut_ptr(), n) };
        drop(g);
        unsafe { piece.as_ptr().copy_to_nonoverlapping(to.add(done), n) };
        done += n;
    }
    done
}

/// `pando_guide_on_fault`.
type OnFault = unsafe extern "C" fn(*mut c_void, *const u8, *mut Range, usize) -> usize;

static ON_FAULT: AtomicUsize = AtomicUsize::new(0);
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
/// Most ranges that a callback may add to one fault.
const FAULT_RANGES_MAX: usize = 32;

/// Sets the callback for faults. None removes it.
///
/// # Safety
/// The callback must stay loaded, and must be safe in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pando_guide_register(
    on_fault: Option<OnFault>,
    context: *mut c_void,
) -> u32 {
    ON_FAULT.store(0, SeqCst);
    CONTEXT.store(context as usize, SeqCst);
    ON_FAULT.store(on_fault.map_or(0, |f| f as usize), SeqCst);
    pando_guide_abi()
}

/// The ranges that a guide adds to a fault.
pub struct Along {
    ranges: [Range; FAULT_RANGES_MAX],
    len: usize,
}

/// Calls the guide, if one has registered. The caller holds no lock.
pub fn ask(at: *const u8) -> Option<Along> {
    let f = ON_FAULT.load(SeqCst);
    if f == 0 {
        return None;
    }
    let mut along =
        Along { ranges: [Range { start: core::ptr::null(), bytes: 0 }; FAULT_RANGES_MAX], len: 0 };
    let f: OnFault = unsafe { core::mem::transmute(f) };
    let n = unsafe {
        f(CONTEXT.load(SeqCst) as *mut c_void, at, along.ranges.as_mut_ptr(), FAULT_RANGES_MAX)
    };
    along.len = n.min(FAULT_RANGES_MAX);
    Some(along)
}

impl Along {
    /// Adds the remote pages of the ranges to a list of `n`; returns its new length.
    pub fn extend(&self, pager: &Pager, g: &Guard, out: &mut [u32], mut n: usize) -> usize {
        for range in &self.ranges[..self.len] {
            let Some((first, last)) = pages(pager, range) else { continue };
            for page in (first..=last).take(out.len() - n) {
                if g.heart.is_remote(page) && page != out[0] {
                    out[n] = page;
                    n += 1;
                }
            }
        }
        n
    }
}

/// Counts one request of the program, for "rounds per request".
#[unsafe(no_mangle)]
pub extern "C" fn pando_guide_request() {
    if let Some(pager) = pager() {
        add(&pager.stats.requests, 1);
    }
}

/// Fetches the ranges in as few round trips as possible. Returns how many pages were fetched.
/// Ignores ranges that are not far memory, malformed, or too many: a hint may be useless but never
/// harms.
///
/// # Safety
/// `ranges` points to `count` ranges. The memory in the ranges is never read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pando_guide_prefetch(ranges: *const Range, count: usize) -> usize {
    unsafe {
        let Some(pager) = pager() else { return 0 };
        if ranges.is_null() || ranges.align_offset(align_of::<Range>()) != 0 {
            return 0;
        }
        add(&pager.stats.guide_calls, 1);
        let mut fetched = 0;
        let mut from = Cursor { range: 0, page: 0 };
        // The list may be far memory itself, so it is copied before the lock is taken.
        let mut copy = [Range { start: core::ptr::null(), bytes: 0 }; LIST_MAX];
        let count = count.min(RANGES_MAX);
        let mut base = 0;
        while base < count {
            let n = (count - base).min(copy.len());
            for (i, r) in copy[..n].iter_mut().enumerate() {
                *r = ranges.add(base + i).read();
            }
            from = Cursor { range: 0, ..from };
            from.page = 0;
            while let Some(k) = ask_for(pager, &copy[..n], &mut from) {
                fetched += k;
                if k == 0 {
                    break;
                }
            }
            base += n;
        }
        fetched
    }
}

/// A batch of a thread of the program in thread mode. That thread has no connections, so the
/// prefetcher fetches it.
struct Errand {
    ranges: AtomicPtr<Range>,
    count: AtomicUsize,
    from: AtomicPtr<Cursor>,
    /// Pages fetched, or none.
    answer: AtomicUsize,
    state: AtomicU32,
}

const IDLE: u32 = 0;
const WANTED: u32 = 1;
const DONE: u32 = 2;
const NOTHING_LEFT: usize = usize::MAX;

static ERRAND: Errand = Errand {
    ranges: AtomicPtr::new(core::ptr::null_mut()),
    count: AtomicUsize::new(0),
    from: AtomicPtr::new(core::ptr::null_mut()),
    answer: AtomicUsize::new(0),
    state: AtomicU32::new(IDLE),
};
/// Allows one errand at a time.
static ERRANDS: Lock = Lock::new();

/// Drops the parent's errand, in a forked child.
pub fn become_child() {
    ERRANDS.reset();
    ERRAND.state.store(IDLE, SeqCst);
}

/// Fetches the next batch, in the thread that has connections.
fn ask_for(pager: &Pager, ranges: &[Range], from: &mut Cursor) -> Option<usize> {
    if mode::is_sigbus() {
        return batch(pager, ranges, from);
    }
    let mask = sys::block_signals();
    ERRANDS.take();
    ERRAND.ranges.store(ranges.as_ptr().cast_mut(), SeqCst);
    ERRAND.count.store(ranges.len(), SeqCst);
    ERRAND.from.store(from, SeqCst);
    ERRAND.state.store(WANTED, SeqCst);
    sys::futex_wake(&ERRAND.state, 1);
    while ERRAND.state.load(SeqCst) != DONE {
        sys::futex_wait(&ERRAND.state, WANTED, 100_000);
    }
    let answer = ERRAND.answer.load(SeqCst);
    ERRAND.state.store(IDLE, SeqCst);
    ERRANDS.give();
    sys::restore_signals(mask);
    (answer != NOTHING_LEFT).then_some(answer)
}

/// Runs the prefetcher's thread, which serves errands in thread mode.
pub extern "C" fn prefetcher() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-prefetch".as_ptr()) };
    apart::enter();
    let pager = running();
    loop {
        let state = ERRAND.state.load(SeqCst);
        if state != WANTED {
            sys::futex_wait(&ERRAND.state, state, 100_000);
            continue;
        }
        // Copied before the lock is taken, as above.
        let mut ranges = [Range { start: core::ptr::null(), bytes: 0 }; LIST_MAX];
        let (given, count, place) =
            (ERRAND.ranges.load(SeqCst), ERRAND.count.load(SeqCst), ERRAND.from.load(SeqCst));
        let (ranges, mut from) = unsafe {
            given.copy_to_nonoverlapping(ranges.as_mut_ptr(), count);
            (&ranges[..count], place.read())
        };
        let k = batch(pager, ranges, &mut from);
        unsafe { place.write(from) };
        ERRAND.answer.store(k.unwrap_or(NOTHING_LEFT), SeqCst);
        ERRAND.state.store(DONE, SeqCst);
        sys::futex_wake(&ERRAND.state, i32::MAX as u32);
    }
}

/// The place in a list of ranges where a batch begins.
struct Cursor {
    range: usize,
    page: u32,
}

/// Fetches the next batch. None = the list is done.
fn batch(pager: &Pager, ranges: &[Range], from: &mut Cursor) -> Option<usize> {
    let lane = loop {
        let seen = pager.lanes.free.seen();
        match pager.lanes.take() {
            Some(lane) => break lane,
            None => pager.lanes.free.wait(seen),
        }
    };
    let mut g = pager.lock();
    if room::is_short(&g.heart) {
        drop(g);
        let mask = sys::block_signals();
        evict::help(pager);
        sys::restore_signals(mask);
        g = pager.lock();
    }
    let mut n = 0;
    if !g.guide.on() {
        from.range = ranges.len();
    }
    while from.range < ranges.len() && n < BATCH_PAGES_MAX {
        let Some((first, last)) = pages(pager, &ranges[from.range]) else {
            from.range += 1;
            continue;
        };
        let mut page = from.page.max(first);
        while page <= last && n < BATCH_PAGES_MAX {
            if g.heart.is_remote(page) && (n == 0 || lane.pages[n - 1] != page) {
                lane.pages[n] = page;
                n += 1;
            }
            page = match g.heart.pages[page as usize] {
                // A page on its way out counts as absent. A probe stays until the program touches
                // it.
                p if p.state == State::Limbo && p.flags & flag::PROBE == 0 => {
                    pager.rescue(&mut g, page, page, last + 1)
                }
                _ => page + 1,
            };
        }
        from.page = page;
        if page > last {
            from.range += 1;
            from.page = 0;
        }
    }
    let n = room::clip(&g.heart, n);
    let done =
        if n == 0 { None } else { Some(fetch::fetch(pager, g, lane, n, true, &mut Lead::none())) };
    pager.lanes.give(lane);
    pager.stats.pages_guided.fetch_add(done.unwrap_or(0) as u64, Relaxed);
    done
}

/// Returns the first and last page of the part of a range that is in the region.
fn pages(pager: &Pager, r: &Range) -> Option<(u32, u32)> {
    let end = (r.start as usize).checked_add(r.bytes)?;
    let low = pager.memory.region as usize;
    let high = low + pager.memory.region_pages * PAGE_BYTES;
    let (start, end) = ((r.start as usize).max(low), end.min(high));
    (start < end)
        .then(|| (((start - low) / PAGE_BYTES) as u32, ((end - 1 - low) / PAGE_BYTES) as u32))
}
