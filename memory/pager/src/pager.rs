//! The pager of this process: the region, its lock, and the state that all parts share.
//!
//! The fault path does not allocate and uses no thread-local storage. It takes one lock. A holder
//! of the lock never touches far memory and has all signals blocked. So the fault path may run
//! inside `malloc`, inside a signal handler, and in every thread at once.

use crate::config::Config;
use crate::hosts::Hosts;
use crate::lane::{LANES, Lane, Lanes, TRANSFERS};
use crate::queue::{PageQueues, Queue};
use crate::sys::Lock;
use crate::uffd::Uffd;
use crate::{handler, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};
use memory_core::heart::Heart;
use memory_core::page::{Page, State, flag};
use memory_core::prefetch::{Accuracy, Prefetcher};
use memory_core::spans::Spans;
use memory_core::stats::{Stats, add};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES, fingerprint};

/// Pages of one overdraft while a memory host is late, and the share of the budget that is reserved
/// for that.
pub const OVERDRAFT_PAGES: usize = 64;
const OVERDRAFT_SHARE: usize = 64;

/// Most pages of its stack that a thread uses while it holds the lock.
const STACK_PAGES: u32 = 4;

/// Pages that [`Pager::discard`] returns under one hold of the lock.
const DISCARD_PAGES: u32 = 4096;

/// The state that the lock guards.
pub struct Inner {
    pub heart: Heart<'static>,
    pub spans: Spans<'static>,
    pub prefetcher: Prefetcher,
    pub guide: Accuracy,
}

/// The address space of a pager: the region, which the program's memory is from, and the pool of
/// frames.
pub struct Memory {
    pub region: *mut u8,
    pub region_pages: usize,
    pub pool: *mut u8,
    pub pool_pages: usize,
    /// The first frames of the pool are the ring.
    pub ring_pages: usize,
}

pub struct Pager {
    pub region: *mut u8,
    pub region_pages: usize,
    /// The page table, for reads without the lock.
    pub pages: *const Page,
    /// The ring's frames, then each lane's landing frames.
    pool: *mut u8,
    pool_pages: usize,
    pub ring_pages: usize,
    lock: Lock,
    inner: UnsafeCell<Inner>,
    pub lanes: Lanes,
    pub hosts: Hosts,
    pub stats: &'static Stats,
    seed: u64,
    pub zeros: *mut u8,
    /// Queues of threads that wait for a busy page, and for room.
    busy: PageQueues,
    pub room: Queue,
    /// Pages by which the limit exceeds the budget.
    pub overdrawn: AtomicUsize,
    pub evictor: crate::evict::Turns,
    pub evictor_wake: AtomicU32,
    pub evictor_sleeps: AtomicBool,
    pub fork: crate::fork::Fork,
}

// Shared fields are atomics or guarded by `lock`.
unsafe impl Sync for Pager {}

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the pager, once it runs.
pub fn pager() -> Option<&'static Pager> {
    unsafe { PAGER.load(SeqCst).as_ref() }
}

/// Makes a pager the one of this process.
pub fn publish(pager: &'static Pager) {
    PAGER.store(&raw const *pager as *mut Pager, SeqCst);
}

/// Returns the pager, in a thread that the pager started.
pub fn running() -> &'static Pager {
    pager().expect("the pager runs")
}

/// Holds the lock. `signals` is the mask to restore, unless signals were blocked already.
pub struct Guard<'p> {
    pager: &'p Pager,
    pub signals: Option<u64>,
}

impl core::ops::Deref for Guard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        unsafe { &*self.pager.inner.get() }
    }
}

impl core::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        unsafe { &mut *self.pager.inner.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.pager.lock.give();
        if let Some(mask) = self.signals {
            sys::restore_signals(mask);
        }
    }
}

