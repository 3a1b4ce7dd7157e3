//! The budget: all anonymous memory of the process counts, the pager's own and the program's other memory included.

use crate::pager::Pager;
use crate::sys;
use crate::uffd::high;
use core::sync::atomic::Ordering::Relaxed;
use farmem_core::PAGE_BYTES;

/// Far memory keeps at least this much local, or nothing would ever move.
const LIMIT_PAGES_MIN: usize = 256;

pub struct Budget {
    statm: i32,
    pages: usize,
}

impl Budget {
    pub fn open(pager: &Pager) -> Budget {
        let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) };
        let statm = if fd >= 0 { unsafe { high(fd as i32) } } else { -1 };
        Budget { statm, pages: pager.hosts.config.local_bytes as usize / PAGE_BYTES }
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Sets what far memory may hold to what everything else leaves of the budget. A child keeps its allowance.
    pub fn sample(&mut self, pager: &Pager) {
        if pager.fork.is_child() || self.statm < 0 {
            return;
        }
        let Some(anon) = self.anon_pages() else { return };
        pager.stats.anon_now.store((anon * PAGE_BYTES) as u64, Relaxed);
        let mut g = pager.lock_blocked();
        let other = anon.saturating_sub(g.heart.held());
        let limit = self.pages.saturating_sub(other + pager.fork.allowance(self.pages));
        let overdrawn = pager.overdrawn.load(Relaxed);
        g.heart.set_limit(limit.max(LIMIT_PAGES_MIN) + overdrawn);
        // What was overdrawn is worked off again.
        pager.overdrawn.store(overdrawn - overdrawn / 16 - (overdrawn > 0) as usize, Relaxed);
        drop(g);
    }

    /// statm: size, resident, shared (file and shmem) …, in pages.
    fn anon_pages(&self) -> Option<usize> {
        let mut b = [0u8; 128];
        let n = unsafe { sys!(libc::SYS_pread64, self.statm, b.as_mut_ptr(), b.len(), 0) };
        let text = core::str::from_utf8(b.get(..usize::try_from(n).ok()?)?).ok()?;
        let mut words = text.split(' ').skip(1);
        let resident: usize = words.next()?.parse().ok()?;
        let shared: usize = words.next()?.parse().ok()?;
        Some(resident.saturating_sub(shared))
    }
}
