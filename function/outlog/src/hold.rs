//! A lock in the page of [`Vitals`] that the working thread holds for as long as it lives.
//!
//! When that thread dies, the kernel first releases the lock and wakes the waiting thread. The end
//! of the process becomes visible only after the kernel has torn down its memory. That is many
//! gigabytes of address space and takes milliseconds. The dead thread no longer runs by then, and
//! its system calls are complete.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::orders;
use super::vitals::Vitals;

/// Pause between two looks for a working thread.
const LOOK: Duration = Duration::from_millis(1);

fn checked(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl Vitals {
    /// Makes the lock. Call it before other processes get the page.
    pub fn make_hold(&self) -> io::Result<()> {
        // SAFETY: attributes are made before use; the page has room for the lock and is not shared
        // yet.
        unsafe {
            let mut kind: libc::pthread_mutexattr_t = std::mem::zeroed();
            checked(libc::pthread_mutexattr_init(&mut kind))?;
            checked(libc::pthread_mutexattr_setpshared(&mut kind, libc::PTHREAD_PROCESS_SHARED))?;
            checked(libc::pthread_mutexattr_setrobust(&mut kind, libc::PTHREAD_MUTEX_ROBUST))?;
            checked(libc::pthread_mutex_init(self.hold_place(), &kind))
        }
    }

    /// Marks this thread as the working one until it ends. Waits for the current one to end first,
    /// so there are never two.
    pub fn hold(&self) -> io::Result<()> {
        self.held.store(true, Ordering::Release);
        self.lock().map(drop)
    }

    /// Takes the lock; returns whether its last holder died.
    fn lock(&self) -> io::Result<bool> {
        // SAFETY: the lock was made before the page was shared.
        match unsafe { libc::pthread_mutex_lock(self.hold_place()) } {
            // SAFETY: it is locked.
            libc::EOWNERDEAD => {
                checked(unsafe { libc::pthread_mutex_consistent(self.hold_place()) }).map(|()| true)
            }
            error => checked(error).map(|()| false),
        }
    }

    fn unlock(&self) {
        // SAFETY: this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(self.hold_place()) };
    }
}

/// A thread that waits for the death of the working thread.
pub struct Watcher {
    died: OwnedFd,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Starts the thread on a mapping of its own.
    pub fn start(page: BorrowedFd) -> io::Result<Watcher> {
        let vitals = Vitals::map(page)?;
        // SAFETY: a plain system call.
        let died = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if died < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened.
        let died = unsafe { OwnedFd::from_raw_fd(died) };
        let (mut bell, over) = (File::from(died.try_clone()?), Arc::new(AtomicBool::new(false)));
        let is_over = over.clone();
        let wait = move || {
            while !is_over.load(Ordering::Acquire) {
                let Ok(died) = vitals.lock() else { return };
                vitals.unlock();
                if died {
                    let _ = bell.write_all(&1u64.to_ne_bytes());
                    return;
                }
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("watcher".into()).spawn(wait)?;
        Ok(Watcher { died, over, thread })
    }

    /// Stops waiting, because this process now works itself. If it dies, the wake-up must reach the
    /// watcher of another process. Call it only where no other thread works. A watcher that has
    /// reported a death has released the lock, so its end is not waited for.
    pub fn end(self) {
        self.over.store(true, Ordering::Release);
        if !orders::poll(&[self.died.as_raw_fd()], 0).is_ok_and(|told| told[0]) {
            let _ = self.thread.join();
        }
    }
}

impl AsRawFd for Watcher {
    /// Becomes readable once the working thread has died.
    fn as_raw_fd(&self) -> i32 {
        self.died.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc;

    use super::super::vitals;
    use super::*;

    #[test]
    fn a_death_is_told_once_and_the_next_can_be_at_work() {
        let page = vitals::memory().unwrap();
        let vitals = Vitals::map(page.as_fd()).unwrap();
        vitals.make_hold().unwrap();
        for _ in 0..3 {
            let (at_work, is_at_work) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let mine = Vitals::map(page.as_fd()).unwrap();
            let worker = std::thread::spawn(move || {
                mine.hold().unwrap();
                at_work.send(()).unwrap();
                let _ = ended.recv();
            });
            is_at_work.recv().unwrap();
            let watcher = Watcher::start(page.as_fd()).unwrap();
            assert_eq!(orders::poll(&[watcher.as_raw_fd()], 20).unwrap(), [false], "it lives");
            drop(end);
            assert_eq!(orders::poll(&[watcher.as_raw_fd()], 10_000).unwrap(), [true], "it died");
            watcher.end();
            worker.join().unwrap();
        }
        vitals.hold().unwrap();
    }

    #[test]
    fn one_that_is_not_needed_ends_though_nobody_was_at_work() {
        let page = vitals::memory().unwrap();
        let vitals = Vitals::map(page.as_fd()).unwrap();
        vitals.make_hold().unwrap();
        Watcher::start(page.as_fd()).unwrap().end();
        vitals.hold().unwrap();
    }
}