impl Pager {
    /// Makes a pager that serves no fault before [`publish`].
    pub unsafe fn new(config: Config, stats: &'static Stats, memory: Memory, inner: Inner) -> Pager {
        unsafe {
            let mut seed = 0u64;
            sys!(libc::SYS_getrandom, &raw mut seed, 8, 0);
            let zeros = sys::reserve(PAGE_BYTES);
            zeros.write(0);
            Pager {
                region: memory.region,
                region_pages: memory.region_pages,
                pages: inner.heart.pages.as_ptr(),
                pool: memory.pool,
                pool_pages: memory.pool_pages,
                ring_pages: memory.ring_pages,
                lock: Lock::new(),
                inner: UnsafeCell::new(inner),
                lanes: Lanes::new(),
                hosts: Hosts::new(config),
                stats,
                seed,
                zeros,
                busy: PageQueues::new(),
                room: Queue::new(),
                overdrawn: AtomicUsize::new(0),
                evictor: crate::evict::Turns::new(),
                evictor_wake: AtomicU32::new(0),
                evictor_sleeps: AtomicBool::new(false),
                fork: crate::fork::Fork::new(),
            }
        }
    }

    /// Takes the lock, in ordinary code of the program.
    pub fn lock(&self) -> Guard<'_> {
        loop {
            let mask = sys::block_signals();
            self.lock.take();
            let g = Guard { pager: self, signals: Some(mask) };
            match self.absent_stack(&g) {
                None => return g,
                Some(page) => {
                    drop(g);
                    self.bring_in(page);
                }
            }
        }
    }

    /// Returns an absent page of the caller's stack, of those that it may need under the lock.
    /// Programs may have stacks in far memory.
    fn absent_stack(&self, g: &Guard) -> Option<u32> {
        let here = 0u8;
        let page = self.page_of(&raw const here as usize)?;
        (page.saturating_sub(STACK_PAGES)..=page).find(|&p| g.heart.pages[p as usize].state != State::Resident)
    }

    /// Takes the lock where signals are blocked already: in a handler, or in a thread of the pager.
    pub fn lock_blocked(&self) -> Guard<'_> {
        self.lock.take();
        Guard { pager: self, signals: None }
    }

    pub fn uffd(&self) -> Uffd {
        Uffd
    }

    /// Whether these pages are recorded as one allocation already: allocators reuse the same
    /// addresses. Reads without the lock, because an extent is only a hint.
    pub fn knows_extent(&self, first: u32, last: u32) -> bool {
        let look = |page: u32| unsafe { self.pages.add(page as usize).read_volatile() };
        let (a, z) = (look(first), look(last));
        a.is_in_extent()
            && z.is_in_extent()
            && a.extent_pages as u32 == last - first + 1
            && a.extent_back == 0
            && z.extent_back as u32 == last - first
    }

    /// Returns the first page after the allocation that a page belongs to. Reads without the lock,
    /// because an extent is only a hint.
    pub fn extent_end(&self, page: u32) -> Option<u32> {
        let look = |page: u32| unsafe { self.pages.add(page as usize).read_volatile() };
        let p = look(page);
        let first = page.checked_sub(p.extent_back as u32).filter(|_| p.is_in_extent())?;
        let end = first + look(first).extent_pages as u32;
        (page < end && end as usize <= self.region_pages).then_some(end)
    }

    /// Whether a page is recorded as part of an allocation of more than a page.
    pub fn is_in_extent(&self, page: u32) -> bool {
        unsafe { self.pages.add(page as usize).read_volatile() }.is_in_extent()
    }

    /// Whether a page is recorded as a page of small objects already.
    pub fn knows_small(&self, page: u32) -> bool {
        unsafe { (&raw const (*self.pages.add(page as usize)).flags).read_volatile() & flag::SMALL != 0 }
    }

    pub fn page_of(&self, at: usize) -> Option<u32> {
        let offset = at.wrapping_sub(self.region as usize);
        (offset < self.region_pages * PAGE_BYTES).then_some((offset / PAGE_BYTES) as u32)
    }

    pub fn at(&self, page: u32) -> *mut u8 {
        self.region.wrapping_add(page as usize * PAGE_BYTES)
    }

    pub fn frame(&self, frame: u32) -> *mut u8 {
        self.pool.wrapping_add(frame as usize * PAGE_BYTES)
    }

    pub fn fingerprint(&self, frame: u32) -> u64 {
        fingerprint(unsafe { core::slice::from_raw_parts(self.frame(frame), PAGE_BYTES) }, self.seed)
    }

    pub fn fingerprint_at(&self, memory: *mut u8) -> u64 {
        fingerprint(unsafe { core::slice::from_raw_parts(memory, PAGE_BYTES) }, self.seed)
    }

    /// Returns the first of a lane's landing frames, which have no memory before a transfer.
    pub fn landing(&self, lane: &Lane) -> u32 {
        (self.pool_pages - (LANES - lane.number) * BATCH_PAGES_MAX) as u32
    }

    /// Waits until a busy page may have changed.
    pub fn wait_for(&self, page: u32, guard: Guard) {
        let queue = self.busy.of(page);
        let seen = queue.seen();
        drop(guard);
        queue.wait(seen);
    }

    /// Reports that there may be room. Wakes as many threads as can fetch at once; each of them
    /// wakes the next.
    pub fn made_room(&self) {
        self.room.wake(TRANSFERS);
    }

    /// Wakes the threads that wait for these pages.
    pub fn done(&self, pages: &[u32]) {
        self.busy.wake(pages);
    }

    pub fn wake_evictor(&self) {
        self.evictor_wake.fetch_add(1, SeqCst);
        if self.evictor_sleeps.load(SeqCst) {
            sys::futex_wake(&self.evictor_wake, 1);
        }
    }

    /// Whether room is so short that a fetch of an object would be cut.
    pub fn is_short(&self, g: &Guard) -> bool {
        g.heart.room() < crate::evict::low_water(&g.heart) / 2
    }

    /// Limits a fetch of `n` pages to half of the room.
    pub fn clip(&self, g: &Guard, n: usize) -> usize {
        n.min((g.heart.room() / 2).max(1))
    }

    /// Returns the pages of the budget that are reserved for times when a memory host is late.
    pub fn overdraft_max(&self) -> usize {
        self.hosts.config.local_bytes as usize / PAGE_BYTES / OVERDRAFT_SHARE
    }

    /// Raises the limit above the budget, so that the program is not blocked. Counts in
    /// `over_budget`, which `top` shows, once the reserved share is used up.
    pub fn overdraw(&self, g: &mut Guard, pages: usize) {
        let limit = g.heart.limit().max(g.heart.held()) + pages;
        g.heart.set_limit(limit);
        if self.overdrawn.fetch_add(pages, SeqCst) + pages > self.overdraft_max() {
            add(&self.stats.over_budget, 1);
        }
        self.made_room();
    }

    /// Maps a page of the second-chance list again, with its neighbours from `first` up to `end`
    /// that fit into the same move. Returns the page after the last one.
    pub fn rescue(&self, g: &mut Guard, page: u32, first: u32, end: u32) -> u32 {
        let (first, n) = g.heart.limbo_run(page, first, end);
        let frame = g.heart.pages[first as usize].frame;
        if g.heart.is_written_from(frame) {
            unsafe { self.uffd().copy(self.at(page), self.frame(frame), PAGE_BYTES) };
        } else {
            self.put(self.at(first), frame, n as usize);
        }
        for page in first..first + n {
            let probe = g.heart.rescued(page);
            if probe & flag::GUIDED != 0 {
                g.guide.saw(true);
                add(&self.stats.guide_probes_used, 1);
            } else if probe != 0 {
                g.prefetcher.accuracy.saw(true);
                add(&self.stats.probes_used, 1);
            }
        }
        self.look_ahead(g);
        first + n
    }

    /// Moves the memory of frames to pages. Copies where the kernel cannot move: the memory is
    /// shared with a child.
    pub fn put(&self, to: *mut u8, frame: u32, n: usize) {
        let (mut to, mut from, mut left) = (to, self.frame(frame), n * PAGE_BYTES);
        while left > 0 {
            match unsafe { self.uffd().move_pages(to, from, left) } {
                Ok(()) => return,
                Err((e, done)) if e == libc::EBUSY as isize => unsafe {
                    (to, from, left) = (to.add(done), from.add(done), left - done);
                    if !self.uffd().copy(to, from, PAGE_BYTES) {
                        sys::die(format_args!("a page was there before it was brought in"));
                    }
                    sys!(libc::SYS_madvise, from, PAGE_BYTES, libc::MADV_DONTNEED);
                    (to, from, left) = (to.add(PAGE_BYTES), from.add(PAGE_BYTES), left - PAGE_BYTES);
                },
                // The destination has only the mark of a lost page, which the move carried along.
                Err((e, done)) if e == libc::EEXIST as isize && !unsafe { crate::uffd::is_there(to.add(done)) } => unsafe {
                    (to, from, left) = (to.add(done), from.add(done), left - done);
                    sys!(libc::SYS_madvise, to, PAGE_BYTES, libc::MADV_DONTNEED);
                },
                Err((e, _)) => sys::die(format_args!("a page cannot be brought in (error {e})")),
            }
        }
    }

    /// Wakes the evictor when room runs low.
    pub fn look_ahead(&self, g: &Guard) {
        if g.heart.room() < crate::evict::low_water(&g.heart) {
            self.wake_evictor();
        }
    }

    /// Returns pages to the kernel; they read as zeros afterwards. Works in pieces, so that a fault
    /// does not wait for all of a large mapping. The page table is true whenever the lock is free.
    pub fn discard(&self, first: u32, pages: u32) {
        let (mut page, end) = (first, first + pages);
        while page < end {
            let (from, stop) = (page, end.min(page + DISCARD_PAGES));
            let mut g = self.lock();
            while page < stop && g.heart.drop_page(page) {
                page += 1;
            }
            if page > from {
                unsafe { sys!(libc::SYS_madvise, self.at(from), (page - from) as usize * PAGE_BYTES, libc::MADV_DONTNEED) };
            }
            if page < stop {
                self.wait_for(page, g);
            }
        }
        self.made_room();
    }

    /// Whether a page may hold other bytes than zeros. Reads without the lock: only the caller may
    /// use the page.
    pub fn is_used(&self, page: u32) -> bool {
        unsafe { (&raw const (*self.pages.add(page as usize)).state).read_volatile() != State::Zero }
    }
}

