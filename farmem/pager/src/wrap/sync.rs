//! Mutexes, conditions, locks and semaphores in far memory: the kernel waits on their words, so their pages stay.

use super::signal::ours;
use crate::next;
use crate::pin::{keep, keep_all, Pin};
use libc::{c_int, c_void, size_t, timespec};

/// Defines wrappers that keep the pages of their objects and then do what the C library does.
macro_rules! waits {
    ($($name:ident($($a:ident: $t:ty),*); $($object:ident),*;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            if ours() {
                $(keep($object.cast());)*
            }
            next!($name: fn($($t),*) -> c_int)($($a),*)
        }
    )*};
}

waits! {
    pthread_mutex_lock(m: *mut c_void); m;
    pthread_mutex_timedlock(m: *mut c_void, until: *const timespec); m;
    pthread_mutex_clocklock(m: *mut c_void, clock: c_int, until: *const timespec); m;
    pthread_cond_wait(c: *mut c_void, m: *mut c_void); c, m;
    pthread_cond_timedwait(c: *mut c_void, m: *mut c_void, until: *const timespec); c, m;
    pthread_cond_clockwait(c: *mut c_void, m: *mut c_void, clock: c_int, until: *const timespec); c, m;
    pthread_rwlock_rdlock(l: *mut c_void); l;
    pthread_rwlock_wrlock(l: *mut c_void); l;
    pthread_barrier_wait(b: *mut c_void); b;
    pthread_once(o: *mut c_void, f: *const c_void); o;
    sem_wait(s: *mut c_void); s;
    sem_timedwait(s: *mut c_void, until: *const timespec); s;
    sem_clockwait(s: *mut c_void, clock: c_int, until: *const timespec); s;
}

/// A stack that the program gives stays: the kernel cannot write a signal frame where a page is away.
///
/// # Safety
/// As pthread_attr_setstack(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_attr_setstack(a: *mut c_void, at: *mut c_void, bytes: size_t) -> c_int {
    keep_all(at.cast(), bytes);
    next!(pthread_attr_setstack: fn(*mut c_void, *mut c_void, size_t) -> c_int)(a, at, bytes)
}

/// The C library reads what a new thread shall be while all signals are blocked.
///
/// # Safety
/// As pthread_create(3).
#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    id: *mut libc::pthread_t,
    a: *const libc::pthread_attr_t,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    given: *mut c_void,
) -> c_int {
    let _id = Pin::new(id.cast(), size_of::<libc::pthread_t>());
    let _a = Pin::new(a.cast(), if a.is_null() { 0 } else { size_of::<libc::pthread_attr_t>() });
    next!(pthread_create: fn(*mut libc::pthread_t, *const libc::pthread_attr_t, extern "C" fn(*mut c_void) -> *mut c_void, *mut c_void) -> c_int)(
        id, a, body, given,
    )
}
