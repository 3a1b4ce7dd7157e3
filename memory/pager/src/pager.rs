//! The pager of this process: the region, its lock, and the state that all parts share.
//!
//! The fault path does not allocate and uses no thread-local storage. It takes one lock. A holder
//! of the lock never touches far memory and has all signals blocked. So the fault path may run
//! inside `malloc`, inside a signal handler, and in every thread at once.

use crate::config::Config;
use crate::fork::Fork;
use crate::hosts::Hosts;
use crate::lane::Lanes;
use crate::memory::Memory;
use crate::queue::PageQueues;
use crate::room::Room;
use crate::sys::Lock;
use crate::uffd::{self, Uffd};
use crate::{mode, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, Ordering::SeqCst};
use memory_core::heart::Heart;
use memory_core::page::{State, flag};
use memory_core::prefetch::{Accuracy, Prefetcher};
use memory_core::seal::{KEY_BYTES, Seal};
use memory_core::spans::Spans;
use memory_core::stats::{Stats, add};
use memory_core::{PAGE_BYTES, fingerprint};

/// Most pages of its stack that a thread uses while it holds the lock.
const STACK_PAGES: u32 = 4;

/// Pages that [`Pager::discard`] returns under one hold of the lock.
const DISCARD_PAGES: u32 = 4096;

/// The state that the lock guards.
pub struct Inner {
    /// The state of every page.
    pub heart: Heart<'static>,
    /// The free ranges of the region.
    pub spans: Spans<'static>,
    /// Chooses the pages that come along with a fault.
    pub prefetcher: Prefetcher,
    /// The accuracy of a guide's requests.
    pub guide: Accuracy,
}

/// Makes a page resident for a thread of the program.
pub type BringIn = fn(&Pager, u32);

/// A pager. There is one in a process.
pub struct Pager {
    /// The address space.
    pub memory: Memory,
    lock: Lock,
    inner: UnsafeCell<Inner>,
    /// The scratch and the connections of transfers.
    pub lanes: Lanes,
    /// The copies on memory hosts.
    pub hosts: Hosts,
    /// The room for pages, and its waiters.
    pub room: Room,
    /// The fork under way, and the living children.
    pub fork: Fork,
    /// The counters.
    pub stats: &'static Stats,
    seed: u64,
    seal: Option<Seal>,
    /// A page of zeros.
    pub zeros: *mut u8,
    /// Queues of threads that wait for a busy page.
    busy: PageQueues,
    bring_in: BringIn,
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
    /// The mask to restore.
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

/// Returns a key. Ends the program if the kernel has no random numbers for it.
unsafe fn random_key() -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let r = unsafe { sys!(libc::SYS_getrandom, key.as_mut_ptr(), KEY_BYTES, 0) };
    if r != KEY_BYTES as isize {
        sys::die(format_args!("no random key for the pages (error {}); allow getrandom", -r));
    }
    key
}

