//! The small parts of the pager: locks, alarms, lanes, descriptors, pipes of children and pieces.

use super::pieces::Pieces;
use super::*;
use crate::config::TRANSFERS;
use crate::descriptor;
use crate::fork::{ALLOWANCE, Fork};
use crate::lane::{LANES, Lanes};
use crate::mode;
use crate::queue::{Alarm, PageQueues, Queue};
use crate::sys::{Lock, error};
use libc::iovec;
use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::thread::scope;

/// A number that only its lock guards.
struct Guarded(Lock, UnsafeCell<u64>);

unsafe impl Sync for Guarded {}

#[test]
fn a_lock_admits_one_thread() {
    let guarded = Guarded(Lock::new(), UnsafeCell::new(0));
    let guarded = &guarded;
    scope(|s| {
        for t in 0..4 {
            s.spawn(move || {
                for _ in 0..3000 {
                    // One of the threads never waits.
                    if t == 0 {
                        while !guarded.0.try_take() {
                            std::thread::yield_now();
                        }
                    } else {
                        guarded.0.take();
                    }
                    unsafe { *guarded.1.get() += 1 };
                    guarded.0.give();
                }
            });
        }
    });
    assert_eq!(unsafe { *guarded.1.get() }, 12_000);
    guarded.0.take();
    assert!(!guarded.0.try_take());
    guarded.0.reset();
    assert!(guarded.0.try_take(), "a child frees the lock that its parent held");
}

#[test]
fn no_ring_and_no_change_is_missed() {
    let (alarm, queue, pages) = (Alarm::new(), Queue::new(), PageQueues::new());
    // The test ends only if each sleep ends early.
    const LONG_US: u64 = 4 * DEADLINE.as_micros() as u64;
    let seen = alarm.rings();
    alarm.ring();
    alarm.sleep(seen, LONG_US);
    let (rounds, done) = (AtomicU32::new(0), AtomicU32::new(0));
    scope(|s| {
        s.spawn(|| {
            while done.load(SeqCst) == 0 {
                let seen = alarm.rings();
                rounds.fetch_add(1, SeqCst);
                if done.load(SeqCst) == 0 {
                    alarm.sleep(seen, LONG_US);
                }
            }
        });
        for _ in 0..200 {
            let before = rounds.load(SeqCst);
            alarm.ring();
            until("the sleeper's next round", || rounds.load(SeqCst) > before);
        }
        done.store(1, SeqCst);
        alarm.ring();
    });
    let seen = queue.seen();
    queue.wake(1);
    queue.wait(seen);
    assert!(queue.seen() != seen && !queue.is_waited_in());
    let [first, other] = [3u32, 4].map(|page| pages.of(page).seen());
    pages.wake(&[3, 35, 67]);
    assert_eq!(pages.of(3).seen(), first + 1, "one queue is woken once for all of its pages");
    assert_eq!((pages.of(35).seen(), pages.of(4).seen()), (first + 1, other));
}

#[test]
fn a_lane_has_one_owner() {
    let lanes = unsafe { Lanes::new() };
    let reserved = unsafe { [lanes.evictor().number, lanes.tender().number] };
    let mut taken: Vec<_> = std::iter::from_fn(|| lanes.take()).collect();
    let mut numbers: Vec<usize> = taken.iter().map(|lane| lane.number).chain(reserved).collect();
    numbers.sort();
    assert!(numbers == (0..LANES).collect::<Vec<_>>() && taken.len() == TRANSFERS);
    let last = taken.pop().unwrap();
    lanes.give(last);
    assert_eq!(lanes.take().map(|lane| lane.number), Some(last.number));
    unsafe { lanes.become_child() };
    assert_eq!(std::iter::from_fn(|| lanes.take()).count(), TRANSFERS, "a child has all of them");
    unsafe { lanes.become_child() };
    let owners = [const { AtomicUsize::new(0) }; LANES];
    struct Shared(Lanes);
    unsafe impl Sync for Shared {}
    let lanes = Shared(lanes);
    let lanes = &lanes;
    scope(|s| {
        for t in 1..9 {
            let owners = &owners;
            s.spawn(move || {
                for _ in 0..1000 {
                    let lanes = &lanes.0;
                    let seen = lanes.free.seen();
                    let Some(lane) = lanes.take() else {
                        lanes.free.wait(seen);
                        continue;
                    };
                    assert_eq!(owners[lane.number].swap(t, SeqCst), 0, "two owners");
                    owners[lane.number].store(0, SeqCst);
                    lanes.give(lane);
                }
            });
        }
    });
}