impl Pager {
    /// Forgets, in a forked child, everything that the parent's threads had under way. The parent
    /// took the lock before the fork.
    pub unsafe fn become_child(&self, limit: usize) {
        unsafe {
            self.busy.reset();
            self.room.reset();
            self.evictor.reset();
            (*self.inner.get()).heart.become_child(limit);
        }
    }

    /// Opens a forked child's userfaultfd.
    pub unsafe fn open_again(&self) {
        unsafe {
            match Uffd::open(handler::is_sigbus()) {
                Ok(uffd) => {
                    uffd.register(self.region, self.region_pages * PAGE_BYTES);
                    uffd.register(self.pool, self.ring_pages * PAGE_BYTES);
                }
                Err(e) if e == libc::EPERM as isize && !handler::is_sigbus() => crate::uffd::set_number(-1),
                Err(e) => sys::die(format_args!("a forked child gets no userfaultfd (error {e})")),
            }
        }
    }

    /// Releases the lock that [`Pager::lock_for_fork`] took.
    pub fn unlock_after_fork(&self) {
        self.lock.give();
    }

    /// Sets whether a new process inherits the region. A process that bypasses the fork handlers
    /// must not: it would read absent pages as zeros.
    pub fn inherit(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        unsafe { sys!(libc::SYS_madvise, self.region, self.region_pages * PAGE_BYTES, advice) };
    }

    /// Takes the lock and keeps it over the fork.
    pub fn lock_for_fork(&self) -> *mut Heart<'static> {
        self.lock.take();
        unsafe { &raw mut (*self.inner.get()).heart }
    }
}
