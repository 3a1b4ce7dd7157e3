//! The memory that the units of a group on one host share. It holds the set of live units, the load
//! of each, a ring for each ordered pair, and the times of use of leased numbers. `bpf/group.h`
//! defines the layout.
//!
//! A ring has one writer and one reader. Its tail alone decides which records exist, so a unit that
//! dies in mid-message leaves no partial record. The file is sparse: 64 × 64 rings take memory only
//! in use.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use pando_chain::flows::STAGES_MAX;
use pando_chain::leases::Uses;
use pando_handover::{UNITS_MAX, UnitId};

use super::transport::Transport;

const PAGE_WORDS: usize = 512;
const RING_WORDS: usize = 1 << 14;
const RINGS_AT: usize = PAGE_WORDS * (1 + UNITS_MAX);
const NUMBERS_AT: usize = RINGS_AT + UNITS_MAX * UNITS_MAX * RING_WORDS;
/// Numbers that may be leased to flows: ports.
const NUMBERS: usize = 1 << 16;
/// Words of the file; `driver/sandbox/unit` makes it.
const WORDS: usize = NUMBERS_AT + STAGES_MAX * NUMBERS / 2;
/// Words of a ring before its records: head and tail, on cache lines of their own.
const RING_HEAD: usize = 16;
const ROOM: usize = RING_WORDS - RING_HEAD;
const WRAP: u64 = u64::MAX;

/// Word of the first page: a bit per live unit.
const ALIVE: usize = 0;

/// Words of a unit's page.
const DOORBELL: usize = 0;
const SLEEPS: usize = 8;
const REPORT: usize = 16;

/// A unit's report to the group after every round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Time of the report, by the monotonic clock.
    pub now_ns: u64,
    /// Time at which the unit would finish all its packets.
    pub finish_ns: u64,
    /// Packets not processed yet, including those that wait for state.
    pub waiting: u64,
    /// Packets taken from steering.
    pub packets: u64,
    /// Bytes taken from steering.
    pub bytes: u64,
    /// 1 after a leaving unit has handed over all its flows.
    pub left: u64,
    /// Processor time that the unit used, in nanoseconds; 0 for a unit with a limited rate.
    pub worked_ns: u64,
}

/// The mapping.
pub struct Shared {
    words: *mut u64,
}

// SAFETY: all access is atomic, or to parts of a ring that belong to one side.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the file behind a descriptor.
    pub fn open(file: &OwnedFd) -> io::Result<Shared> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a zeroed stat is valid, and the call fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        if unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size < (WORDS * 8) as i64 {
            return Err(io::Error::other(format!(
                "the group's memory has {} bytes, this unit needs {}",
                stat.st_size,
                WORDS * 8
            )));
        }
        // SAFETY: a new mapping of a file of that size.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), WORDS * 8, protection, flags, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Shared { words: at.cast() })
        }
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < WORDS);
        // SAFETY: inside the mapping, aligned.
        unsafe { AtomicU64::from_ptr(self.words.add(n)) }
    }

    fn of(&self, unit: UnitId, word: usize) -> &AtomicU64 {
        self.word(PAGE_WORDS * (1 + usize::from(unit)) + word)
    }

    /// Returns a bit per live unit.
    pub fn alive(&self) -> u64 {
        self.word(ALIVE).load(Ordering::Acquire)
    }

    /// Publishes the load of `unit`.
    pub fn report(&self, unit: UnitId, r: &Report) {
        for (n, value) in
            [r.now_ns, r.finish_ns, r.waiting, r.packets, r.bytes, r.left, r.worked_ns]
                .into_iter()
                .enumerate()
        {
            self.of(unit, REPORT + n).store(value, Ordering::Release);
        }
    }

    fn ring(&self, from: UnitId, to: UnitId) -> Ring<'_> {
        let at = RINGS_AT + (usize::from(to) * UNITS_MAX + usize::from(from)) * RING_WORDS;
        Ring { shared: self, at }
    }
}

/// The times at which the numbers of one stage were last used.
pub struct Numbers(pub Arc<Shared>, pub usize);

impl Numbers {
    fn word(&self, number: u32) -> Option<&AtomicU32> {
        let at = self.1 * NUMBERS + number as usize;
        // SAFETY: inside the mapping, which is not smaller than WORDS.
        (self.1 < STAGES_MAX && (number as usize) < NUMBERS).then(|| unsafe {
            AtomicU32::from_ptr(self.0.words.add(NUMBERS_AT).cast::<u32>().add(at))
        })
    }
}

impl Uses for Numbers {
    fn claim(&self, number: u32, is_free: &dyn Fn(u32) -> bool, now_s: u32) -> bool {
        let free = |last_s| is_free(last_s).then_some(now_s);
        self.word(number).is_some_and(|word| {
            word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok()
        })
    }

    fn note(&self, number: u32, now_s: u32) {
        self.word(number).into_iter().for_each(|word| word.store(now_s, Ordering::Relaxed));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in open.
        unsafe { libc::munmap(self.words.cast(), WORDS * 8) };
    }
}

/// A ring from one unit to another. A record is a length in bytes and as many bytes.
struct Ring<'a> {
    shared: &'a Shared,
    at: usize,
}

