//! The rings that a socket and the kernel share: one side writes entries and moves the producer, the other reads them and
//! moves the consumer. Which side is whose depends on the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring of entries, seen from this process's side.
pub struct Ring<T> {
    memory: NonNull<u8>,
    bytes: usize,
    ours: *const AtomicU32,
    theirs: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    size: u32,
    /// Where this side is; the kernel sees it when it is published.
    at: u32,
}

/// Which index is moved by this process.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    /// It writes entries.
    Producer,
    /// It reads them.
    Consumer,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries that `socket` was given.
    pub fn map(socket: &OwnedFd, page: i64, offsets: &libc::xdp_ring_offset, size: u32, side: Side) -> io::Result<Ring<T>> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping of the socket's ring.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), page) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast::<u8>()).expect("a mapping is not at 0");
        // SAFETY: the kernel says where in the mapping they are.
        let at = |offset: u64| unsafe { memory.as_ptr().add(offset as usize) };
        let (producer, consumer) = (at(offsets.producer).cast(), at(offsets.consumer).cast());
        let (ours, theirs) = if side == Side::Producer { (producer, consumer) } else { (consumer, producer) };
        Ok(Ring { memory, bytes, ours, theirs, flags: at(offsets.flags).cast(), entries: at(offsets.desc).cast(), size, at: 0 })
    }

    fn behind(&self) -> u32 {
        // SAFETY: inside of the mapping, and aligned by the kernel.
        self.at.wrapping_sub(unsafe { &*self.theirs }.load(Ordering::Acquire))
    }

    /// Of a consumer: entries that can be read.
    pub fn ready(&self) -> u32 {
        self.behind().wrapping_neg().min(self.size)
    }

    /// Of a producer: entries that the kernel has not taken yet.
    pub fn waiting(&self) -> u32 {
        self.behind().min(self.size)
    }

    /// The entry `place` behind where this side is.
    fn entry(&self, place: u32) -> *mut T {
        // SAFETY: the size is a power of two, so the result is one of the entries.
        unsafe { self.entries.add((self.at.wrapping_add(place) & (self.size - 1)) as usize) }
    }

    /// Reads the entry `place` behind the first that is ready, which it has to be.
    pub fn peek(&self, place: u32) -> T {
        // SAFETY: the kernel has published it.
        unsafe { self.entry(place).read() }
    }

    /// Writes the next entry, for which there has to be room.
    pub fn push(&mut self, entry: T) {
        // SAFETY: the kernel does not read it before it is published.
        unsafe { self.entry(0).write(entry) };
        self.at = self.at.wrapping_add(1);
    }

    /// Goes past the next entry.
    pub fn skip(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    /// Shows the kernel where this side is.
    pub fn publish(&self) {
        // SAFETY: inside of the mapping, and aligned by the kernel.
        let ours = unsafe { &*self.ours };
        // Nothing new: the kernel's copy of that line stays where it is.
        if ours.load(Ordering::Relaxed) != self.at {
            ours.store(self.at, Ordering::Release);
        }
    }

    /// Whether the kernel wants a call to go on.
    pub fn needs_wakeup(&self) -> bool {
        // SAFETY: inside of the mapping, and aligned by the kernel.
        unsafe { &*self.flags }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in map, and no pointer into it outlives the ring.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
