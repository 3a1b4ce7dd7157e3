//! Pages that leave under load: while threads write to them, and while a child shares them.

use super::{BIG, Big, PAGE, pattern, raw};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Counts up in pages that leave at the same moment, in threads of its own. They are few pages, so
/// most writes meet no fault. Returns the counts that are wrong in the end.
pub unsafe fn counted(big: &Big) -> usize {
    const THREADS: usize = 2;
    const PAGES: usize = 512;
    let at = big.0 as usize;
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|s| {
        let counting = |t: usize| {
            move || unsafe {
                let place = |page: usize| (at as *mut u64).byte_add(page * PAGE + 128).add(t);
                let mut counts = vec![0u64; PAGES];
                let mut n = t;
                while !is_over.load(Relaxed) {
                    n = n.wrapping_add(1);
                    let page = pattern(n) as usize % PAGES;
                    counts[page] += 1;
                    place(page).write_volatile(place(page).read_volatile() + 1);
                }
                let is = |page: usize| place(page).read_volatile();
                counts.iter().enumerate().filter(|&(page, n)| is(page) != *n).count()
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|t| s.spawn(counting(t))).collect();
        (0..8).for_each(|_| unsafe { big.sweep() });
        is_over.store(true, Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    })
}

/// Returns for each page whether it is in memory.
unsafe fn present(big: &Big) -> Vec<bool> {
    let mut there = vec![0u8; BIG / PAGE];
    unsafe { libc::mincore(big.0.cast(), BIG, there.as_mut_ptr()) };
    there.iter().map(|t| t & 1 == 1).collect()
}

/// Reads all pages that are away, some times, while a child shares the others. Whether those leave.
pub unsafe fn shared(big: &Big) -> bool {
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
        }
        let before = present(big);
        let away = || (0..BIG / PAGE).filter(|&page| !before[page]);
        for page in (0..6).flat_map(|_| away()) {
            big.0.add(page * PAGE).read_volatile();
        }
        let now = present(big);
        let stays = before.iter().zip(&now).filter(|(was, is)| **was && **is).count();
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        stays < before.iter().filter(|was| **was).count() / 4
    }
}

/// Splits the mapping of far memory at many places, and locks a part of it, by bare system calls.
/// Returns the errors of these calls.
pub unsafe fn split(big: &Big) -> usize {
    const STRETCH: usize = 5 * PAGE;
    const MLOCK_ONFAULT: i64 = 1;
    let mut failed = 0;
    unsafe {
        for at in (0..BIG - STRETCH).step_by(2 * STRETCH) {
            let (at, advice) = (big.0.add(at), libc::MADV_DONTDUMP);
            failed +=
                (raw(libc::SYS_madvise, at as i64, STRETCH as i64, advice as i64) != 0) as usize;
        }
        let part = big.0.add(BIG / 2);
        let locked = raw(libc::SYS_mlock2, part as i64, 8 * STRETCH as i64, MLOCK_ONFAULT);
        failed += (locked != 0) as usize;
        (0..4).for_each(|_| big.sweep());
    }
    failed
}
