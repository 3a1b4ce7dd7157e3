//! fork: the child reads its snapshot, and the parent continues.
//!
//! Before the fork, all transfers have ended, the second-chance list is empty, and every slot in
//! use is frozen. The child opens its own userfaultfd, because the kernel would show it zeros
//! without one, and its own connections. It may hold as many pages as the list gave up, and writes
//! to no slot.
//!
//! A pipe reports to the parent when the child and its descendants are gone: its read end hangs up
//! when the last of them closes the write end. In thread mode the read ends are in the table apart
//! from the program. There the parked evictor empties the list and takes the read end of a new
//! pipe.
//!
//! A fork fails for lack of descriptors no sooner than without far memory. The pipe for the next
//! fork exists before it is needed, and the child reuses the numbers that it closes.

use crate::sys::apart;
use crate::{descriptor, mode, sys};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst,
};

/// Most pipes at once. When all are in use, or no descriptor is left for another, further children
/// share the last pipe. Frozen slots thaw only after the last child in any case.
const PIPES_MAX: usize = 32;
/// The child may hold the budget divided by this.
pub const ALLOWANCE: usize = 8;

/// The fork that is under way, the living children, and the pipes that report their ends.
pub struct Fork {
    wanted: AtomicU32,
    parked: AtomicU32,
    child: AtomicBool,
    /// Read ends of the pipes of living children, + 1. 0 = unused.
    children: [AtomicI32; PIPES_MAX],
    /// The write end of the last pipe, + 1, while there is no pipe for the next child.
    shared: AtomicI32,
    /// The pipe for the next child, + 1.
    spare: [AtomicI32; 2],
    /// The pipe for the child of the current fork, + 1. Without a read end it is shared.
    ends: [AtomicI32; 2],
    signals: AtomicU64,
    /// The task of the parked evictor, and the descriptor that it is given or has taken.
    task: AtomicU32,
    given: AtomicI32,
    by: AtomicI32,
    /// Growth of each living child since its birth, bytes, by pipe. Shared with the children.
    grown: &'static [AtomicU64; PIPES_MAX],
    /// In a child: its index in `grown`.
    place: AtomicUsize,
}

/// Tasks of the parked evictor: none, empty the second-chance list, take a descriptor of the
/// program's table.
const NOTHING: u32 = 0;
const FLUSH: u32 = 1;
const TAKE: u32 = 2;

impl Fork {
    /// Returns the state of a process that has not forked.
    pub fn new() -> Fork {
        Fork {
            wanted: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            child: AtomicBool::new(false),
            children: [const { AtomicI32::new(0) }; PIPES_MAX],
            shared: AtomicI32::new(0),
            spare: [const { AtomicI32::new(0) }; 2],
            ends: [const { AtomicI32::new(0) }; 2],
            signals: AtomicU64::new(0),
            task: AtomicU32::new(NOTHING),
            given: AtomicI32::new(-1),
            by: AtomicI32::new(0),
            grown: unsafe { &*sys::reserve_shared(size_of::<[AtomicU64; PIPES_MAX]>()).cast() },
            place: AtomicUsize::new(0),
        }
    }

    /// Whether a descriptor is a write end for the next child. A copy of it in the table apart
    /// would keep the pipe open for ever.
    pub fn is_for_next_child(&self, fd: i32) -> bool {
        [&self.spare[1], &self.shared].iter().any(|place| place.load(SeqCst) == fd + 1)
    }

    /// Whether children inherit a descriptor, of this process or of its children.
    pub fn is_for_children(&self, fd: i32) -> bool {
        self.is_for_next_child(fd) || self.ends[1].load(SeqCst) == fd + 1
    }

    /// Returns the growth of all living children since their births, bytes.
    pub fn children_bytes(&self) -> u64 {
        let living = self.children.iter().zip(self.grown).filter(|(c, _)| c.load(SeqCst) > 0);
        living.map(|(_, grown)| grown.load(SeqCst)).sum()
    }

