//! The threads of the pager, and how each follows the program to another user and other groups. A
//! thread follows at its next wait.

use super::apart::HANDLERS;
use super::message::die;
use super::raw::{futex_wake, sys};
use super::space::reserve;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// Evictor, tender, keeper or prefetcher, handlers.
const THREADS: usize = 3 + HANDLERS;
/// Most groups that a process may have on Linux.
const GROUPS_MAX: usize = 65_536;
/// Lists of groups up to this length are compared before they are set.
const GROUPS_COMPARED: usize = 64;

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

static WANTED: Wanted = Wanted(UnsafeCell::new(Identity {
    users: [0; 3],
    groups: [0; 3],
    others: core::ptr::null_mut(),
    others_len: 0,
}));
static FOLLOWERS: [Follower; THREADS] =
    [const { Follower { tid: AtomicI32::new(0), done: AtomicU32::new(0) } }; THREADS];
/// The number of changes, and of those that every thread has followed.
static CHANGE: AtomicU32 = AtomicU32::new(0);
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// Records a new thread of the pager. It has the identity of its creator.
pub fn follow(tid: i32) {
    let free = FOLLOWERS
        .iter()
        .find(|f| f.tid.load(SeqCst) == 0)
        .expect("a place for each thread of the pager");
    free.done.store(CHANGE.load(SeqCst), SeqCst);
    free.tid.store(tid, SeqCst);
}

/// Forgets the parent's threads, in a forked child, before it starts its own.
pub fn become_child() {
    FOLLOWERS.iter().for_each(|f| f.tid.store(0, SeqCst));
    SETTLED.store(CHANGE.load(SeqCst), SeqCst);
}

unsafe fn three(nr: i64) -> [u32; 3] {
    unsafe {
        let mut ids = [0u32; 3];
        let [a, b, c] = &mut ids;
        sys!(nr, &raw mut *a, &raw mut *b, &raw mut *c);
        ids
    }
}

/// Records the identity of the calling thread as the one to follow, and returns the number of the
/// change. Changes are made one at a time.
pub unsafe fn change() -> u32 {
    unsafe {
        let want = &mut *WANTED.0.get();
        if want.others.is_null() {
            want.others = reserve(GROUPS_MAX * size_of::<u32>()).cast();
        }
        want.users = three(libc::SYS_getresuid);
        want.groups = three(libc::SYS_getresgid);
        want.others_len = sys!(libc::SYS_getgroups, GROUPS_MAX, want.others).max(0) as usize;
        CHANGE.fetch_add(1, SeqCst) + 1
    }
}

/// Returns once every thread has followed a change. Until then, calls `wait` with the word of a
/// thread that has not followed, and the value of that word.
pub fn until_followed(change: u32, mut wait: impl FnMut(&AtomicU32, u32)) {
    for follower in FOLLOWERS.iter().filter(|f| f.tid.load(SeqCst) != 0) {
        loop {
            let done = follower.done.load(SeqCst);
            if done == change {
                break;
            }
            wait(&follower.done, done);
        }
    }
    SETTLED.store(change, SeqCst);
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
        futex_wake(&me.done, 1);
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
            die(format_args!(
                "a thread of the pager cannot drop root with the program. The program is stopped"
            ));
        }
    }
}