fn file() -> i32 {
    unsafe { descriptor::adopt(std::fs::File::open("/dev/null").unwrap().into_raw_fd()) }
}

#[test]
fn a_descriptor_is_the_pagers_until_its_number_is_another_file() {
    let fd = file();
    assert!(fd >= 3 && descriptor::is_ours(fd) && descriptor::next(fd as u32) == Some(fd as u32));
    // The program replaces it by a raw system call.
    let other = std::fs::File::open("/proc/self/status").unwrap();
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    assert!(!descriptor::is_ours(fd), "the number is the program's now");
    unsafe { descriptor::close(fd) };
    assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "its file stays open");
    unsafe { libc::close(fd) };
    for odd in [-1, i32::MIN, i32::MAX, 4096, 1 << 20] {
        assert!(!descriptor::is_ours(odd), "{odd}");
    }
    assert_eq!((descriptor::next(4096), descriptor::next(u32::MAX)), (None, None));
    assert_eq!(unsafe { descriptor::file(-1) }, 0);
}

/// The children of a test: each holds a copy of its pipe's write end, as a process would.
struct Children {
    fork: Fork,
    /// The pipe of each living child, and its copy of the write end.
    living: Vec<(usize, i32)>,
    pipes: usize,
}

impl Children {
    /// Forks; returns whether the child has a pipe of its own.
    fn fork(&mut self) -> bool {
        let fork = &self.fork;
        fork.begin(7);
        assert!(fork.is_wanted() && fork.signals() == 7);
        let is_own = fork.choose_pipe();
        self.pipes += is_own as usize;
        let mut ends = (0..4096).filter(|&fd| fork.is_for_children(fd));
        let mut end = ends.find(|&fd| !fork.is_for_next_child(fd));
        if end.is_none() {
            end = (0..4096).find(|&fd| fork.is_for_children(fd));
        }
        let copy = unsafe { libc::fcntl(end.expect("a write end"), libc::F_DUPFD_CLOEXEC, 3) };
        assert!(copy >= 0);
        self.living.push((self.pipes, copy));
        fork.record_child();
        fork.end();
        is_own
    }

    /// Ends a child, and returns whether the pipe has no further child.
    fn end(&mut self, at: usize) -> bool {
        let (pipe, copy) = self.living.swap_remove(at % self.living.len());
        unsafe { libc::close(copy) };
        self.living.iter().all(|child| child.0 != pipe)
    }
}

#[test]
fn a_child_is_reaped_once_when_the_last_process_of_its_pipe_is_gone() {
    mode::choose_sigbus();
    let mut c = Children { fork: Fork::new(), living: vec![], pipes: 0 };
    assert!(c.fork.provide() && !c.fork.is_shared() && c.fork.allowance(800, 5) == 0);
    let mut numbers = Numbers(11);
    let (mut frozen, mut reaped) = (0, 0);
    // 32 children have pipes of their own; further ones share the last.
    for _ in 0..40 {
        frozen += c.fork() as usize;
        assert_eq!(c.fork.reap(), 0, "all of them live");
    }
    assert_eq!((frozen, c.fork.is_sharing()), (32, true));
    assert_eq!(c.fork.allowance(800, 5), 800 / ALLOWANCE + 32 * 5);
    assert!(c.fork.is_shared());
    while !c.living.is_empty() {
        let gone = c.end(numbers.below(1000) as usize);
        reaped += c.fork.reap();
        if c.fork.is_sharing() {
            c.fork.unshare();
        }
        if gone {
            reaped += c.fork.reap();
        }
        let pipes: std::collections::BTreeSet<usize> =
            c.living.iter().map(|child| child.0).collect();
        assert_eq!(frozen - reaped, pipes.len(), "one end is reported for each pipe");
    }
    assert!(!c.fork.is_shared() && c.fork.children_bytes() == 0 && c.fork.reap() == 0);
    assert!(c.fork(), "and the next child has its own again");
    c.end(0);
    assert_eq!(c.fork.reap(), 1);
}

