//! The user and the groups of the pager's own threads. The C library changes both only for threads
//! that it started itself. Without this module, the pager's threads would stay root in a program
//! that dropped root.
//!
//! A thread of the pager follows at its next wait. A wait lasts some milliseconds at most, or the
//! bell ends it.

use crate::pager::pager;
use crate::sys::Lock;
use crate::{descriptor, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// Evictor, tender, keeper or prefetcher, handlers.
const THREADS: usize = 3 + crate::apart::HANDLERS;
/// Most groups that a process may have on Linux.
const GROUPS_MAX: usize = 65_536;
/// Lists of groups up to this length are compared before they are set.
const GROUPS_COMPARED: usize = 64;
/// A thread that has not followed within this time never will.
const WITHIN_NS: u64 = 5_000_000_000;

/// A thread of the pager, and the change that it has followed.
struct Follower {
    tid: AtomicI32,
    done: AtomicU32,
}

/// The identity of the program: real, effective and saved user and group, and the other groups.
struct Identity {
    users: [u32; 3],
    groups: [u32; 3],
    others: *mut u32,
    others_len: usize,
}

/// Written by one thread at a time, and read by followers only after `CHANGE` has moved.
struct Wanted(UnsafeCell<Identity>);
unsafe impl Sync for Wanted {}

static WANTED: Wanted = Wanted(UnsafeCell::new(Identity { users: [0; 3], groups: [0; 3], others: core::ptr::null_mut(), others_len: 0 }));
static FOLLOWERS: [Follower; THREADS] = [const { Follower { tid: AtomicI32::new(0), done: AtomicU32::new(0) } }; THREADS];
/// The number of changes, and of those that every thread has followed.
static CHANGE: AtomicU32 = AtomicU32::new(0);
static SETTLED: AtomicU32 = AtomicU32::new(0);
/// Allows one change at a time.
static TURN: Lock = Lock::new();
/// Descriptor + 1 of the bell: an eventfd that ends the handlers' wait for faults. 0 = there are no
/// handlers.
static BELL: AtomicI32 = AtomicI32::new(0);

/// Records a new thread of the pager. It has the identity of its creator.
pub fn follow(tid: i32) {
    let free = FOLLOWERS.iter().find(|f| f.tid.load(SeqCst) == 0).expect("a place for each thread of the pager");
    free.done.store(CHANGE.load(SeqCst), SeqCst);
    free.tid.store(tid, SeqCst);
}

/// Forgets the parent's threads, in a forked child, before it starts its own.
pub fn become_child() {
    FOLLOWERS.iter().for_each(|f| f.tid.store(0, SeqCst));
    SETTLED.store(CHANGE.load(SeqCst), SeqCst);
    TURN.reset();
}

/// Makes the bell, before the handlers start.
pub unsafe fn hang_bell() {
    unsafe {
        let fd = sys!(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd >= 0 {
            BELL.store(descriptor::adopt(fd as i32) + 1, SeqCst);
        }
    }
}

/// Returns the bell's descriptor, for a poll. Negative = there is no bell.
pub fn bell() -> i32 {
    BELL.load(SeqCst) - 1
}

unsafe fn three(nr: i64) -> [u32; 3] {
    unsafe {
        let mut ids = [0u32; 3];
        let [a, b, c] = &mut ids;
        sys!(nr, &raw mut *a, &raw mut *b, &raw mut *c);
        ids
    }
}

/// Spreads the new identity of the calling thread, and waits until each of the pager's threads has
/// it. Ends the program if one of them would stay root.
pub unsafe fn spread() {
    unsafe {
        let Some(pager) = pager() else { return };
        let signals = sys::block_signals();
        TURN.take();
        let want = &mut *WANTED.0.get();
        if want.others.is_null() {
            want.others = sys::reserve(GROUPS_MAX * size_of::<u32>()).cast();
        }
        want.users = three(libc::SYS_getresuid);
        want.groups = three(libc::SYS_getresgid);
        want.others_len = sys!(libc::SYS_getgroups, GROUPS_MAX, want.others).max(0) as usize;
        let change = CHANGE.fetch_add(1, SeqCst) + 1;
        pager.wake_evictor();
        pager.hosts.wake_tender();
        ring(1);
        let begun = sys::now_ns();
        for follower in FOLLOWERS.iter().filter(|f| f.tid.load(SeqCst) != 0) {
            loop {
                let done = follower.done.load(SeqCst);
                if done == change {
                    break;
                }
                if sys::now_ns() - begun > WITHIN_NS {
                    sys::die(format_args!("a thread of the pager does not follow the program to its new user. The program is stopped"));
                }
                sys::futex_wait(&follower.done, done, 10_000);
            }
        }
        SETTLED.store(change, SeqCst);
        hush();
        TURN.give();
        sys::restore_signals(signals);
    }
}

unsafe fn ring(times: u64) {
    unsafe {
        if descriptor::is_ours(bell()) {
            sys!(libc::SYS_write, bell(), &raw const times, 8);
        }
    }
}

unsafe fn hush() {
    unsafe {
        let mut times = 0u64;
        if descriptor::is_ours(bell()) {
            sys!(libc::SYS_read, bell(), &raw mut times, 8);
        }
    }
}

/// Follows the program's last change, if the caller is a thread of the pager. Costs other threads
/// two loads.
pub fn heed() {
    let change = CHANGE.load(SeqCst);
    if change == SETTLED.load(SeqCst) {
        return;
    }
    let tid = unsafe { sys!(libc::SYS_gettid) } as i32;
    let Some(me) = FOLLOWERS.iter().find(|f| f.tid.load(SeqCst) == tid) else { return };
    if me.done.load(SeqCst) != change {
        unsafe { adopt(&*WANTED.0.get()) };
        me.done.store(change, SeqCst);
        sys::futex_wake(&me.done, 1);
    }
}

/// Takes on an identity. Each call of the program changes one part, so the order matters only if
/// several differ.
unsafe fn adopt(want: &Identity) {
    unsafe {
        let mut have = [0u32; GROUPS_COMPARED];
        let n = sys!(libc::SYS_getgroups, have.len(), have.as_mut_ptr());
        let others = core::slice::from_raw_parts(want.others, want.others_len);
        if n < 0 || &have[..n as usize] != others {
            sys!(libc::SYS_setgroups, others.len(), others.as_ptr());
        }
        let [r, e, s] = want.groups;
        sys!(libc::SYS_setresgid, r, e, s);
        let [r, e, s] = want.users;
        sys!(libc::SYS_setresuid, r, e, s);
        let (users, groups) = (three(libc::SYS_getresuid), three(libc::SYS_getresgid));
        let more = |have: &[u32; 3], want: &[u32; 3]| have.contains(&0) && !want.contains(&0);
        if more(&users, &want.users) || more(&groups, &want.groups) {
            sys::die(format_args!("a thread of the pager cannot drop root with the program. The program is stopped"));
        }
    }
}