impl Pager {
    /// Makes a pager that serves no fault before [`publish`].
    pub unsafe fn new(
        config: Config,
        stats: &'static Stats,
        memory: Memory,
        inner: Inner,
        bring_in: BringIn,
    ) -> Pager {
        unsafe {
            let mut seed = 0u64;
            sys!(libc::SYS_getrandom, &raw mut seed, 8, 0);
            let zeros = sys::reserve(PAGE_BYTES);
            zeros.write(0);
            Pager {
                memory,
                lock: Lock::new(),
                inner: UnsafeCell::new(inner),
                lanes: Lanes::new(),
                room: Room::new(config.local_bytes, stats),
                hosts: Hosts::new(config),
                fork: Fork::new(),
                seal: config.seals.then(|| Seal::new(&random_key())),
                stats,
                seed,
                zeros,
                busy: PageQueues::new(),
                bring_in,
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
                    (self.bring_in)(self, page);
                }
            }
        }
    }

    /// Returns an absent page of the caller's stack, of those that it may need under the lock.
    /// Programs may have stacks in far memory.
    fn absent_stack(&self, g: &Guard) -> Option<u32> {
        let here = 0u8;
        let page = self.memory.page_of(&raw const here as usize)?;
        (page.saturating_sub(STACK_PAGES)..=page)
            .find(|&p| g.heart.pages[p as usize].state != State::Resident)
    }

    /// Takes the lock where signals are blocked already: in a handler, or in a thread of the pager.
    pub fn lock_blocked(&self) -> Guard<'_> {
        self.lock.take();
        Guard { pager: self, signals: None }
    }

    /// Returns the fingerprint of a page's bytes.
    pub fn fingerprint(&self, memory: *mut u8) -> u64 {
        fingerprint(unsafe { core::slice::from_raw_parts(memory, PAGE_BYTES) }, self.seed)
    }

    /// Decrypts pages that hosts have sent, in place, if this program encrypts.
    pub fn open(&self, slots: &[u32], memory: &[*mut u8]) {
        let Some(seal) = &self.seal else { return };
        for (&slot, &page) in slots.iter().zip(memory) {
            seal.open(slot, unsafe { &mut *page.cast::<[u8; PAGE_BYTES]>() });
        }
    }

    /// Encrypts pages in place, if this program encrypts.
    pub fn close(&self, slots: &[u32], memory: &[*mut u8]) {
        let Some(seal) = &self.seal else { return };
        for (&slot, &page) in slots.iter().zip(memory) {
            seal.close(slot, unsafe { &mut *page.cast::<[u8; PAGE_BYTES]>() });
        }
    }

    /// Whether this program encrypts its pages.
    pub fn seals(&self) -> bool {
        self.seal.is_some()
    }

    /// Waits until a busy page may have changed.
    pub fn wait_for(&self, page: u32, guard: Guard) {
        let queue = self.busy.of(page);
        let seen = queue.seen();
        drop(guard);
        queue.wait(seen);
    }

    /// Wakes the threads that wait for these pages.
    pub fn done(&self, pages: &[u32]) {
        self.busy.wake(pages);
    }

    /// Maps a page of the second-chance list again, with its neighbours from `first` up to `end`
    /// that fit into the same move. Returns the page after the last one.
    pub fn rescue(&self, g: &mut Guard, page: u32, first: u32, end: u32) -> u32 {
        let (first, n) = g.heart.limbo_run(page, first, end);
        let frame = g.heart.pages[first as usize].frame;
        let memory = &self.memory;
        if g.heart.is_written_from(frame) {
            unsafe { Uffd.copy(memory.at(page), memory.frame(frame), PAGE_BYTES) };
        } else {
            memory.put(memory.at(first), frame, n as usize);
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
        self.room.look_ahead(&g.heart);
        first + n
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
                self.memory.empty(self.memory.at(from), (page - from) as usize);
            }
            if page < stop {
                self.wait_for(page, g);
            }
        }
        self.room.made();
    }

    /// Forgets, in a forked child, everything that the parent's threads had under way. The parent
    /// took the lock before the fork.
    pub unsafe fn become_child(&self, limit: usize) {
        unsafe {
            self.busy.reset();
            self.room.become_child();
            (*self.inner.get()).heart.become_child(limit);
        }
    }

    /// Opens a forked child's userfaultfd.
    pub unsafe fn open_again(&self) {
        unsafe {
            match Uffd::open(mode::is_sigbus()) {
                Ok(_) => self.memory.register(),
                Err(e) if e == libc::EPERM as isize && !mode::is_sigbus() => uffd::set_number(-1),
                Err(e) => sys::die(format_args!("a forked child gets no userfaultfd (error {e})")),
            }
        }
    }

    /// Takes the lock and keeps it over the fork.
    pub fn lock_for_fork(&self) -> *mut Heart<'static> {
        self.lock.take();
        unsafe { &raw mut (*self.inner.get()).heart }
    }

    /// Releases the lock that [`Pager::lock_for_fork`] took.
    pub fn unlock_after_fork(&self) {
        self.lock.give();
    }
}
