//! Mutexes, conditions, locks and semaphores in far memory. The kernel waits on their words, so
//! their pages stay during the wait. A free lock is taken without the kernel, and its page may
//! leave.

use super::signal::ours;
use crate::next;
use crate::pin::{Pin, keep_all, keep_waited};
use libc::{c_int, c_void, size_t, timespec};

const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
const CONDITION: usize = size_of::<libc::pthread_cond_t>();
const LOCK: usize = size_of::<libc::pthread_rwlock_t>();
const BARRIER: usize = size_of::<libc::pthread_barrier_t>();
const SEMAPHORE: usize = size_of::<libc::sem_t>();
const ONCE: usize = size_of::<libc::pthread_once_t>();

/// Defines wrappers that pin the pages of their objects during the call.
macro_rules! waits {
    ($($name:ident($($a:ident: $t:ty),*); $($object:ident, $bytes:expr_2021),*;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int { unsafe {
            let _pages = ours().then(|| [$(keep_waited($object.cast(), $bytes)),*]);
            next!($name: fn($($t),*) -> c_int)($($a),*)
        }}
    )*};
}

waits! {
    pthread_cond_wait(c: *mut c_void, m: *mut c_void); c, CONDITION, m, MUTEX;
    pthread_cond_timedwait(c: *mut c_void, m: *mut c_void, until: *const timespec);
        c, CONDITION, m, MUTEX;
    pthread_cond_clockwait(c: *mut c_void, m: *mut c_void, clock: c_int, until: *const timespec);
        c, CONDITION, m, MUTEX;
    pthread_barrier_wait(b: *mut c_void); b, BARRIER;
    pthread_once(o: *mut c_void, f: *const c_void); o, ONCE;
}

/// Defines wrappers that first try to take a lock, and pin its page only while they wait for it.
macro_rules! takes {
    ($(
        $name:ident($object:ident: $o:ty $(, $a:ident: $t:ty)*); $try:ident, $bytes:expr_2021;
    )*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($object: $o $(, $a: $t)*) -> c_int { unsafe {
            let mut page = None;
            if ours() {
                let r = next!($try: fn($o) -> c_int)($object);
                if r != libc::EBUSY {
                    return r;
                }
                page = keep_waited($object.cast(), $bytes);
            }
            let r = next!($name: fn($o $(, $t)*) -> c_int)($object $(, $a)*);
            drop(page);
            r
        }}
    )*};
}

takes! {
    pthread_mutex_lock(m: *mut c_void); pthread_mutex_trylock, MUTEX;
    pthread_mutex_timedlock(m: *mut c_void, until: *const timespec); pthread_mutex_trylock, MUTEX;
    pthread_mutex_clocklock(m: *mut c_void, clock: c_int, until: *const timespec);
        pthread_mutex_trylock, MUTEX;
    pthread_rwlock_rdlock(l: *mut c_void); pthread_rwlock_tryrdlock, LOCK;
    pthread_rwlock_wrlock(l: *mut c_void); pthread_rwlock_trywrlock, LOCK;
}

/// Defines such wrappers for semaphores. A thread may be cancelled while it waits for one.
macro_rules! passes {
    ($($name:ident($object:ident: $o:ty $(, $a:ident: $t:ty)*);)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($object: $o $(, $a: $t)*) -> c_int { unsafe {
            let mut page = None;
            if ours() {
                next!(pthread_testcancel: fn())();
                if next!(sem_trywait: fn($o) -> c_int)($object) == 0 {
                    return 0;
                }
                page = keep_waited($object.cast(), SEMAPHORE);
            }
            let r = next!($name: fn($o $(, $t)*) -> c_int)($object $(, $a)*);
            drop(page);
            r
        }}
    )*};
}

passes! {
    sem_wait(s: *mut c_void);
    sem_timedwait(s: *mut c_void, until: *const timespec);
    sem_clockwait(s: *mut c_void, clock: c_int, until: *const timespec);
}

/// Keeps a stack of the program local: the kernel cannot write a signal frame to an absent page.
///
/// # Safety
/// As pthread_attr_setstack(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setstack(
    a: *mut c_void,
    at: *mut c_void,
    bytes: size_t,
) -> c_int {
    unsafe {
        keep_all(at.cast(), bytes);
        next!(pthread_attr_setstack: fn(*mut c_void, *mut c_void, size_t) -> c_int)(a, at, bytes)
    }
}

/// Pins the attributes of a new thread: the C library reads them with all signals blocked.
///
/// # Safety
/// As pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    id: *mut libc::pthread_t,
    a: *const libc::pthread_attr_t,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    given: *mut c_void,
) -> c_int {
    unsafe {
        let _id = Pin::new(id.cast(), size_of::<libc::pthread_t>());
        let _a =
            Pin::new(a.cast(), if a.is_null() { 0 } else { size_of::<libc::pthread_attr_t>() });
        next!(pthread_create: fn(
            *mut libc::pthread_t, *const libc::pthread_attr_t,
            extern "C" fn(*mut c_void) -> *mut c_void, *mut c_void
        ) -> c_int)(id, a, body, given)
    }
}
