//! A ring of messages in memory that two processes share: one writes, one reads, and each may die at any moment.
//!
//! ```text
//!   ┌ written │ read │ sleeping ┐┌ messages: length (4 bytes), bytes, up to the next multiple of 8 ┐
//! ```
//!
//! A message is there when `written` says so, never in part: a writer that dies in between leaves what was there before.
//! What the other side wrote is checked before it is used, for it may be out of its mind.

use std::borrow::Cow;
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
    /// Where the message began that was read last.
    began: u64,
}

// SAFETY: the mapping belongs to this value; the other process only touches it by the rules above.
unsafe impl Send for Ring {}

/// A message that is looked at, and where the next begins.
pub type Seen<'a> = (Cow<'a, [u8]>, u64);

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
        Self::mapped(fd, rooms, index, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// The same, to [`Ring::look`] into.
    pub fn view(fd: BorrowedFd, rooms: &[usize], index: usize) -> io::Result<Ring> {
        Self::mapped(fd, rooms, index, libc::PROT_READ)
    }

    fn mapped(fd: BorrowedFd, rooms: &[usize], index: usize, protection: i32) -> io::Result<Ring> {
        assert!(rooms[index].is_power_of_two());
        let before: usize = rooms[..index].iter().map(|room| HEADER_BYTES + room).sum();
        let (bytes, flags) = (HEADER_BYTES + rooms[index], libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping inside of the file.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), before as i64) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { base: base.cast(), room: rooms[index] as u64, at: 0, began: 0 })
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
        let first = message.len().min(self.until_wrap(at));
        // SAFETY: both parts are in the mapping, and the room was checked.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), self.place(at), first);
            std::ptr::copy_nonoverlapping(message[first..].as_ptr(), self.base.add(HEADER_BYTES), message.len() - first);
        }
    }

    /// Appends the next message to `into`; false when there is none.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Result<bool, Nonsense> {
        let Some((start, length)) = self.entry(self.at)? else { return Ok(false) };
        let first = length.min(self.until_wrap(start));
        into.reserve(length);
        // SAFETY: both parts are in the mapping; into has the room.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(self.place(start), end, first);
            std::ptr::copy_nonoverlapping(self.base.add(HEADER_BYTES), end.add(first), length - first);
            into.set_len(into.len() + length);
        }
        self.began = self.at;
        self.at += entry_bytes(length);
        self.read().store(self.at, Ordering::SeqCst);
        Ok(true)
    }

    /// Where the message that was popped last began.
    pub fn popped_at(&self) -> u64 {
        self.began
    }

    /// Whether what began at `at` cannot have been written over, not even by a message that the writer has not finished.
    pub fn keeps(&self, at: u64) -> bool {
        let there = self.written().load(Ordering::SeqCst).wrapping_sub(at);
        there <= self.room - entry_bytes(self.message_bytes_max())
    }

    /// The message that begins at `at`, and where the next does; `None` at the end of what is written. Only where the writer
    /// is dead, and where the ring [`keeps`](Ring::keeps) it.
    pub fn look(&self, at: u64) -> Result<Option<Seen<'_>>, Nonsense> {
        let Some((start, length)) = self.entry(at)? else { return Ok(None) };
        let first = length.min(self.until_wrap(start));
        // SAFETY: both parts are in the mapping and nobody writes any more.
        let [head, tail] = unsafe {
            [(self.place(start), first), (self.place(0), length - first)].map(|(part, bytes)| std::slice::from_raw_parts(part, bytes))
        };
        let message = if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
        Ok(Some((message, at + entry_bytes(length))))
    }

    /// Start and length of the message that begins at `at`.
    fn entry(&self, at: u64) -> Result<Option<(u64, usize)>, Nonsense> {
        let written = self.written().load(Ordering::SeqCst);
        let there = written.wrapping_sub(at);
        if there == 0 {
            return Ok(None);
        }
        let nonsense = Nonsense { written, read: at, room: self.room };
        if there > self.room || !there.is_multiple_of(8) || !at.is_multiple_of(8) {
            return Err(nonsense);
        }
        // SAFETY: in the mapping, aligned and written.
        let length = unsafe { self.place(at).cast::<u64>().read() };
        if length > self.room / 2 || entry_bytes(length as usize) > there {
            return Err(nonsense);
        }
        Ok(Some((at + 8, length as usize)))
    }

    fn until_wrap(&self, at: u64) -> usize {
        (self.room - (at & (self.room - 1))) as usize
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

        /// Whoever looks on finds what is still there, whole and in order, though it was read and though another message was begun.
        #[test]
        fn what_was_pushed_is_seen_as_long_as_it_is_kept(lengths in proptest::collection::vec(0..2048usize, 1..200), begun in 0..2048usize) {
            let fd = memory(&ROOMS).unwrap();
            let (mut writer, mut reader) = (Ring::map(fd.as_fd(), &ROOMS, 0).unwrap(), Ring::map(fd.as_fd(), &ROOMS, 0).unwrap());
            let (mut messages, mut message) = (Vec::new(), Vec::new());
            for (n, &length) in lengths.iter().enumerate() {
                prop_assert!(writer.push(&vec![n as u8; length]));
                prop_assert!(reader.pop(&mut message).unwrap());
                messages.push((reader.popped_at(), std::mem::take(&mut message)));
            }
            writer.copy(writer.at, &vec![255; 8 + begun]);
            let view = Ring::view(fd.as_fd(), &ROOMS, 0).unwrap();
            let kept = messages.iter().position(|&(at, _)| view.keeps(at)).unwrap_or(messages.len());
            prop_assert!(kept == messages.len() || messages[kept..].iter().all(|&(at, _)| view.keeps(at)));
            prop_assert!(kept < messages.len() || entry_bytes(lengths[lengths.len() - 1]) >= 2048);
            let mut at = messages.get(kept).map_or(writer.at, |&(at, _)| at);
            for (began, message) in &messages[kept..] {
                let (seen, next) = view.look(at).unwrap().unwrap();
                prop_assert_eq!((at, seen.as_ref()), (*began, message.as_slice()));
                at = next;
            }
            prop_assert_eq!(view.look(at), Ok(None));
        }

        /// A writer that is out of its mind is found out or read as some message; nothing is read outside.
        #[test]
        fn no_header_panics(written: u64, length: u64, at: u64) {
            let fd = memory(&ROOMS).unwrap();
            let mut ring = Ring::map(fd.as_fd(), &ROOMS, 0).unwrap();
            ring.written().store(written, Ordering::SeqCst);
            // SAFETY: inside of the mapping.
            unsafe { ring.place(0).cast::<u64>().write(length) };
            let inside = written.wrapping_sub(at % ROOMS[0] as u64);
            for at in [0, at, at & !7, inside, inside & !7] {
                if let Ok(Some((message, next))) = ring.look(at) {
                    prop_assert!(message.len() <= 2048 && next.wrapping_sub(at) <= 2056);
                }
            }
            let mut message = Vec::new();
            if ring.pop(&mut message) == Ok(true) {
                prop_assert!(message.len() <= 2048);
            }
        }
    }
}