#[test]
fn a_child_reports_its_growth_in_the_place_of_its_pipe() {
    mode::choose_sigbus();
    let mut c = Children { fork: Fork::new(), living: vec![], pipes: 0 };
    c.fork.provide();
    c.fork();
    // The place of the first child; this process stands for it.
    c.fork.tell_parent(5000);
    assert_eq!(c.fork.children_bytes(), 5000);
    c.fork();
    assert_eq!(c.fork.children_bytes(), 5000);
    c.end(0);
    let left = c.fork.reap();
    assert!(left == 1 && [0, 5000].contains(&c.fork.children_bytes()));
    c.end(0);
    assert_eq!((c.fork.reap(), c.fork.children_bytes()), (1, 0), "its growth ends with it");
}

#[test]
fn pieces_are_the_bytes_after_those_that_are_done() {
    let mut numbers = Numbers(21);
    for round in 0..600 {
        let count = if round % 50 == 0 { 1024 } else { numbers.below(40) as usize };
        let mut list = vec![];
        for k in 0..count {
            let len = if numbers.below(4) == 0 { 0 } else { numbers.below(5000) as usize };
            list.push(iovec { iov_base: ((k + 1) << 20) as *mut _, iov_len: len });
        }
        let flat = |list: &[iovec]| -> Vec<(usize, usize)> {
            let pieces = list.iter().map(|p| (p.iov_base as usize, p.iov_len));
            pieces.filter(|piece| piece.1 > 0).collect()
        };
        let bytes: usize = list.iter().map(|piece| piece.iov_len).sum();
        let skip = numbers.below(bytes as u64 + 1) as usize;
        let most = [usize::MAX, 1, 4096, numbers.below(1 << 16) as usize][round % 4];
        let pieces = unsafe { Pieces::new(list.as_ptr(), count, skip, most) };
        let got = unsafe { std::slice::from_raw_parts(pieces.list(), pieces.len) };
        // A plain walk over the same bytes.
        let (mut skip, mut left, mut expected) = (skip, most, vec![]);
        for (at, len) in flat(&list) {
            let from = skip.min(len);
            let n = (len - from).min(left);
            (skip, left) = (skip - from, left - n);
            expected.extend((n > 0).then_some((at + from, n)));
        }
        assert_eq!(flat(got), expected, "round {round}");
        assert_eq!(pieces.bytes, expected.iter().map(|piece| piece.1).sum::<usize>());
    }
}

/// A message that nobody reads must not end the program. A signal of the program's own stays.
#[test]
fn a_message_without_a_reader_leaves_no_signal() {
    let is_pending = || unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut set);
        libc::sigismember(&set, libc::SIGPIPE) == 1
    };
    let writes = || unsafe {
        // Only a blocked signal stays pending while it is ignored.
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let wrote = error::write_quietly(writer.as_raw_fd(), b"nobody reads this");
        let after_message = is_pending();
        libc::write(writer.as_raw_fd(), b"x".as_ptr().cast(), 1);
        error::write_quietly(writer.as_raw_fd(), b"nobody reads this");
        (wrote, after_message, is_pending())
    };
    assert_eq!(scope(|s| s.spawn(writes).join().unwrap()), (false, false, true));
}
