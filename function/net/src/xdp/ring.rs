//! The rings that a socket shares with the kernel. One side writes entries and moves the producer
//! index. The other side reads entries and moves the consumer index. The ring decides which side is
//! which.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring of entries, seen from this process.
pub struct Ring<T> {
    memory: NonNull<u8>,
    bytes: usize,
    ours: *const AtomicU32,
    theirs: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    size: u32,
    /// This side's position; the kernel sees it after [`Ring::publish`].
    at: u32,
}

/// The index that this process moves.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    /// This process writes entries.
    Producer,
    /// This process reads entries.
    Consumer,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries of `socket`.
    pub fn map(
        socket: &OwnedFd,
        page: i64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
        side: Side,
    ) -> io::Result<Ring<T>> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping of the socket's ring.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), page)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast::<u8>()).expect("a mapping is not at 0");
        // SAFETY: the offsets are the kernel's, inside the mapping.
        let at = |offset: u64| unsafe { memory.as_ptr().add(offset as usize) };
        let (producer, consumer) = (at(offsets.producer).cast(), at(offsets.consumer).cast());
        let (ours, theirs) =
            if side == Side::Producer { (producer, consumer) } else { (consumer, producer) };
        Ok(Ring {
            memory,
            bytes,
            ours,
            theirs,
            flags: at(offsets.flags).cast(),
            entries: at(offsets.desc).cast(),
            size,
            at: 0,
        })
    }

    fn behind(&self) -> u32 {
        // SAFETY: inside the mapping, and aligned by the kernel.
        self.at.wrapping_sub(unsafe { &*self.theirs }.load(Ordering::Acquire))
    }

    /// Returns how many entries a consumer can read.
    pub fn ready(&self) -> u32 {
        self.behind().wrapping_neg().min(self.size)
    }

    /// Returns how many entries of a producer the kernel has not taken yet.
    pub fn waiting(&self) -> u32 {
        self.behind().min(self.size)
    }

    /// Returns the entry `place` entries after this side's position.
    fn entry(&self, place: u32) -> *mut T {
        // SAFETY: the size is a power of two, so the result is one of the entries.
        unsafe { self.entries.add((self.at.wrapping_add(place) & (self.size - 1)) as usize) }
    }

    /// Reads the entry `place` entries after the first ready one. That entry must be ready.
    pub fn peek(&self, place: u32) -> T {
        // SAFETY: the kernel has published it.
        unsafe { self.entry(place).read() }
    }

    /// Writes the next entry, which must have room.
    pub fn push(&mut self, entry: T) {
        // SAFETY: the kernel does not read it before it is published.
        unsafe { self.entry(0).write(entry) };
        self.at = self.at.wrapping_add(1);
    }

    /// Skips the next entry.
    pub fn skip(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    /// Publishes this side's position to the kernel.
    pub fn publish(&self) {
        // SAFETY: inside the mapping, and aligned by the kernel.
        let ours = unsafe { &*self.ours };
        // Do not write an unchanged position: the kernel keeps its copy of that cache line.
        if ours.load(Ordering::Relaxed) != self.at {
            ours.store(self.at, Ordering::Release);
        }
    }

    /// Reports whether the kernel needs a call to continue.
    pub fn needs_wakeup(&self) -> bool {
        // SAFETY: inside the mapping, and aligned by the kernel.
        unsafe { &*self.flags }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in map, and no pointer into it outlives the ring.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
