//! Mutexes, conditions, locks and semaphores in far memory: the kernel waits on their words, so their pages stay.

use crate::next;
use crate::pin::keep;
use libc::{c_int, c_void, timespec};

/// Defines wrappers that keep the pages of their objects and then do what the C library does.
macro_rules! waits {
    ($($name:ident($($a:ident: $t:ty),*); $($object:ident),*;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            $(keep($object.cast());)*
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
