//! A lock in the page of [`Vitals`] that the thread at work holds for as long as it lives. When it dies the kernel gives the lock
//! up as the first thing that it does, and wakes who waits; that the process has ended is to be seen only after its memory is
//! taken down, which is many gigabytes of address space and takes milliseconds. The dead thread runs no more by then, and what it
//! was asking of the kernel is done.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::orders;
use super::vitals::Vitals;

/// How often it is looked whether somebody is at work by now.
const LOOK: Duration = Duration::from_millis(1);

fn checked(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl Vitals {
    /// Makes the lock, before others have the page.
    pub fn make_hold(&self) -> io::Result<()> {
        // SAFETY: attributes are made before they are used; the lock has its place in the page, and nobody else has the page yet.
        unsafe {
            let mut kind: libc::pthread_mutexattr_t = std::mem::zeroed();
            checked(libc::pthread_mutexattr_init(&mut kind))?;
            checked(libc::pthread_mutexattr_setpshared(&mut kind, libc::PTHREAD_PROCESS_SHARED))?;
            checked(libc::pthread_mutexattr_setrobust(&mut kind, libc::PTHREAD_MUTEX_ROBUST))?;
            checked(libc::pthread_mutex_init(self.hold_place(), &kind))
        }
    }

    /// This thread is at work until it ends. Waits for whoever is, so that there are never two.
    pub fn hold(&self) -> io::Result<()> {
        self.held.store(true, Ordering::Release);
        self.lock().map(drop)
    }

    /// Takes the lock; whether it was a dead thread's.
    fn lock(&self) -> io::Result<bool> {
        // SAFETY: the lock was made before the page was handed on.
        match unsafe { libc::pthread_mutex_lock(self.hold_place()) } {
            // SAFETY: it is locked.
            libc::EOWNERDEAD => checked(unsafe { libc::pthread_mutex_consistent(self.hold_place()) }).map(|()| true),
            error => checked(error).map(|()| false),
        }
    }

    fn unlock(&self) {
        // SAFETY: this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(self.hold_place()) };
    }
}

/// A thread that waits for the death of the one at work.
pub struct Watcher {
    died: OwnedFd,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Waits over a mapping of its own.
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

    /// Waits no more: this process is at work itself now, and nobody of a dying process shall be woken in place of another.
    /// Only where nobody else is at work. One that has told of a death has let go of the lock, and its end is not waited for.
    pub fn end(self) {
        self.over.store(true, Ordering::Release);
        if !orders::poll(&[self.died.as_raw_fd()], 0).is_ok_and(|told| told[0]) {
            let _ = self.thread.join();
        }
    }
}

impl AsRawFd for Watcher {
    /// Readable once the thread at work has died.
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
