//! Leases: who has borrowed how much.

use farmem_core::PAGE_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a lease outlives its last connection, so that a pager may lose one and come back.
const GRACE: Duration = Duration::from_secs(10);

/// Borrowed memory: a sealed memory file of its exact size, mapped here.
pub struct Lease {
    pub id: u64,
    pub slots: u64,
    file: File,
    base: *mut u8,
}

// The mapping is plain shared memory; that two writers of one slot race is the borrower's affair.
unsafe impl Send for Lease {}
unsafe impl Sync for Lease {}

impl Lease {
    fn new(id: u64, slots: u64) -> io::Result<Lease> {
        let bytes = slots as usize * PAGE_BYTES;
        let fd = unsafe { libc::memfd_create(c"pando-lease".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        // A borrower that holds the file must not be able to take more than it leased.
        unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) };
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Lease { id, slots, file, base: base.cast() })
    }

    /// Takes all of the memory now, so that it is charged to this process and not to a borrower that maps it.
    pub fn populate(&self) {
        unsafe { libc::fallocate(self.fd(), 0, 0, (self.slots as usize * PAGE_BYTES) as i64) };
    }

    /// The memory file, to hand over.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Pieces of memory for these slots, neighbours joined; None if one is outside of the lease.
    pub fn pieces(&self, slots: &[u32], out: &mut Vec<libc::iovec>) -> Option<()> {
        out.clear();
        for &slot in slots {
            if slot as u64 >= self.slots {
                return None;
            }
            let at = self.base.wrapping_add(slot as usize * PAGE_BYTES);
            match out.last_mut() {
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == at => last.iov_len += PAGE_BYTES,
                _ => out.push(libc::iovec { iov_base: at.cast(), iov_len: PAGE_BYTES }),
            }
        }
        Some(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), self.slots as usize * PAGE_BYTES) };
    }
}

struct Held {
    lease: Arc<Lease>,
    connections: usize,
    idle_since: Instant,
}

/// All leases of a memory host.
pub struct Leases {
    slots_total: u64,
    held: Mutex<HashMap<u64, Held>>,
}

impl Leases {
    pub fn new(slots_total: u64) -> Self {
        Leases { slots_total, held: Mutex::new(HashMap::new()) }
    }

    /// A new lease of `slots` slots (0: all that are free), with one connection to it. Err: the slots that are free.
    pub fn open(&self, slots: u64) -> io::Result<Result<Arc<Lease>, u64>> {
        let mut held = self.held.lock().expect("leases");
        held.retain(|_, h| h.connections > 0 || h.idle_since.elapsed() < GRACE);
        let free = self.slots_total - held.values().map(|h| h.lease.slots).sum::<u64>();
        let want = if slots == 0 { free } else { slots };
        if want > free || want == 0 {
            return Ok(Err(free));
        }
        let lease = Arc::new(Lease::new(fresh_id()?, want)?);
        held.insert(lease.id, Held { lease: lease.clone(), connections: 1, idle_since: Instant::now() });
        Ok(Ok(lease))
    }

    /// One more connection to a lease.
    pub fn join(&self, id: u64) -> Option<Arc<Lease>> {
        let mut held = self.held.lock().expect("leases");
        let h = held.get_mut(&id)?;
        h.connections += 1;
        Some(h.lease.clone())
    }

    /// A connection to a lease has ended.
    pub fn leave(&self, id: u64) {
        let mut held = self.held.lock().expect("leases");
        if let Some(h) = held.get_mut(&id) {
            h.connections -= 1;
            h.idle_since = Instant::now();
        }
    }

    /// Ends the leases whose time is over; called now and then so that memory goes back without a new borrower.
    pub fn sweep(&self) {
        self.held.lock().expect("leases").retain(|_, h| h.connections > 0 || h.idle_since.elapsed() < GRACE);
    }

    /// Slots lent, and all there are.
    pub fn usage(&self) -> (u64, u64) {
        (self.held.lock().expect("leases").values().map(|h| h.lease.slots).sum(), self.slots_total)
    }
}

/// An id that nobody can guess: with the token it is what a connection is let in by.
fn fresh_id() -> io::Result<u64> {
    let mut b = [0u8; 8];
    let n = unsafe { libc::getrandom(b.as_mut_ptr().cast(), 8, 0) };
    if n != 8 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from_le_bytes(b) | 1)
}
