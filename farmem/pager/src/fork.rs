//! fork: the child reads its snapshot, the parent goes on.
//!
//! Before: nothing is under way, the second-chance list is empty, every slot in use is frozen. The child opens a
//! userfaultfd of its own (without one the kernel would show it zeros) and its own connections, may hold as many
//! pages as the list gave up, and writes to no slot. A pipe tells the parent when child and grandchildren are gone: its read
//! end hangs up with the last of those who have the write end.

use crate::evict::Evictor;
use crate::pager::{pager, Pager};
use crate::{descriptor, sys};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use farmem_core::stats::add;

/// Pipes at once. When all are in use, the next children share the last one: what is frozen thaws with the last child anyway.
const PIPES_MAX: usize = 32;
/// The child may hold the budget divided by this.
const ALLOWANCE: usize = 8;

pub struct Fork {
    wanted: AtomicU32,
    parked: AtomicU32,
    child: AtomicBool,
    /// Read ends of the pipes of living children, + 1; 0 is none.
    children: [AtomicI32; PIPES_MAX],
    /// While all pipes are in use, the write end of the last one, + 1.
    shared: AtomicI32,
    ends: [AtomicI32; 2],
    signals: AtomicU64,
}

impl Fork {
    pub const fn new() -> Fork {
        Fork {
            wanted: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            child: AtomicBool::new(false),
            children: [const { AtomicI32::new(0) }; PIPES_MAX],
            shared: AtomicI32::new(0),
            ends: [const { AtomicI32::new(-1) }; 2],
            signals: AtomicU64::new(0),
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst) != 0
    }

    /// Whether this process is a fork of the one that was started.
    pub fn is_child(&self) -> bool {
        self.child.load(SeqCst)
    }

    /// Whether any forked process may still need what this one has borrowed.
    pub fn is_shared(&self) -> bool {
        self.is_child() || self.children.iter().any(|c| c.load(SeqCst) > 0)
    }

    fn is_full(&self) -> bool {
        self.children.iter().all(|c| c.load(SeqCst) > 0)
    }

    /// Pages that living children may hold, of a budget of so many, beside page tables like the parent's.
    pub fn allowance(&self, pages: usize, tables: usize) -> usize {
        let children = self.children.iter().filter(|c| c.load(SeqCst) > 0).count();
        if children > 0 {
            pages / ALLOWANCE + children * tables
        } else {
            0
        }
    }

    /// The evictor stands still until the fork is over.
    pub fn park(&self) {
        self.parked.store(1, SeqCst);
        sys::futex_wake(&self.parked, 1);
        while self.is_wanted() {
            sys::futex_wait(&self.wanted, 1, 10_000);
        }
        self.parked.store(0, SeqCst);
    }

    /// Notices children that are gone, and thaws their slots.
    pub fn reap(&self, pager: &Pager) {
        for c in &self.children {
            let fd = c.load(SeqCst) - 1;
            if fd < 0 {
                continue;
            }
            let mut p = libc::pollfd { fd, events: 0, revents: 0 };
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let n = unsafe { sys!(libc::SYS_ppoll, &raw mut p, 1, &raw const now, 0, 0) };
            if n == 1 && p.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                // In this order: a fork in between must not leave the child a number that is somebody else's by then.
                c.store(0, SeqCst);
                unsafe { descriptor::close(fd) };
                let mut g = pager.lock_blocked();
                g.heart.slots.thaw();
                // From now on a fork has a pipe of its own; and only without a write end here does the shared one hang up.
                if !self.is_full() {
                    close(self.shared.swap(0, SeqCst) - 1);
                }
            }
        }
    }
}

fn close(fd: i32) {
    if fd >= 0 {
        unsafe { descriptor::close(fd) };
    }
}

/// Last of all that runs before the fork.
pub unsafe extern "C" fn prepare() {
    let Some(pager) = pager() else { return };
    let f = &pager.fork;
    let signals = sys::block_signals();
    // One fork at a time; a second thread waits here.
    while f.wanted.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
        sys::futex_wait(&f.wanted, 1, 1_000);
    }
    f.signals.store(signals, SeqCst);
    pager.wake_evictor();
    while f.parked.load(SeqCst) == 0 {
        sys::futex_wait(&f.parked, 0, 10_000);
    }
    // Asked once, with the lock: who gives a pipe up meanwhile counts with it, too.
    let shares = loop {
        let heart = &mut *pager.lock_for_fork();
        if heart.busy() == 0 && heart.limbo() == 0 {
            let shares = f.is_full();
            if !f.is_child() {
                heart.slots.freeze();
            }
            if shares {
                // Its end is that of others, who are counted already.
                heart.slots.thaw();
            }
            break shares;
        }
        pager.unlock_after_fork();
        // A fetch or a helper was still at it.
        pager.evictor.turn(Evictor::flush);
        let never = AtomicU32::new(0);
        sys::futex_wait(&never, 0, 200);
    };
    let mut ends = [-1i32; 2];
    if shares {
        ends[1] = f.shared.load(SeqCst) - 1;
    } else if !f.is_child() {
        let e = sys!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC);
        if e < 0 {
            sys::die(format_args!("a fork needs a pipe (error {})", -e));
        }
        ends = ends.map(|fd| descriptor::adopt(fd));
    }
    f.ends[0].store(ends[0], SeqCst);
    f.ends[1].store(ends[1], SeqCst);
    pager.inherit(true);
}

/// First of all that runs in the parent afterwards.
pub unsafe extern "C" fn parent() {
    let Some(pager) = pager() else { return };
    let f = &pager.fork;
    if !f.is_child() {
        let [read, write] = [0, 1].map(|i| f.ends[i].load(SeqCst));
        if read >= 0 {
            let place = f.children.iter().find(|c| c.load(SeqCst) == 0).expect("there was one before the fork");
            place.store(read + 1, SeqCst);
            close(if f.is_full() { f.shared.swap(write + 1, SeqCst) - 1 } else { write });
        }
        add(&pager.stats.forks, 1);
    }
    over(pager);
}

/// First of all that runs in the child.
pub unsafe extern "C" fn child() {
    let Some(pager) = pager() else { return };
    let f = &pager.fork;
    if !f.is_child() {
        close(f.ends[0].load(SeqCst));
        for c in &f.children {
            close(c.swap(0, SeqCst) - 1);
        }
        let shared = f.shared.swap(0, SeqCst) - 1;
        if shared != f.ends[1].load(SeqCst) {
            close(shared);
        }
    }
    f.child.store(true, SeqCst);
    f.parked.store(0, SeqCst);
    pager.become_child((pager.hosts.config.local_bytes as usize / 4096 / ALLOWANCE).max(128));
    sys::spawn(crate::evict::evictor);
    sys::spawn(crate::evict::tender);
    if !pager.hosts.config.sigbus {
        sys::spawn(crate::handler::handler);
    }
    over(pager);
}

unsafe fn over(pager: &Pager) {
    let signals = pager.fork.signals.load(SeqCst);
    pager.inherit(false);
    pager.unlock_after_fork();
    pager.fork.wanted.store(0, SeqCst);
    sys::futex_wake(&pager.fork.wanted, i32::MAX as u32);
    sys::restore_signals(signals);
}
