//! The budget: all anonymous memory of the process counts, the pager's own and the program's other memory included, and
//! what the kernel keeps for it (page tables, stacks), so that a cgroup of this size holds the program.

use crate::pager::Pager;
use crate::{descriptor, sys};
use core::sync::atomic::Ordering::Relaxed;
use memory_core::PAGE_BYTES;

/// A thread's kernel stack and what belongs to it.
const THREAD_BYTES: usize = 24 << 10;
/// Mappings, descriptors, sockets without their buffers.
const KERNEL_BYTES: usize = 512 << 10;

/// Far memory keeps at least this much local, or nothing would ever move.
const LIMIT_PAGES_MIN: usize = 256;

pub struct Budget {
    status: i32,
    pages: usize,
    /// Most slots that the program has used: so many pages of a lease that is mapped here may be counted as its own.
    slots_most: usize,
    /// In a forked child: its number, and what it was born with, bytes.
    child: i32,
    born_with: usize,
    /// It was said that much is outside.
    is_outside: bool,
}

impl Budget {
    pub fn open(pager: &Pager) -> Budget {
        let pages = pager.hosts.config.local_bytes as usize / PAGE_BYTES;
        Budget { status: status(), pages, slots_most: 0, child: 0, born_with: 0, is_outside: false }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Sets what far memory may hold to what everything else leaves of the budget. A child keeps its allowance.
    pub fn sample(&mut self, pager: &Pager) {
        if pager.fork.is_child() {
            return self.sample_child(pager);
        }
        let Some(used) = self.read() else { return };
        pager.stats.anon_now.store((used.anon + used.kernel) as u64, Relaxed);
        pager.stats.children_now.store(pager.fork.children_bytes(), Relaxed);
        let mut g = pager.lock_blocked();
        let other = (used.anon / PAGE_BYTES).saturating_sub(g.heart.held()) + used.kernel / PAGE_BYTES;
        self.slots_most = self.slots_most.max(g.heart.slots.used());
        let shared = (used.shared / PAGE_BYTES).saturating_sub(self.slots_most * pager.hosts.mapped());
        let outside = (other + shared) * PAGE_BYTES;
        let children = pager.fork.allowance(self.pages, used.tables / PAGE_BYTES);
        let limit = self.pages.saturating_sub(other + children + pager.overdraft_max());
        let overdrawn = pager.overdrawn.load(Relaxed);
        let before = g.heart.limit();
        g.heart.set_limit(limit.max(LIMIT_PAGES_MIN) + overdrawn);
        let more = g.heart.limit() > before;
        // What was overdrawn is worked off again.
        pager.overdrawn.store(overdrawn - overdrawn / 16 - (overdrawn > 0) as usize, Relaxed);
        drop(g);
        pager.stats.outside_now.store(outside as u64, Relaxed);
        self.tell(outside, "the program");
        if more {
            pager.made_room();
        }
    }

    /// A child evicts nothing: what it takes beyond its birth is outside.
    fn sample_child(&mut self, pager: &Pager) {
        let me = unsafe { sys!(libc::SYS_getpid) } as i32;
        let is_new = core::mem::replace(&mut self.child, me) != me;
        if is_new {
            // The descriptor tells of the parent.
            unsafe { descriptor::close(self.status) };
            (self.status, self.is_outside) = (status(), false);
        }
        let Some(used) = self.read() else { return };
        if is_new {
            self.born_with = used.anon + used.shared;
        }
        let grown = (used.anon + used.shared).saturating_sub(self.born_with);
        pager.fork.tell_parent(grown as u64);
        self.tell(grown, "a forked child");
    }

    /// Says once that the budget cannot be kept, and why.
    fn tell(&mut self, outside: usize, whose: &str) {
        let limit = self.pages * PAGE_BYTES;
        if outside <= limit || core::mem::replace(&mut self.is_outside, true) {
            return;
        }
        sys::say(format_args!(
            "outside far memory: {} MiB of {whose}, of a limit of {} MiB. Memory stays local that is shared, forked, or reserved without access (the heaps of Go and Java)",
            outside >> 20,
            limit >> 20
        ));
    }

    /// From the exact counters: those of statm may be off by megabytes.
    fn read(&self) -> Option<Used> {
        if self.status < 0 {
            return None;
        }
        let mut b = [0u8; 4096];
        let n = unsafe { sys!(libc::SYS_pread64, self.status, b.as_mut_ptr(), b.len(), 0) };
        parse(core::str::from_utf8(b.get(..usize::try_from(n).ok()?)?).ok()?)
    }
}

/// Opens what the kernel says of this process.
fn status() -> i32 {
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) };
    if fd >= 0 {
        unsafe { descriptor::adopt(fd as i32) }
    } else {
        -1
    }
}

/// What a process uses, bytes. The tables are part of the kernel's.
struct Used {
    anon: usize,
    shared: usize,
    kernel: usize,
    tables: usize,
}

/// Lines of `/proc/self/status`; sizes are in kB.
fn parse(status: &str) -> Option<Used> {
    let field = |name: &str| {
        let value = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse::<usize>().ok()
    };
    let tables = field("VmPTE")? << 10;
    let shared = field("RssShmem")? << 10;
    Some(Used { anon: field("RssAnon")? << 10, shared, kernel: tables + field("Threads")? * THREAD_BYTES + KERNEL_BYTES, tables })
}
