//! The pager's descriptors among the program's: out of the way of the program, which may count on low numbers, closed on exec, and
//! closed by the pager alone. A program may still close or replace one by a raw system call. So each is known by its file, and a
//! number that has come to stand for another file is not used any more.

use crate::{apart, sys};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const WORDS: usize = 64;
/// A bit per descriptor.
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The file that each stands for.
static FILES: [AtomicU64; WORDS * 64] = [const { AtomicU64::new(0) }; WORDS * 64];

/// The file behind a descriptor: its device and inode in one word. 0: the descriptor is closed.
pub unsafe fn file(fd: i32) -> u64 {
    let mut s: libc::stat = core::mem::zeroed();
    match sys!(libc::SYS_fstat, fd, &raw mut s) {
        0 => s.st_ino ^ s.st_dev.rotate_left(40) ^ 1 << 63,
        _ => 0,
    }
}

/// Takes a descriptor over; returns its new number. In the pager's own table the number stays.
pub unsafe fn adopt(fd: i32) -> i32 {
    if apart::is_here() {
        return fd;
    }
    let up = [900, 200, 3].into_iter().map(|from| sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from)).find(|&up| up >= 0);
    if up.is_some() {
        sys!(libc::SYS_close, fd);
    }
    let up = up.unwrap_or(fd as isize) as i32;
    if let Some(word) = OURS.get(up as usize / 64) {
        FILES[up as usize].store(file(up), SeqCst);
        word.fetch_or(1 << (up % 64), SeqCst);
    }
    up
}

/// Closes one that was adopted, unless it stands for another file by now.
pub unsafe fn close(fd: i32) {
    if apart::is_here() {
        sys!(libc::SYS_close, fd);
        return;
    }
    let holds = holds(fd);
    forget(fd);
    if holds {
        sys!(libc::SYS_close, fd);
    }
}

fn forget(fd: i32) {
    if let Some(word) = OURS.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd % 64)), SeqCst);
    }
}

/// Whether an adopted descriptor still stands for the file that it was adopted with. Another user of the pager may have the number
/// by now, so each compares the file itself.
fn holds(fd: i32) -> bool {
    usize::try_from(fd).is_ok_and(|at| FILES.get(at).is_none_or(|is| is.load(SeqCst) == unsafe { file(fd) }))
}

/// The first that was adopted, from a number on.
pub fn next(from: u32) -> Option<u32> {
    (from as usize / 64..WORDS).find_map(|w| {
        let bits = OURS[w].load(SeqCst) & if w == from as usize / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        (bits != 0).then(|| w as u32 * 64 + bits.trailing_zeros())
    })
}

/// Whether the program must leave a number alone.
pub fn is_ours(fd: i32) -> bool {
    let adopted = usize::try_from(fd).is_ok_and(|fd| OURS.get(fd / 64).is_some_and(|word| word.load(SeqCst) >> (fd % 64) & 1 == 1));
    if adopted && !holds(fd) {
        forget(fd);
        return false;
    }
    adopted
}
