//! The pager's own descriptors: out of the way of the program, which may count on low numbers, closed on exec, and by nobody
//! but the pager. A program that closes whatever it does not know would take userfaultfd away, and pages that are away
//! would read as zeros.

use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const WORDS: usize = 64;
/// A bit per descriptor.
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Takes a descriptor over; returns its new number.
pub unsafe fn adopt(fd: i32) -> i32 {
    let up = [900, 200, 3].into_iter().map(|from| sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from)).find(|&up| up >= 0);
    if up.is_some() {
        sys!(libc::SYS_close, fd);
    }
    let up = up.unwrap_or(fd as isize);
    if let Some(word) = OURS.get(up as usize / 64) {
        word.fetch_or(1 << (up % 64), SeqCst);
    }
    up as i32
}

/// Closes one that was adopted.
pub unsafe fn close(fd: i32) {
    if let Some(word) = OURS.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd % 64)), SeqCst);
    }
    sys!(libc::SYS_close, fd);
}

/// The first that is ours, from a number on.
pub fn next(from: u32) -> Option<u32> {
    (from as usize / 64..WORDS).find_map(|w| {
        let bits = OURS[w].load(SeqCst) & if w == from as usize / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        (bits != 0).then(|| w as u32 * 64 + bits.trailing_zeros())
    })
}

pub fn is_ours(fd: i32) -> bool {
    usize::try_from(fd).is_ok_and(|fd| OURS.get(fd / 64).is_some_and(|word| word.load(SeqCst) >> (fd % 64) & 1 == 1))
}
