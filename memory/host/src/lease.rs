//! Leases: the memory of this host that borrowers have.

use memory_core::PAGE_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a lease survives its last connection, so that a pager may reconnect. With a sweep every
/// second, its memory is free again within 10 s, as the guide promises.
const GRACE: Duration = Duration::from_secs(9);

/// Borrowed memory: a sealed memory file of its exact size, mapped here.
pub struct Lease {
    /// The number, which authenticates the owner.
    pub id: u64,
    /// Slots of the lease.
    pub slots: u64,
    file: File,
    base: *mut u8,
    ended: AtomicBool,
}

// The mapping is plain shared memory. Races of two writers of one slot are up to the borrower.
unsafe impl Send for Lease {}
unsafe impl Sync for Lease {}

impl Lease {
    fn new(id: u64, slots: u64) -> io::Result<Lease> {
        let bytes = slots as usize * PAGE_BYTES;
        let fd = unsafe {
            libc::memfd_create(c"pando-lease".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        // The borrower has the file, and must not be able to take more than it leased.
        unsafe {
            libc::fcntl(
                fd,
                libc::F_ADD_SEALS,
                libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL,
            )
        };
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Lease { id, slots, file, base: base.cast(), ended: AtomicBool::new(false) })
    }

    /// Takes all of the memory now, so that the kernel charges it to this process and not to the
    /// borrower.
    pub fn populate(&self) {
        unsafe { libc::fallocate(self.fd(), 0, 0, (self.slots as usize * PAGE_BYTES) as i64) };
    }

    /// Stops all reads and writes, and frees the memory at once, even with open connections.
    fn end(&self) {
        self.ended.store(true, SeqCst);
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        unsafe { libc::fallocate(self.fd(), how, 0, (self.slots as usize * PAGE_BYTES) as i64) };
    }

    /// Whether the lease has ended. Its memory is gone then.
    pub fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Returns the memory file, for the borrower.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Collects pieces of memory for these slots, and joins neighbours. None = a slot is outside
    /// the lease.
    pub fn pieces(&self, slots: &[u32], out: &mut Vec<libc::iovec>) -> Option<()> {
        out.clear();
        for &slot in slots {
            if slot as u64 >= self.slots {
                return None;
            }
            let at = self.base.wrapping_add(slot as usize * PAGE_BYTES);
            match out.last_mut() {
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == at => {
                    last.iov_len += PAGE_BYTES
                }
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
    /// The lease that this one replaced, or 0.
    replaces: u64,
    /// The lease ends with its last connection.
    last: bool,
    /// The borrower, for messages: the other end of the connection that opened the lease.
    borrower: String,
    /// The machine or the user of the borrower, which its share is counted for.
    owner: String,
}

/// One lease, for messages.
pub struct Loan {
    /// The borrower: the other end of the connection that opened the lease.
    pub borrower: String,
    /// Slots of the lease.
    pub slots: u64,
    /// Open connections to the lease.
    pub connections: usize,
}

type Table = HashMap<u64, Held>;

/// All leases of a memory host.
pub struct Leases {
    slots_total: u64,
    /// The most slots of one owner.
    slots_each: u64,
    held: Mutex<Table>,
}

impl Leases {
    /// Returns the leases of a memory host that lends `slots_total` slots, to one owner
    /// `slots_each` at most.
    pub fn new(slots_total: u64, slots_each: u64) -> Self {
        Leases { slots_total, slots_each, held: Mutex::new(HashMap::new()) }
    }

    /// Opens a lease of `slots` slots (0 = all that the owner may have), with one connection to it.
    /// Err: the slots that are free for the owner.
    pub fn open(&self, slots: u64, owner: &str) -> io::Result<Result<Arc<Lease>, u64>> {
        self.lend(&mut self.held.lock().expect("leases"), slots, 0, owner)
    }

    /// Opens a lease in place of one that its borrower has given up, which ends. A borrower that
    /// repeats the request, because the answer was late, gets the same lease.
    pub fn replace(
        &self,
        old: u64,
        slots: u64,
        owner: &str,
    ) -> io::Result<Result<Arc<Lease>, u64>> {
        let mut held = self.held.lock().expect("leases");
        if let Some(h) = held.values_mut().find(|h| h.replaces == old && h.lease.slots == slots) {
            h.connections += 1;
            return Ok(Ok(h.lease.clone()));
        }
        if let Some(h) = held.remove(&old) {
            h.lease.end();
        }
        self.lend(&mut held, slots, old, owner)
    }

    fn lend(
        &self,
        held: &mut Table,
        slots: u64,
        replaces: u64,
        owner: &str,
    ) -> io::Result<Result<Arc<Lease>, u64>> {
        held.retain(|_, h| h.connections > 0 || h.idle_since.elapsed() < GRACE);
        let lent = |who: &dyn Fn(&Held) -> bool| {
            held.values().filter(|h| who(h)).map(|h| h.lease.slots).sum::<u64>()
        };
        let rest = self.slots_each.saturating_sub(lent(&|h| h.owner == owner));
        let free = (self.slots_total - lent(&|_| true)).min(rest);
        let want = if slots == 0 { free } else { slots };
        if want > free || want == 0 {
            return Ok(Err(free));
        }
        let lease = Arc::new(Lease::new(fresh_id()?, want)?);
        held.insert(
            lease.id,
            Held {
                lease: lease.clone(),
                connections: 1,
                idle_since: Instant::now(),
                replaces,
                last: false,
                borrower: String::new(),
                owner: owner.to_owned(),
            },
        );
        Ok(Ok(lease))
    }

    /// Adds a connection to a lease. With `last`, the lease ends with its last connection.
    pub fn join(&self, id: u64, last: bool) -> Option<Arc<Lease>> {
        let mut held = self.held.lock().expect("leases");
        let h = held.get_mut(&id)?;
        h.connections += 1;
        h.last |= last;
        Some(h.lease.clone())
    }

    /// Whether another owner holds a lease of this number, or one in its place.
    pub fn is_of_another(&self, id: u64, owner: &str) -> bool {
        let held = self.held.lock().expect("leases");
        held.values().any(|h| (h.lease.id == id || h.replaces == id) && h.owner != owner)
    }

    /// Removes a connection from a lease.
    pub fn leave(&self, id: u64) {
        let mut held = self.held.lock().expect("leases");
        let Some(h) = held.get_mut(&id) else { return };
        h.connections -= 1;
        h.idle_since = Instant::now();
        if h.connections == 0 && h.last {
            held.remove(&id);
        }
    }

    /// Ends expired leases. Called regularly, so that memory is freed without a new borrower.
    pub fn sweep(&self) {
        self.held
            .lock()
            .expect("leases")
            .retain(|_, h| h.connections > 0 || h.idle_since.elapsed() < GRACE);
    }

    /// Records the borrower of a lease.
    pub fn lent_to(&self, id: u64, borrower: String) {
        if let Some(h) = self.held.lock().expect("leases").get_mut(&id) {
            h.borrower = borrower;
        }
    }

    /// Returns all leases, the largest first.
    pub fn loans(&self) -> Vec<Loan> {
        let held = self.held.lock().expect("leases");
        let mut all: Vec<Loan> = held
            .values()
            .map(|h| Loan {
                borrower: h.borrower.clone(),
                slots: h.lease.slots,
                connections: h.connections,
            })
            .collect();
        all.sort_by(|a, b| b.slots.cmp(&a.slots).then_with(|| a.borrower.cmp(&b.borrower)));
        all
    }

    /// Returns the lent slots, and all slots.
    pub fn usage(&self) -> (u64, u64) {
        (self.held.lock().expect("leases").values().map(|h| h.lease.slots).sum(), self.slots_total)
    }
}

/// Returns a random id. The id and the token admit a connection to the lease.
fn fresh_id() -> io::Result<u64> {
    Ok(u64::from_le_bytes(random()?) | 1)
}

/// Returns random bytes: at most 256, which the kernel never cuts short.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut b = [0; N];
    let n = unsafe { libc::getrandom(b.as_mut_ptr().cast(), N, 0) };
    if n == N as isize { Ok(b) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_given_up_makes_room_for_the_next() {
        let leases = Leases::new(100, 100);
        let first = leases.open(100, "a").unwrap().unwrap();
        assert_eq!(leases.open(1, "a").unwrap().err(), Some(0));
        // The lease still has connections. Its number allows a replacement, and the old connections
        // then read nothing more.
        let second = leases.replace(first.id, 100, "a").unwrap().unwrap();
        assert!(first.is_ended() && !second.is_ended() && leases.join(first.id, false).is_none());
        leases.leave(first.id);
        // A repeated request, as after a late answer, returns the same lease.
        assert_eq!(leases.replace(first.id, 100, "a").unwrap().unwrap().id, second.id);
        leases.leave(second.id);
        assert_eq!(leases.usage(), (100, 100));
        let third = leases.replace(second.id, 100, "a").unwrap().unwrap();
        assert!(second.is_ended() && third.id != second.id);
        // A number that was never issued gets no room of another lease.
        assert_eq!(leases.replace(77, 100, "a").unwrap().err(), Some(0));
    }

    /// The share is of the machine, however many leases it opens.
    #[test]
    fn no_borrower_takes_more_than_its_share() {
        let leases = Leases::new(100, 40);
        let first = leases.open(30, "a").unwrap().unwrap();
        assert_eq!(leases.open(20, "a").unwrap().err(), Some(10), "of its share");
        assert_eq!(leases.replace(first.id, 41, "a").unwrap().err(), Some(40));
        assert_eq!(leases.open(0, "a").unwrap().unwrap().slots, 40, "all that it may have");
        assert_eq!(leases.open(1, "a").unwrap().err(), Some(0));
        assert_eq!(leases.open(40, "b").unwrap().unwrap().slots, 40);
        assert_eq!(leases.open(30, "c").unwrap().err(), Some(20), "of the host");
    }

    #[test]
    fn a_lease_ends_with_its_last_connection_when_its_borrower_has_said_so() {
        let leases = Leases::new(100, 100);
        let lease = leases.open(100, "a").unwrap().unwrap();
        leases.leave(lease.id);
        assert_eq!(leases.usage(), (100, 100), "it outlives its last connection for a while");
        leases.join(lease.id, false).unwrap();
        leases.join(lease.id, true).unwrap();
        leases.leave(lease.id);
        assert_eq!(leases.usage(), (100, 100));
        leases.leave(lease.id);
        assert_eq!(leases.usage(), (0, 100));
    }
}
