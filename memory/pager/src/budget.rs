//! The budget (`--local`). All anonymous memory of the process counts, including the pager's own,
//! and the kernel's memory for it (page tables, stacks). A cgroup of this size holds the program.

use crate::pager::Pager;
use crate::{descriptor, sys};
use core::sync::atomic::Ordering::Relaxed;
use memory_core::PAGE_BYTES;

/// Kernel memory of a thread: its stack and its structures.
const THREAD_BYTES: usize = 24 << 10;
/// Other kernel memory: mappings, descriptors, sockets without their buffers.
const KERNEL_BYTES: usize = 512 << 10;

/// Far memory keeps at least this many pages local; with fewer, pages could not move.
const LIMIT_PAGES_MIN: usize = 256;

/// The budget of one process, as last sampled.
pub struct Budget {
    status: i32,
    pages: usize,
    /// The most slots that the program has used. The kernel may count this many pages of a mapped
    /// lease as memory of the process.
    slots_most: usize,
    /// In a forked child: its process number, and the bytes that it had at its birth.
    child: i32,
    born_with: usize,
    /// The unused part of the budget at the last sample.
    slack_pages: usize,
    /// The user has the message that too much is outside far memory.
    is_outside: bool,
}

impl Budget {
    /// Returns the budget of the configuration.
    pub fn open(pager: &Pager) -> Budget {
        let pages = pager.hosts.config.local_bytes as usize / PAGE_BYTES;
        Budget {
            status: status(),
            pages,
            slots_most: 0,
            slack_pages: 0,
            child: 0,
            born_with: 0,
            is_outside: false,
        }
    }

    /// Returns the pages of the budget.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the part of the budget that the program did not use at the last sample.
    pub fn slack_bytes(&self) -> u64 {
        (self.slack_pages * PAGE_BYTES) as u64
    }

    /// Sets the limit of far memory to the rest of the budget. A child keeps its allowance.
    pub fn sample(&mut self, pager: &Pager) {
        if pager.fork.is_child() {
            return self.sample_child(pager);
        }
        let Some(used) = self.read() else { return };
        pager.stats.anon_now.store((used.anon + used.kernel) as u64, Relaxed);
        pager.stats.children_now.store(pager.fork.children_bytes(), Relaxed);
        let mut g = pager.lock_blocked();
        let other =
            (used.anon / PAGE_BYTES).saturating_sub(g.heart.held()) + used.kernel / PAGE_BYTES;
        self.slots_most = self.slots_most.max(g.heart.slots.used());
        let shared =
            (used.shared / PAGE_BYTES).saturating_sub(self.slots_most * pager.hosts.mapped());
        let outside = (other + shared) * PAGE_BYTES;
        let children = pager.fork.allowance(self.pages, used.tables / PAGE_BYTES);
        let limit = self.pages.saturating_sub(other + children + pager.room.overdraft_max());
        let before = g.heart.limit();
        g.heart.set_limit(limit.max(LIMIT_PAGES_MIN) + pager.room.repay());
        let more = g.heart.limit() > before;
        self.slack_pages = limit.saturating_sub(g.heart.held());
        drop(g);
        pager.stats.outside_now.store(outside as u64, Relaxed);
        self.tell(outside, "the program");
        if more {
            pager.room.made();
        }
    }

    /// Measures a child. It evicts nothing, so its growth since birth is outside far memory.
    fn sample_child(&mut self, pager: &Pager) {
        let me = unsafe { sys!(libc::SYS_getpid) } as i32;
        let is_new = core::mem::replace(&mut self.child, me) != me;
        if is_new {
            // This descriptor still shows the parent.
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

    /// Warns once that the budget cannot be kept, and why.
    fn tell(&mut self, outside: usize, whose: &str) {
        let limit = self.pages * PAGE_BYTES;
        if outside <= limit || core::mem::replace(&mut self.is_outside, true) {
            return;
        }
        sys::say(format_args!(
            "outside far memory: {} MiB of {whose}, of a limit of {} MiB. Memory stays local that \
             is shared, forked, or reserved without access (the heaps of Go and Java)",
            outside >> 20,
            limit >> 20
        ));
    }

    /// Reads the exact counters. Those of `statm` may be wrong by megabytes.
    fn read(&self) -> Option<Used> {
        if self.status < 0 {
            return None;
        }
        let mut b = [0u8; 4096];
        let n = unsafe { sys!(libc::SYS_pread64, self.status, b.as_mut_ptr(), b.len(), 0) };
        parse(core::str::from_utf8(b.get(..usize::try_from(n).ok()?)?).ok()?)
    }
}

/// Opens the kernel's status file of this process.
fn status() -> i32 {
    let fd = unsafe {
        sys!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/status".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
            0
        )
    };
    if fd >= 0 { unsafe { descriptor::adopt(fd as i32) } } else { -1 }
}

/// Memory of a process, bytes. `kernel` includes `tables`.
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
    Some(Used {
        anon: field("RssAnon")? << 10,
        shared,
        kernel: tables + field("Threads")? * THREAD_BYTES + KERNEL_BYTES,
        tables,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_status_is_read() {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let used = parse(&text).expect("this kernel's status");
        assert!(used.anon > 0 && used.tables > 0);
        assert!(used.kernel >= used.tables + THREAD_BYTES + KERNEL_BYTES);
        // A status that lacks a line, or a part of one, is not half read.
        for name in ["VmPTE", "RssShmem", "RssAnon", "Threads"] {
            let without = text.replace(&format!("\n{name}:"), &format!("\nx{name}:"));
            assert!(parse(&without).is_none(), "{name} is missing");
        }
        for cut in 0..text.len() {
            // A cut number is a number, so only the whole lines before the last field count.
            let _ = parse(&text[..cut]);
        }
    }

    #[test]
    fn sizes_are_in_kilobytes_and_names_are_whole() {
        let text = "RssAnonX:\t9 kB\nRssAnon:\t 100 kB\nVmPTE:\t3 kB\nThreads:\t2\nRssShmem:\t7 kB";
        let used = parse(text).unwrap();
        assert_eq!((used.anon, used.shared, used.tables), (100 << 10, 7 << 10, 3 << 10));
        assert_eq!(used.kernel, (3 << 10) + 2 * THREAD_BYTES + KERNEL_BYTES);
        for bad in ["-1", "x", "", "99999999999999999999", "1.5"] {
            assert!(parse(&text.replace("\t2", &format!("\t{bad}"))).is_none(), "{bad}");
        }
    }
}
