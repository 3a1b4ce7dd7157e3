//! The kinds of the program's descriptors: files, sockets and others.

use crate::sys;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use libc::c_int;

/// Whether a descriptor is a file or a block device, where a short transfer means the end.
pub unsafe fn is_file(fd: c_int) -> bool {
    unsafe {
        let mut s: libc::stat = core::mem::zeroed();
        sys!(libc::SYS_fstat, fd, &raw mut s) == 0
            && [libc::S_IFREG, libc::S_IFBLK].contains(&(s.st_mode & libc::S_IFMT))
    }
}

/// The kinds of the first descriptors are cached. 0 = unknown.
const KINDS: usize = 4096;
const SOCKET: u8 = 1;
const OTHER: u8 = 2;
static KIND: [AtomicU8; KINDS] = [const { AtomicU8::new(0) }; KINDS];

/// Forgets the kind of a descriptor, which may refer to another file from now on.
pub fn forget(fd: c_int) {
    if let Some(kind) = usize::try_from(fd).ok().and_then(|fd| KIND.get(fd)) {
        kind.store(0, Relaxed);
    }
}

/// Whether a descriptor is a socket. The cache may be wrong for a number that was closed without
/// the C library. A write to its new file is then tried without pins first, which only few devices
/// would notice.
pub unsafe fn is_socket(fd: c_int) -> bool {
    unsafe {
        let Some(kind) = usize::try_from(fd).ok().and_then(|fd| KIND.get(fd)) else { return false };
        if kind.load(Relaxed) == 0 {
            let mut s: libc::stat = core::mem::zeroed();
            let r = sys!(libc::SYS_fstat, fd, &raw mut s);
            kind.store(
                if r == 0 && s.st_mode & libc::S_IFMT == libc::S_IFSOCK { SOCKET } else { OTHER },
                Relaxed,
            );
        }
        kind.load(Relaxed) == SOCKET
    }
}
