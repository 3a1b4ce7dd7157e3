//! The budget: all anonymous memory of the process counts, the pager's own and the program's other memory included, and
//! what the kernel keeps for it (page tables, stacks), so that a cgroup of this size holds the program.

use crate::pager::Pager;
use crate::{descriptor, sys};
use core::sync::atomic::Ordering::Relaxed;
use farmem_core::PAGE_BYTES;

/// A thread's kernel stack and what belongs to it.
const THREAD_BYTES: usize = 24 << 10;
/// Mappings, descriptors, sockets without their buffers.
const KERNEL_BYTES: usize = 512 << 10;

/// Far memory keeps at least this much local, or nothing would ever move.
const LIMIT_PAGES_MIN: usize = 256;

pub struct Budget {
    status: i32,
    pages: usize,
}

impl Budget {
    pub fn open(pager: &Pager) -> Budget {
        let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) };
        let status = if fd >= 0 { unsafe { descriptor::adopt(fd as i32) } } else { -1 };
        Budget { status, pages: pager.hosts.config.local_bytes as usize / PAGE_BYTES }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Sets what far memory may hold to what everything else leaves of the budget. A child keeps its allowance.
    pub fn sample(&mut self, pager: &Pager) {
        if pager.fork.is_child() || self.status < 0 {
            return;
        }
        let Some(used) = self.read() else { return };
        pager.stats.anon_now.store((used.anon + used.kernel) as u64, Relaxed);
        let mut g = pager.lock_blocked();
        let other = (used.anon / PAGE_BYTES).saturating_sub(g.heart.held()) + used.kernel / PAGE_BYTES;
        let children = pager.fork.allowance(self.pages, used.tables / PAGE_BYTES);
        let limit = self.pages.saturating_sub(other + children + pager.overdraft_max());
        let overdrawn = pager.overdrawn.load(Relaxed);
        let before = g.heart.limit();
        g.heart.set_limit(limit.max(LIMIT_PAGES_MIN) + overdrawn);
        let more = g.heart.limit() > before;
        // What was overdrawn is worked off again.
        pager.overdrawn.store(overdrawn - overdrawn / 16 - (overdrawn > 0) as usize, Relaxed);
        drop(g);
        if more {
            pager.made_room();
        }
    }

    /// From the exact counters: those of statm may be off by megabytes.
    fn read(&self) -> Option<Used> {
        let mut b = [0u8; 4096];
        let n = unsafe { sys!(libc::SYS_pread64, self.status, b.as_mut_ptr(), b.len(), 0) };
        parse(core::str::from_utf8(b.get(..usize::try_from(n).ok()?)?).ok()?)
    }
}

/// What a process uses, bytes. The tables are part of the kernel's.
struct Used {
    anon: usize,
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
    Some(Used { anon: field("RssAnon")? << 10, kernel: tables + field("Threads")? * THREAD_BYTES + KERNEL_BYTES, tables })
}
