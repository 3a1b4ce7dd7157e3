//! The pager's descriptors in the program's file table. They have high numbers, because programs
//! may rely on low ones, and are closed on exec. Wrappers stop the program from closing them, but a
//! raw system call can close or replace one. So the pager remembers the file of each, and drops a
//! number that refers to another file.

use crate::sys;
use crate::sys::apart;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const WORDS: usize = 64;
/// One bit for each descriptor.
static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The file of each descriptor.
static FILES: [AtomicU64; WORDS * 64] = [const { AtomicU64::new(0) }; WORDS * 64];

/// Returns the file of a descriptor: its device and inode in one word. 0 = the descriptor is
/// closed.
pub unsafe fn file(fd: i32) -> u64 {
    unsafe {
        let mut s: libc::stat = core::mem::zeroed();
        match sys!(libc::SYS_fstat, fd, &raw mut s) {
            0 => s.st_ino ^ s.st_dev.rotate_left(40) ^ 1 << 63,
            _ => 0,
        }
    }
}

/// Takes over a descriptor and returns its new number. In the pager's own table, the number is
/// kept.
pub unsafe fn adopt(fd: i32) -> i32 {
    unsafe {
        if apart::is_here() {
            return fd;
        }
        let up = [900, 200, 3]
            .into_iter()
            .map(|from| sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from))
            .find(|&up| up >= 0);
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
}

/// Closes an adopted descriptor, unless its number refers to another file by now.
pub unsafe fn close(fd: i32) {
    unsafe {
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
}

fn forget(fd: i32) {
    if let Some(word) = OURS.get(fd as usize / 64) {
        word.fetch_and(!(1 << (fd % 64)), SeqCst);
    }
}

/// Whether an adopted descriptor still refers to the file that it was adopted with. Another part of
/// the pager may have the number by now, so each part also compares the file itself.
fn holds(fd: i32) -> bool {
    usize::try_from(fd)
        .is_ok_and(|at| FILES.get(at).is_none_or(|is| is.load(SeqCst) == unsafe { file(fd) }))
}

/// Returns the first adopted descriptor that is `from` or higher.
pub fn next(from: u32) -> Option<u32> {
    (from as usize / 64..WORDS).find_map(|w| {
        let bits = OURS[w].load(SeqCst)
            & if w == from as usize / 64 { u64::MAX << (from % 64) } else { u64::MAX };
        (bits != 0).then(|| w as u32 * 64 + bits.trailing_zeros())
    })
}

/// Whether a number belongs to the pager, so that the program must not touch it.
pub fn is_ours(fd: i32) -> bool {
    let adopted = usize::try_from(fd).is_ok_and(|fd| {
        OURS.get(fd / 64).is_some_and(|word| word.load(SeqCst) >> (fd % 64) & 1 == 1)
    });
    if adopted && !holds(fd) {
        forget(fd);
        return false;
    }
    adopted
}
