//! A ring of messages in memory shared by two processes. One writes, the other reads, and each may
//! die at any moment.
//!
//! ```text
//!   ┌ written │ read │ sleeping ┐┌ messages: length (4 bytes), bytes, padding to a multiple of 8 ┐
//! ```
//!
//! A message exists once `written` covers it, never in part. A writer that dies in between leaves
//! the messages before. Each side checks the other side's values before use, for they may be wrong.

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
    /// This side's own position, which the other process cannot move.
    at: u64,
    /// The start of the last message read.
    began: u64,
}

// SAFETY: the mapping belongs to this value; the other process touches it only by the rules above.
unsafe impl Send for Ring {}

/// A message in the ring and the position of the next.
pub type Seen<'a> = (Cow<'a, [u8]>, u64);

/// The other side wrote impossible positions or lengths.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the shared ring says that {written} bytes are written and {read} read, of {room}: it is given \
     up"
)]
pub struct Nonsense {
    written: u64,
    read: u64,
    room: u64,
}

/// Makes memory for rings of `rooms` bytes (powers of two), one after the other.
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
    /// Maps ring number `index` of a [`memory`] with the same `rooms`, and loads its pages.
    pub fn map(fd: BorrowedFd, rooms: &[usize], index: usize) -> io::Result<Ring> {
        Self::mapped(fd, rooms, index, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps the ring read-only, for [`Ring::look`].
    pub fn view(fd: BorrowedFd, rooms: &[usize], index: usize) -> io::Result<Ring> {
        Self::mapped(fd, rooms, index, libc::PROT_READ)
    }

    fn mapped(fd: BorrowedFd, rooms: &[usize], index: usize, protection: i32) -> io::Result<Ring> {
        assert!(rooms[index].is_power_of_two());
        let before: usize = rooms[..index].iter().map(|room| HEADER_BYTES + room).sum();
        let (bytes, flags) = (HEADER_BYTES + rooms[index], libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping inside the file.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                flags,
                fd.as_raw_fd(),
                before as i64,
            )
        };
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
        // SAFETY: as above; a cache line of its own.
        unsafe { AtomicU64::from_ptr(self.base.add(64).cast()) }
    }

    /// Returns the flag of a sleeping reader; 1 while it sleeps.
    pub fn sleeping(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.add(128).cast()) }
    }

    /// Returns the number of bytes that are written and not read.
    pub fn fill(&self) -> u64 {
        self.written().load(Ordering::Acquire).wrapping_sub(self.read().load(Ordering::Acquire))
    }

    /// Returns the reader's position. A position that moves shows that the reader is alive.
    pub fn progress(&self) -> u64 {
        self.read().load(Ordering::Acquire)
    }

    /// Returns the length of the longest message.
    pub fn message_bytes_max(&self) -> usize {
        self.room as usize / 2
    }

    fn place(&self, at: u64) -> *mut u8 {
        // SAFETY: the offset is below the room.
        unsafe { self.base.add(HEADER_BYTES + (at & (self.room - 1)) as usize) }
    }

    /// Reports whether a message of `length` bytes has room now.
    pub fn has_room(&self, length: usize) -> bool {
        let used = self.at.wrapping_sub(self.read().load(Ordering::Acquire));
        used <= self.room && entry_bytes(length) <= self.room - used
    }

    /// Writes a message; returns false if there is no room now.
    pub fn push(&mut self, message: &[u8]) -> bool {
        assert!(
            message.len() <= self.message_bytes_max(),
            "a message of {} bytes in a ring of {}",
            message.len(),
            self.room
        );
        if !self.has_room(message.len()) {
            return false;
        }
        // SAFETY: these 8 bytes are in the mapping (positions are multiples of 8) and not the
        // reader's yet.
        unsafe { self.place(self.at).cast::<u64>().write(message.len() as u64) };
        self.copy(self.at + 8, message);
        self.at += entry_bytes(message.len());
        // Sequentially consistent: the reader sets its sleeping flag, then looks here again. With a
        // weaker order the writer could read an old flag and miss the sleeping reader.
        self.written().store(self.at, Ordering::SeqCst);
        true
    }

    fn copy(&self, at: u64, message: &[u8]) {
        let first = message.len().min(self.until_wrap(at));
        // SAFETY: both parts are in the mapping, and the room was checked.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), self.place(at), first);
            std::ptr::copy_nonoverlapping(
                message[first..].as_ptr(),
                self.base.add(HEADER_BYTES),
                message.len() - first,
            );
        }
    }

    /// Appends the next message to `into`; returns false if there is none.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Result<bool, Nonsense> {
        let Some((start, length)) = self.entry(self.at)? else { return Ok(false) };
        let first = length.min(self.until_wrap(start));
        into.reserve(length);
        // SAFETY: both parts are in the mapping; `into` has the room.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(self.place(start), end, first);
            std::ptr::copy_nonoverlapping(
                self.base.add(HEADER_BYTES),
                end.add(first),
                length - first,
            );
            into.set_len(into.len() + length);
        }
        self.began = self.at;
        self.at += entry_bytes(length);
        self.read().store(self.at, Ordering::SeqCst);
        Ok(true)
    }

    /// Returns where the last popped message began.
    pub fn popped_at(&self) -> u64 {
        self.began
    }

    /// Reports whether the message at `at` is surely intact, even if the writer has begun another
    /// one.
    pub fn keeps(&self, at: u64) -> bool {
        let there = self.written().load(Ordering::SeqCst).wrapping_sub(at);
        there <= self.room - entry_bytes(self.message_bytes_max())
    }

    /// Returns the message at `at` and the start of the next; `None` at the end. Call it only if
    /// the writer is dead and the ring [`keeps`](Ring::keeps) the message.
    pub fn look(&self, at: u64) -> Result<Option<Seen<'_>>, Nonsense> {
        let Some((start, length)) = self.entry(at)? else { return Ok(None) };
        let first = length.min(self.until_wrap(start));
        // SAFETY: both parts are in the mapping, and the writer is dead.
        let [head, tail] = unsafe {
            [(self.place(start), first), (self.place(0), length - first)]
                .map(|(part, bytes)| std::slice::from_raw_parts(part, bytes))
        };
        let message =
            if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
        Ok(Some((message, at + entry_bytes(length))))
    }

    /// Returns start and length of the message at `at`.
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
        /// Every message comes out once, whole and in order, wherever the ring wraps.
        #[test]
        fn what_is_pushed_is_popped(
            lengths in proptest::collection::vec(0..2048usize, 1..200),
            index in 0..2usize,
        ) {
            let fd = memory(&ROOMS).unwrap();
            let (mut writer, mut reader) = (
                Ring::map(fd.as_fd(), &ROOMS, index).unwrap(),
                Ring::map(fd.as_fd(), &ROOMS, index).unwrap(),
            );
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
            prop_assert_eq!(
                popped,
                lengths.iter().enumerate().map(|(n, &l)| vec![n as u8; l]).collect::<Vec<_>>()
            );
        }

        /// A viewer finds the kept messages whole and in order, even after they were read and after
        /// the writer began another one.
        #[test]
        fn what_was_pushed_is_seen_as_long_as_it_is_kept(
            lengths in proptest::collection::vec(0..2048usize, 1..200),
            begun in 0..2048usize,
        ) {
            let fd = memory(&ROOMS).unwrap();
            let (mut writer, mut reader) = (
                Ring::map(fd.as_fd(), &ROOMS, 0).unwrap(),
                Ring::map(fd.as_fd(), &ROOMS, 0).unwrap(),
            );
            let (mut messages, mut message) = (Vec::new(), Vec::new());
            for (n, &length) in lengths.iter().enumerate() {
                prop_assert!(writer.push(&vec![n as u8; length]));
                prop_assert!(reader.pop(&mut message).unwrap());
                messages.push((reader.popped_at(), std::mem::take(&mut message)));
            }
            writer.copy(writer.at, &vec![255; 8 + begun]);
            let view = Ring::view(fd.as_fd(), &ROOMS, 0).unwrap();
            let kept =
                messages.iter().position(|&(at, _)| view.keeps(at)).unwrap_or(messages.len());
            prop_assert!(
                kept == messages.len() || messages[kept..].iter().all(|&(at, _)| view.keeps(at))
            );
            prop_assert!(kept < messages.len() || entry_bytes(lengths[lengths.len() - 1]) >= 2048);
            let mut at = messages.get(kept).map_or(writer.at, |&(at, _)| at);
            for (began, message) in &messages[kept..] {
                let (seen, next) = view.look(at).unwrap().unwrap();
                prop_assert_eq!((at, seen.as_ref()), (*began, message.as_slice()));
                at = next;
            }
            prop_assert_eq!(view.look(at), Ok(None));
        }

        /// A wrong header is detected or read as some message; no read leaves the mapping.
        #[test]
        fn no_header_panics(written: u64, length: u64, at: u64) {
            let fd = memory(&ROOMS).unwrap();
            let mut ring = Ring::map(fd.as_fd(), &ROOMS, 0).unwrap();
            ring.written().store(written, Ordering::SeqCst);
            // SAFETY: inside the mapping.
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
