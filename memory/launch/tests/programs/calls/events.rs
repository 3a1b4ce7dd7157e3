//! Signals, timers and messages: the kernel or the C library calls the program back, or writes to
//! its memory.

use crate::away::{Big, HELD, sevens};
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

unsafe extern "C" {
    fn aio_write(block: *mut c_void) -> c_int;
    fn getaddrinfo_a(
        mode: c_int,
        list: *mut *mut c_void,
        count: c_int,
        event: *mut c_void,
    ) -> c_int;
}

static FOUND: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(_: c_int) {
    FOUND.store(unsafe { *HELD.load(SeqCst).add(5000) } as i32, SeqCst);
}

unsafe fn handle(
    big: &Big,
    flags: c_int,
    mask: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int,
) -> String {
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = flags;
        mask(&mut action.sa_mask);
        libc::sigaction(libc::SIGUSR1, &action, null_mut());
        big.send_away(sevens().add(5000));
        libc::raise(libc::SIGUSR1);
        format!("found {}", FOUND.load(SeqCst))
    }
}

pub unsafe fn blocked(big: &Big) -> String {
    unsafe { handle(big, 0, libc::sigfillset) }
}

pub unsafe fn alternate(big: &Big) -> String {
    unsafe {
        let stack = libc::stack_t { ss_sp: libc::malloc(1 << 17), ss_flags: 0, ss_size: 1 << 17 };
        libc::sigaltstack(&stack, null_mut());
        handle(big, libc::SA_ONSTACK, libc::sigemptyset)
    }
}

pub unsafe fn asynchronous(_: &Big) -> String {
    unsafe {
        let (mut block, mut list) = ([0u64; 64], [null_mut(); 1]);
        let written = aio_write(block.as_mut_ptr().cast());
        format!(
            "{written} {} {}",
            std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS),
            getaddrinfo_a(0, list.as_mut_ptr(), 1, null_mut())
        )
    }
}

extern "C" fn on_event(at: *mut u8) {
    FOUND.fetch_add(unsafe { *at } as i32 + 1, SeqCst);
}

/// Makes an event that starts a thread with these attributes. The thread reads the byte at `read`.
unsafe fn told_by_thread(read: *mut u8, attributes: &mut libc::pthread_attr_t) -> libc::sigevent {
    unsafe {
        let mut processors: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&processors), &mut processors);
        libc::pthread_attr_init(attributes);
        // This is more than fits into the structure.
        assert_eq!(
            libc::pthread_attr_setaffinity_np(attributes, size_of_val(&processors), &processors),
            0
        );
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD;
        event.sigev_value.sival_ptr = read.cast();
        // The place of the function and the attributes in the C library's structure.
        let place = (&raw mut event.sigev_notify_thread_id).cast::<usize>();
        place.write_unaligned(on_event as *const () as usize);
        place.add(1).write_unaligned(attributes as *mut _ as usize);
        event
    }
}

/// Waits for that thread, once its byte is away, and the neighbours of the C library's record of
/// it.
unsafe fn await_thread(big: &Big, read: *mut u8, begin: impl FnOnce()) {
    unsafe {
        let noted =
            [size_of::<libc::pthread_attr_t>(), size_of::<libc::cpu_set_t>(), 152].map(|bytes| {
                let at = libc::malloc(bytes).cast::<u8>();
                at.write(1);
                at
            });
        // Use more small objects than stay local.
        for _ in 0..(4 << 20) / 160 {
            libc::malloc(160).cast::<u8>().write_volatile(1);
        }
        let before = FOUND.load(SeqCst);
        big.send_all_away(&[noted[0], noted[1], noted[2], read]);
        begin();
        while FOUND.load(SeqCst) == before {
            std::thread::yield_now();
        }
    }
}

pub unsafe fn timers(big: &Big) -> String {
    unsafe {
        let (read, mut attributes) = (sevens().add(5000), std::mem::zeroed());
        let timers = [0, 1].map(|_| {
            let (mut event, mut timer) = (told_by_thread(read, &mut attributes), null_mut());
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            timer
        });
        let at_once = libc::itimerspec {
            it_interval: std::mem::zeroed(),
            it_value: libc::timespec { tv_sec: 0, tv_nsec: 1 },
        };
        for timer in timers {
            await_thread(big, read, || {
                assert_eq!(libc::timer_settime(timer, 0, &at_once, null_mut()), 0)
            });
        }
        timers.iter().for_each(|&timer| assert_eq!(libc::timer_delete(timer), 0));
        format!("found {}", FOUND.load(SeqCst))
    }
}

/// Message queues that notify a thread, from and to memory that is away.
pub unsafe fn messages(big: &Big) -> String {
    unsafe {
        let (read, mut attributes) = (sevens().add(5000), std::mem::zeroed());
        let mut like: libc::mq_attr = std::mem::zeroed();
        (like.mq_maxmsg, like.mq_msgsize) = (1, 100);
        let name = CString::new(format!("/pando-calls-{}", std::process::id())).unwrap();
        let queue = libc::mq_open(
            name.as_ptr(),
            libc::O_CREAT | libc::O_EXCL | libc::O_RDWR,
            0o600,
            &mut like as *mut libc::mq_attr,
        );
        assert!(queue >= 0 && libc::mq_unlink(name.as_ptr()) == 0);
        let to = read.add(100_000);
        let got = [0, 1].map(|_| {
            // Repeat it once an earlier notification is removed.
            for _ in 0..2 {
                libc::mq_notify(queue, null());
                assert_eq!(libc::mq_notify(queue, &told_by_thread(read, &mut attributes)), 0);
            }
            to.write_bytes(0, 100);
            big.send_away(to);
            await_thread(big, read, || assert_eq!(libc::mq_send(queue, read.cast(), 100, 0), 0));
            big.send_away(to);
            let got = libc::mq_receive(queue, to.cast(), 100, null_mut());
            got + to.add(99).read() as isize
        });
        format!("found {} {got:?}", FOUND.load(SeqCst))
    }
}
