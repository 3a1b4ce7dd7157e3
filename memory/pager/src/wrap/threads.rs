//! Threads that the C library starts by itself, for timers, message queues and asynchronous
//! requests. They begin with every signal blocked, including SIGBUS, and read data that the C
//! library allocated for them.

use super::signal::ours;
use crate::pin::Pin;
use crate::{next, sys};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use libc::{c_int, c_void, clockid_t, mqd_t, sigevent, timer_t};

/// Calls under way that allocate data for such a thread.
static NOTING: AtomicUsize = AtomicUsize::new(0);

/// Makes a call that allocates data for such a thread.
fn noting<R>(call: impl FnOnce() -> R) -> R {
    NOTING.fetch_add(1, SeqCst);
    let r = call();
    NOTING.fetch_sub(1, SeqCst);
    r
}

/// Whether the C library's allocations must stay local now.
pub fn is_noting() -> bool {
    NOTING.load(SeqCst) > 0
}

/// A signal that only the C library can block, and that it blocks only in its own threads.
const ITS_OWN: u64 = 1 << (32 - 1);

/// Whether this is such a thread. If so, unblocks SIGBUS, which threads that it starts inherit. Its
/// stack may be too small for a fault, so its allocations must stay local.
pub fn is_its_own() -> bool {
    if !ours() {
        return false;
    }
    let (bus, mut old) = (1u64 << (libc::SIGBUS - 1), 0u64);
    unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const bus, &raw mut old, 8) };
    old & ITS_OWN != 0
}

/// # Safety
/// As timer_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_create(
    clock: clockid_t,
    event: *mut sigevent,
    timer: *mut timer_t,
) -> c_int {
    unsafe {
        let _pins = (
            Pin::new(event.cast(), size_of::<sigevent>()),
            Pin::new(timer.cast(), size_of::<timer_t>()),
        );
        noting(|| {
            next!(timer_create: fn(clockid_t, *mut sigevent, *mut timer_t) -> c_int)(
                clock, event, timer,
            )
        })
    }
}

/// # Safety
/// As mq_notify(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mq_notify(queue: mqd_t, event: *const sigevent) -> c_int {
    unsafe {
        let _pin = Pin::new(event.cast(), size_of::<sigevent>());
        noting(|| next!(mq_notify: fn(mqd_t, *const sigevent) -> c_int)(queue, event))
    }
}

/// Defines calls that are refused in sigbus mode. A thread of the C library would make their system
/// calls on far memory, and the pager could not repeat them. Programs use other calls, as on
/// systems without io_uring.
macro_rules! refused {
    ($($name:ident($($a:ident: $t:ty),*), $answer:expr_2021;)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int { unsafe {
            if ours() {
                *libc::__errno_location() = libc::ENOSYS;
                return $answer;
            }
            next!($name: fn($($t),*) -> c_int)($($a),*)
        }}
    )*};
}

refused! {
    aio_read(block: *mut c_void), -1;
    aio_read64(block: *mut c_void), -1;
    aio_write(block: *mut c_void), -1;
    aio_write64(block: *mut c_void), -1;
    aio_fsync(how: c_int, block: *mut c_void), -1;
    aio_fsync64(how: c_int, block: *mut c_void), -1;
    lio_listio(mode: c_int, list: *const c_void, count: c_int, event: *mut c_void), -1;
    lio_listio64(mode: c_int, list: *const c_void, count: c_int, event: *mut c_void), -1;
    getaddrinfo_a(mode: c_int, list: *mut c_void, count: c_int, event: *mut c_void),
        libc::EAI_SYSTEM;
}