    /// Reports the growth of a child. Children that share a pipe, and grandchildren, share its
    /// place: the last report counts.
    pub fn tell_parent(&self, bytes: u64) {
        self.grown[self.place.load(SeqCst)].store(bytes, SeqCst);
    }

    /// Whether a fork is under way.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst) != 0
    }

    /// Whether this process is a fork of the one that was started.
    pub fn is_child(&self) -> bool {
        self.child.load(SeqCst)
    }

    /// Whether a forked process may still need the leases of this one.
    pub fn is_shared(&self) -> bool {
        self.is_child() || self.children.iter().any(|c| c.load(SeqCst) > 0)
    }

    fn is_full(&self) -> bool {
        self.children.iter().all(|c| c.load(SeqCst) > 0)
    }

    /// Makes the pipe for the next child, unless it exists. Returns whether it exists. Call it with
    /// the lock, or before other threads start.
    pub fn provide(&self) -> bool {
        let mut ends = [-1i32; 2];
        if self.spare[0].load(SeqCst) == 0
            && unsafe { sys!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0
        {
            for (place, fd) in self.spare.iter().zip(ends) {
                place.store(unsafe { descriptor::adopt(fd) } + 1, SeqCst);
            }
            if self.is_wanted() && !mode::is_sigbus() {
                self.move_apart();
            }
        }
        self.spare[0].load(SeqCst) > 0
    }

    /// Has the evictor take the read end of the spare pipe, during a fork.
    fn move_apart(&self) {
        let fd = self.spare[0].swap(0, SeqCst) - 1;
        self.given.store(fd, SeqCst);
        self.by.store(unsafe { sys!(libc::SYS_gettid) } as i32, SeqCst);
        self.ask(TAKE);
        unsafe { descriptor::close(fd) };
        match self.given.load(SeqCst) {
            taken if taken >= 0 => self.spare[0].store(taken + 1, SeqCst),
            _ => close(&self.spare[1]),
        }
    }

    /// Runs a task in the parked evictor.
    fn ask(&self, what: u32) {
        self.task.store(what, SeqCst);
        sys::futex_wake(&self.task, 1);
        while self.task.load(SeqCst) == what {
            sys::futex_wait(&self.task, what, 10_000);
        }
    }

    /// Has the parked evictor empty the second-chance list.
    pub fn flush(&self) {
        self.ask(FLUSH);
    }

    /// Ends sharing once the next child can have its own pipe: the shared pipe hangs up only after
    /// this process closes its write end.
    pub fn unshare(&self) {
        if self.shared.load(SeqCst) > 0 && !self.is_full() && self.provide() {
            close(&self.shared);
        }
    }

    /// Returns the pages that living children may hold: a part of `pages`, and page tables like the
    /// parent's for each.
    pub fn allowance(&self, pages: usize, tables: usize) -> usize {
        let children = self.children.iter().filter(|c| c.load(SeqCst) > 0).count();
        if children > 0 { pages / ALLOWANCE + children * tables } else { 0 }
    }

    /// Parks the evictor until the fork is over; it runs only tasks of the forking thread. `flush`
    /// empties the second-chance list.
    pub fn park(&self, flush: impl Fn()) {
        self.parked.store(1, SeqCst);
        sys::futex_wake(&self.parked, 1);
        while self.is_wanted() {
            match self.task.load(SeqCst) {
                FLUSH => flush(),
                TAKE => {
                    let taken = unsafe {
                        apart::from_program(self.by.load(SeqCst), self.given.load(SeqCst))
                    };
                    self.given.store(taken.max(-1) as i32, SeqCst);
                }
                _ => {
                    sys::futex_wait(&self.task, NOTHING, 10_000);
                    continue;
                }
            }
            self.task.store(NOTHING, SeqCst);
            sys::futex_wake(&self.task, 1);
        }
        self.parked.store(0, SeqCst);
    }

    /// Returns how many children with a pipe of their own are gone since the last call.
    pub fn reap(&self) -> usize {
        let mut gone = 0;
        for (i, c) in self.children.iter().enumerate() {
            let fd = c.load(SeqCst) - 1;
            if fd < 0 {
                continue;
            }
            let mut p = libc::pollfd { fd, events: 0, revents: 0 };
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let n = unsafe { sys!(libc::SYS_ppoll, &raw mut p, 1, &raw const now, 0, 0) };
            if n == 1 && p.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                // Clear the number first: after a fork in between, it may refer to another file in
                // the child.
                c.store(0, SeqCst);
                self.grown[i].store(0, SeqCst);
                unsafe { descriptor::close(fd) };
                gone += 1;
            }
        }
        gone
    }

    /// Whether the evictor should try to end sharing. In thread mode it cannot close the pipe; the
    /// next fork does.
    pub fn is_sharing(&self) -> bool {
        self.shared.load(SeqCst) > 0 && mode::is_sigbus()
    }

    /// Begins a fork, in a thread with this mask of signals. One fork runs at a time: a second
    /// thread waits here.
    pub fn begin(&self, signals: u64) {
        while self.wanted.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            sys::futex_wait(&self.wanted, 1, 1_000);
        }
        self.signals.store(signals, SeqCst);
    }

    /// Waits until the evictor is parked.
    pub fn until_parked(&self) {
        while self.parked.load(SeqCst) == 0 {
            sys::futex_wait(&self.parked, 0, 10_000);
        }
    }

    /// Chooses the pipe of the next child. Returns whether the child has it for itself. Otherwise
    /// it shares a pipe, and counts with the other children of that pipe. With the lock.
    pub fn choose_pipe(&self) -> bool {
        if self.is_full() || !self.provide() {
            self.ends[1].store(self.shared.load(SeqCst), SeqCst);
            return false;
        }
        self.ends
            .iter()
            .zip(&self.spare)
            .for_each(|(end, spare)| end.store(spare.swap(0, SeqCst), SeqCst));
        true
    }

    /// Records the new child, in its parent.
    pub fn record_child(&self) {
        if self.ends[0].load(SeqCst) > 0 {
            let place = self
                .children
                .iter()
                .find(|c| c.load(SeqCst) == 0)
                .expect("there was one before the fork");
            place.store(self.ends[0].swap(0, SeqCst), SeqCst);
            close(&self.shared);
            self.shared.store(self.ends[1].load(SeqCst), SeqCst);
            self.unshare();
        }
        self.ends[1].store(0, SeqCst);
    }

    /// Makes this process a forked child. A child of the first process closes all pipes but its own
    /// write end, which stays open until its end.
    pub fn become_child(&self) {
        if !self.is_child() {
            self.place.store(
                self.children.iter().position(|c| c.load(SeqCst) == 0).unwrap_or(PIPES_MAX - 1),
                SeqCst,
            );
            if self.shared.load(SeqCst) == self.ends[1].load(SeqCst) {
                self.shared.store(0, SeqCst);
            }
            if !mode::is_sigbus() {
                // The child has no read ends.
                self.children
                    .iter()
                    .chain([&self.spare[0], &self.ends[0]])
                    .for_each(|end| end.store(0, SeqCst));
            }
            self.children
                .iter()
                .chain(&self.spare)
                .chain([&self.ends[0], &self.shared])
                .for_each(close);
        }
        self.child.store(true, SeqCst);
        self.parked.store(0, SeqCst);
        self.task.store(NOTHING, SeqCst);
    }

    /// Returns the mask of signals that the fork began with.
    pub fn signals(&self) -> u64 {
        self.signals.load(SeqCst)
    }

    /// Ends the fork, and releases the evictor and the next thread that forks.
    pub fn end(&self) {
        self.wanted.store(0, SeqCst);
        sys::futex_wake(&self.wanted, i32::MAX as u32);
        sys::futex_wake(&self.task, 1);
    }
}

/// Closes a descriptor that is stored as its number + 1.
fn close(place: &AtomicI32) {
    let fd = place.swap(0, SeqCst) - 1;
    if fd >= 0 {
        unsafe { descriptor::close(fd) };
    }
}
