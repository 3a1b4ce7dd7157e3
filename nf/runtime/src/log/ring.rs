//! A ring of messages in memory that two processes share: one writes, one reads, and each may die at any moment.
//!
//! ```text
//!   ┌ written │ read │ sleeping ┐┌ messages: length (4 bytes), bytes, up to the next multiple of 8 ┐
//! ```
//!
//! A message is there when `written` says so, never in part: a writer that dies in between leaves what was there before.
//! What the other side wrote is checked before it is used, for it may be out of its mind.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const HEADER_BYTES: usize = 4096;

/// One direction between two processes.
pub struct Ring {
    base: *mut u8,
    /// A power of two.
    room: u64,
    /// The own position, which nobody else can move.
    at: u64,
}

// SAFETY: the mapping belongs to this value; the other process only touches it by the rules above.
unsafe impl Send for Ring {}

/// The other side wrote what cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared ring says that {written} bytes are written and {read} read, of {room}: it is given up")]
pub struct Nonsense {
    written: u64,
    read: u64,
    room: u64,
}

/// Memory for rings of `rooms` bytes (powers of two), one behind the other.
pub fn memory(rooms: &[usize]) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"pando-log".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let bytes: usize = rooms.iter().map(|room| HEADER_BYTES + room).sum();
    // SAFETY: plain system call.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

impl Ring {
    /// The ring number `index` of what [`memory`] made of the same `rooms`; its pages are there afterwards.
    pub fn map(fd: BorrowedFd, rooms: &[usize], index: usize) -> io::Result<Ring> {
        assert!(rooms[index].is_power_of_two());
        let before: usize = rooms[..index].iter().map(|room| HEADER_BYTES + room).sum();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let bytes = HEADER_BYTES + rooms[index];
        // SAFETY: a new mapping inside of the file.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), before as i64) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { base: base.cast(), room: rooms[index] as u64, at: 0 })
    }

    fn written(&self) -> &AtomicU64 {
        // SAFETY: the header is mapped and aligned.
        unsafe { AtomicU64::from_ptr(self.base.cast()) }
    }

    fn read(&self) -> &AtomicU64 {
        // SAFETY: as above; a line of cache of its own.
        unsafe { AtomicU64::from_ptr(self.base.add(64).cast()) }
    }

    /// Whether the reader sleeps; 1 when it does.
    pub fn sleeping(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.add(128).cast()) }
    }

    /// Bytes that are written and not read.
    pub fn fill(&self) -> u64 {
        self.written().load(Ordering::Acquire).wrapping_sub(self.read().load(Ordering::Acquire))
    }

    /// What the reader has read in all: whoever watches it sees whether it lives.
    pub fn progress(&self) -> u64 {
        self.read().load(Ordering::Acquire)
    }

    /// The longest message that the ring takes.
    pub fn message_bytes_max(&self) -> usize {
        self.room as usize / 2
    }

    fn place(&self, at: u64) -> *mut u8 {
        // SAFETY: the offset is below the room.
        unsafe { self.base.add(HEADER_BYTES + (at & (self.room - 1)) as usize) }
    }

    /// Whether there is room for a message of so many bytes now.
    pub fn has_room(&self, length: usize) -> bool {
        let used = self.at.wrapping_sub(self.read().load(Ordering::Acquire));
        used <= self.room && entry_bytes(length) <= self.room - used
    }

    /// Writes a message; false when there is no room now.
    pub fn push(&mut self, message: &[u8]) -> bool {
        assert!(message.len() <= self.message_bytes_max(), "a message of {} bytes in a ring of {}", message.len(), self.room);
        if !self.has_room(message.len()) {
            return false;
        }
        // SAFETY: these 8 bytes are in the mapping (positions are multiples of 8) and not the reader's yet.
        unsafe { self.place(self.at).cast::<u64>().write(message.len() as u64) };
        self.copy(self.at + 8, message);
        self.at += entry_bytes(message.len());
        // The reader must not be seen awake from before this store: it looks again after it has said that it sleeps.
        self.written().store(self.at, Ordering::SeqCst);
        true
    }

    fn copy(&self, at: u64, message: &[u8]) {
        let first = message.len().min((self.room - (at & (self.room - 1))) as usize);
        // SAFETY: both parts are in the mapping, and the room was checked.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), self.place(at), first);
            std::ptr::copy_nonoverlapping(message[first..].as_ptr(), self.base.add(HEADER_BYTES), message.len() - first);
        }
    }

    /// Appends the next message to `into`; false when there is none.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Result<bool, Nonsense> {
        let written = self.written().load(Ordering::SeqCst);
        let there = written.wrapping_sub(self.at);
        if there == 0 {
            return Ok(false);
        }
        let nonsense = Nonsense { written, read: self.at, room: self.room };
        if there > self.room || !there.is_multiple_of(8) {
            return Err(nonsense);
        }
        // SAFETY: in the mapping, and written.
        let length = unsafe { self.place(self.at).cast::<u64>().read() };
        if length > self.room / 2 || entry_bytes(length as usize) > there {
            return Err(nonsense);
        }
        let (start, length) = (self.at + 8, length as usize);
        let first = length.min((self.room - (start & (self.room - 1))) as usize);
        into.reserve(length);
        // SAFETY: both parts are in the mapping; into has the room.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(self.place(start), end, first);
            std::ptr::copy_nonoverlapping(self.base.add(HEADER_BYTES), end.add(first), length - first);
            into.set_len(into.len() + length);
        }
        self.at += entry_bytes(length);
        self.read().store(self.at, Ordering::SeqCst);
        Ok(true)
    }
}

fn entry_bytes(length: usize) -> u64 {
    (8 + length as u64).next_multiple_of(8)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in map.
        unsafe { libc::munmap(self.base.cast(), HEADER_BYTES + self.room as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    const ROOMS: [usize; 2] = [4096, 8192];

    proptest! {
        /// Whatever is written comes out once, whole and in order, wherever the ring wraps.
        #[test]
        fn what_is_pushed_is_popped(lengths in proptest::collection::vec(0..2048usize, 1..200), index in 0..2usize) {
            let fd = memory(&ROOMS).unwrap();
            let (mut writer, mut reader) = (Ring::map(fd.as_fd(), &ROOMS, index).unwrap(), Ring::map(fd.as_fd(), &ROOMS, index).unwrap());
            let mut popped = Vec::new();
            for (n, &length) in lengths.iter().enumerate() {
                let message = vec![n as u8; length];
                while !writer.push(&message) {
                    popped.push(Vec::new());
                    prop_assert!(reader.pop(popped.last_mut().unwrap()).unwrap());
                }
            }
            let mut last = Vec::new();
            while reader.pop(&mut last).unwrap() {
                popped.push(std::mem::take(&mut last));
            }
            prop_assert_eq!(popped, lengths.iter().enumerate().map(|(n, &l)| vec![n as u8; l]).collect::<Vec<_>>());
        }

        /// A writer that is out of its mind is found out or read as some message; nothing is read outside.
        #[test]
        fn no_header_panics(written: u64, length: u64) {
            let fd = memory(&ROOMS).unwrap();
            let mut ring = Ring::map(fd.as_fd(), &ROOMS, 0).unwrap();
            ring.written().store(written, Ordering::SeqCst);
            // SAFETY: inside of the mapping.
            unsafe { ring.place(0).cast::<u64>().write(length) };
            let mut message = Vec::new();
            if ring.pop(&mut message) == Ok(true) {
                prop_assert!(message.len() <= 2048);
            }
        }
    }
}