impl Ring<'_> {
    fn head(&self) -> &AtomicU64 {
        self.shared.word(self.at)
    }

    fn tail(&self) -> &AtomicU64 {
        self.shared.word(self.at + 8)
    }

    fn place(&self, position: u64) -> usize {
        self.at + RING_HEAD + position as usize % ROOM
    }

    /// Appends a record; returns `false` if there is no room.
    fn push(&self, bytes: &[u8]) -> bool {
        let words = 1 + bytes.len().div_ceil(8);
        let (mut tail, head) =
            (self.tail().load(Ordering::Relaxed), self.head().load(Ordering::Acquire));
        let to_end = ROOM - tail as usize % ROOM;
        let skipped = if words > to_end { to_end } else { 0 };
        if words + skipped > ROOM - (tail.wrapping_sub(head) as usize).min(ROOM) {
            return false;
        }
        if skipped > 0 {
            self.shared.word(self.place(tail)).store(WRAP, Ordering::Relaxed);
            tail += skipped as u64;
        }
        self.shared.word(self.place(tail)).store(bytes.len() as u64, Ordering::Relaxed);
        for (n, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.shared
                .word(self.place(tail) + 1 + n)
                .store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.tail().store(tail + words as u64, Ordering::Release);
        true
    }

    /// Reports whether more than half of the ring is unread.
    fn fills(&self) -> bool {
        let (tail, head) =
            (self.tail().load(Ordering::Relaxed), self.head().load(Ordering::Acquire));
        tail.wrapping_sub(head) > ROOM as u64 / 2
    }

    /// Takes the oldest record. A malformed record, from a faulty writer, empties the ring.
    fn pop(&self) -> Option<Vec<u8>> {
        let (mut head, tail) =
            (self.head().load(Ordering::Relaxed), self.tail().load(Ordering::Acquire));
        if head == tail {
            return None;
        }
        if tail.wrapping_sub(head) > ROOM as u64 {
            self.head().store(tail, Ordering::Release);
            return None;
        }
        let mut length = self.shared.word(self.place(head)).load(Ordering::Relaxed);
        if length == WRAP {
            head = head.wrapping_add((ROOM - head as usize % ROOM) as u64);
            length = self.shared.word(self.place(head)).load(Ordering::Relaxed);
        }
        let words = 1 + length.min(u64::MAX - 7).div_ceil(8);
        let there = tail.wrapping_sub(head);
        if there > ROOM as u64 || words > there || words as usize > ROOM - head as usize % ROOM {
            self.head().store(tail, Ordering::Release);
            return None;
        }
        let at = self.place(head) + 1;
        let mut bytes: Vec<u8> = (0..words as usize - 1)
            .flat_map(|n| self.shared.word(at + n).load(Ordering::Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length as usize);
        self.head().store(head.wrapping_add(words), Ordering::Release);
        Some(bytes)
    }
}

/// Sends messages through the shared memory. An eventfd wakes a sleeping peer; a working peer sees
/// its doorbell.
pub struct SharedMemory {
    unit: UnitId,
    shared: Shared,
    bells: Vec<OwnedFd>,
}

impl SharedMemory {
    /// Returns the unit's end. `bells` are eventfds, one per unit. Messages to an earlier unit of
    /// this number are skipped.
    pub fn new(unit: UnitId, shared: Shared, bells: Vec<OwnedFd>) -> SharedMemory {
        for from in 0..bells.len() as UnitId {
            let ring = shared.ring(from, unit);
            ring.head().store(ring.tail().load(Ordering::Acquire), Ordering::Release);
        }
        SharedMemory { unit, shared, bells }
    }

    /// Returns the memory itself.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl SharedMemory {
    /// Writes a message and rings its receiver's doorbell. Returns `false` without room or for an
    /// unknown unit.
    fn leave(&self, to: UnitId, bytes: &[u8]) -> bool {
        if usize::from(to) >= self.bells.len() || !self.shared.ring(self.unit, to).push(bytes) {
            return false;
        }
        self.shared.of(to, DOORBELL).fetch_or(1 << self.unit, Ordering::SeqCst);
        true
    }

    /// Wakes a sleeping unit.
    fn wake(&self, to: UnitId) {
        if self.shared.of(to, SLEEPS).load(Ordering::SeqCst) != 0 {
            let one = 1u64;
            // SAFETY: eight bytes of ours.
            unsafe {
                libc::write(self.bells[usize::from(to)].as_raw_fd(), (&raw const one).cast(), 8)
            };
        }
    }
}

impl Transport for SharedMemory {
    fn send(&mut self, to: UnitId, bytes: &[u8]) -> bool {
        let left = self.leave(to, bytes);
        if left {
            self.wake(to);
        }
        left
    }

    fn send_ahead(&mut self, to: UnitId, bytes: &[u8]) -> bool {
        let left = self.leave(to, bytes);
        if left && self.shared.ring(self.unit, to).fills() {
            self.wake(to);
        }
        left
    }

    fn written(&self, to: UnitId) -> Option<u64> {
        Some(self.shared.ring(self.unit, to).tail().load(Ordering::Relaxed))
    }

    fn is_unread(&self, to: UnitId, written: u64) -> bool {
        self.shared.ring(self.unit, to).head().load(Ordering::Acquire) < written
    }

    fn receive(&mut self, into: &mut Vec<(UnitId, Vec<u8>)>) {
        let mut rung = self.shared.of(self.unit, DOORBELL).swap(0, Ordering::SeqCst);
        while rung != 0 {
            let from = rung.trailing_zeros() as UnitId;
            rung &= rung - 1;
            while let Some(bytes) = self.shared.ring(from, self.unit).pop() {
                into.push((from, bytes));
            }
        }
    }

    fn sleep(&mut self) -> bool {
        self.shared.of(self.unit, SLEEPS).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.shared.of(self.unit, DOORBELL).load(Ordering::SeqCst) == 0
    }

    fn awake(&mut self, woken: bool) {
        self.shared.of(self.unit, SLEEPS).store(0, Ordering::SeqCst);
        if woken {
            let mut count = 0u64;
            // SAFETY: eight bytes of ours; the eventfd does not block.
            unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        }
    }

    fn fd(&self) -> RawFd {
        self.bells[usize::from(self.unit)].as_raw_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests;
