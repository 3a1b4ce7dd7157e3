//! A page shared by the unit, its standby and the watching process: the unit's health and progress.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ring;

/// Frames that a unit has finished with, per device ring.
pub type Positions = [u64; 2];

/// Counts over all takeovers of a unit.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Count {
    /// Takeovers.
    Takeovers = 16,
    /// Packets sent again because they may not have left before the death.
    SentAgain = 17,
    /// Packets dropped before the functions because two units died on their batch.
    Dropped = 18,
    /// Takeovers without state: unit and log died together.
    StateLost = 19,
    /// Logs filled anew from the unit.
    Refills = 20,
    /// Nanoseconds in which outputs were held for lack of a log.
    HeldNs = 21,
    /// Nanoseconds of the last takeover, from noticing the death until the state was restored.
    TransferNs = 22,
    /// Nanoseconds of the last takeover, from noticing the death until the first packet was sent.
    FirstPacketNs = 23,
    /// Takeovers that had to ask the log.
    Asked = 24,
    /// Packets that left without a log.
    Unlogged = 25,
    /// Flows that the first unit of the run has from the run before.
    TakenUp = 26,
}

const HEARTBEAT: usize = 0;
const STOPPED: usize = 1;
const SENT: usize = 2;
const AT_WORK: usize = 3;
const DEATHS: usize = 4;
const APPENDED: usize = 6;
const FOLLOWED: usize = 7;
const POSITIONS: usize = 8;
const RUN: usize = 10;
/// The lock of the working thread, on cache lines of its own.
const HOLD: usize = 256;

/// The page.
pub struct Vitals {
    words: *mut u64,
    /// This process holds the lock, so the page is never unmapped: at death the kernel releases
    /// only a lock that it can reach.
    pub(super) held: AtomicBool,
}

// SAFETY: all access is atomic.
unsafe impl Send for Vitals {}

/// Makes the memory of a page.
pub fn memory() -> io::Result<OwnedFd> {
    ring::memory(&[0])
}

impl Vitals {
    /// Maps memory made by [`memory`].
    pub fn map(fd: BorrowedFd) -> io::Result<Vitals> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping inside the file.
        let words = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if words == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Vitals { words: words.cast(), held: AtomicBool::new(false) })
        }
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < 512);
        // SAFETY: inside the page, aligned.
        unsafe { AtomicU64::from_ptr(self.words.add(n)) }
    }

    /// Returns the place of the working thread's lock.
    pub(super) fn hold_place(&self) -> *mut libc::pthread_mutex_t {
        const { assert!(HOLD * 8 + size_of::<libc::pthread_mutex_t>() <= 4096) };
        // SAFETY: inside the page, aligned.
        unsafe { self.words.add(HOLD).cast() }
    }

    /// Sets the number of the run, before its first unit starts.
    pub fn set_run(&self, run: u64) {
        self.word(RUN).store(run, Ordering::Release);
    }

    /// Returns the number of the run.
    pub fn run(&self) -> u64 {
        self.word(RUN).load(Ordering::Acquire)
    }

    /// Notes that the unit is alive.
    pub fn beat(&self) {
        self.word(HEARTBEAT).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of beats so far.
    pub fn beats(&self) -> u64 {
        self.word(HEARTBEAT).load(Ordering::Relaxed)
    }

    /// Notes that the unit ends on order, so that its standby does not take over.
    pub fn stop(&self) {
        self.word(STOPPED).store(1, Ordering::Release);
    }

    /// Reports whether the unit was ordered to end.
    pub fn stopped(&self) -> bool {
        self.word(STOPPED).load(Ordering::Acquire) == 1
    }

    /// Notes that the log keeps the batch with this sequence.
    pub fn set_appended(&self, sequence: u64) {
        self.word(APPENDED).store(sequence, Ordering::Release);
    }

    /// Returns the last batch that the log surely keeps. No later batch is billed or sent.
    pub fn appended(&self) -> u64 {
        self.word(APPENDED).load(Ordering::Acquire)
    }

    /// Notes that the standby has everything up to the batch with this sequence.
    pub fn set_followed(&self, sequence: u64) {
        self.word(FOLLOWED).store(sequence, Ordering::Release);
    }

    /// Returns how many batches the log keeps that the standby does not have.
    pub fn behind(&self) -> u64 {
        self.appended().saturating_sub(self.word(FOLLOWED).load(Ordering::Acquire))
    }

    /// Notes that the batch with this sequence has left.
    pub fn set_sent(&self, sequence: u64) {
        self.word(SENT).store(sequence, Ordering::Release);
    }

    /// Returns the last batch that has left.
    pub fn sent(&self) -> u64 {
        self.word(SENT).load(Ordering::Acquire)
    }

    /// Notes the start of a batch of `packets`; 0 marks its end.
    pub fn set_at_work(&self, port: usize, packets: usize) {
        self.word(AT_WORK).store((port as u64) << 32 | packets as u64, Ordering::Release);
    }

    /// Returns device and size of the current batch, if there is one.
    pub fn at_work(&self) -> Option<(usize, usize)> {
        let word = self.word(AT_WORK).load(Ordering::Acquire);
        let packets = (word & 0xffff_ffff) as usize;
        (packets > 0).then_some(((word >> 32) as usize & 1, packets))
    }

    /// Counts a death on the batch that begins at this position. Returns the deaths on it so far.
    pub fn died_at(&self, position: u64) -> u64 {
        if self.word(DEATHS + 1).swap(position, Ordering::AcqRel) != position {
            self.word(DEATHS).store(0, Ordering::Release);
        }
        self.word(DEATHS).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Notes that a batch was finished: the next death is on another batch.
    pub fn survived(&self) {
        self.word(DEATHS).store(0, Ordering::Release);
    }

    /// Notes that the kernel owns a device's frames below this position again.
    pub fn set_position(&self, port: usize, position: u64) {
        self.word(POSITIONS + port).store(position, Ordering::Release);
    }

    /// Returns the positions below which the kernel owns the frames again.
    pub fn positions(&self) -> Positions {
        [0, 1].map(|port| self.word(POSITIONS + port).load(Ordering::Acquire))
    }

    /// Adds to a count.
    pub fn add(&self, count: Count, value: u64) {
        self.word(count as usize).fetch_add(value, Ordering::Relaxed);
    }

    /// Sets a count.
    pub fn set(&self, count: Count, value: u64) {
        self.word(count as usize).store(value, Ordering::Relaxed);
    }

    /// Returns a count.
    pub fn count(&self, count: Count) -> u64 {
        self.word(count as usize).load(Ordering::Relaxed)
    }
}

impl Drop for Vitals {
    fn drop(&mut self) {
        if !*self.held.get_mut() {
            // SAFETY: mapped in map.
            unsafe { libc::munmap(self.words.cast(), 4096) };
        }
    }
}
