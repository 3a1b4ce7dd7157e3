//! Memory itself: objects of allocators, mappings, and closed descriptors.

use crate::away::{Big, PAGE, is_there, sevens};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
}

/// Objects of a page each with a mutex in it, which was taken and given back: they leave like any
/// others.
pub unsafe fn mutexes(big: &Big) -> String {
    unsafe {
        let at: Vec<*mut libc::pthread_mutex_t> =
            (0..12_000).map(|_| libc::malloc(PAGE).cast()).collect();
        for &m in &at {
            libc::pthread_mutex_init(m, null());
            libc::pthread_mutex_lock(m);
            libc::pthread_mutex_unlock(m);
        }
        // A contended mutex stays until it is taken.
        extern "C" fn takes(m: *mut c_void) -> *mut c_void {
            unsafe { libc::pthread_mutex_lock(m.cast()) as usize as *mut c_void }
        }
        let (mut t, mut r) = (0, null_mut());
        libc::pthread_mutex_lock(at[0]);
        libc::pthread_create(&mut t, null(), takes, at[0].cast());
        let resident = || at.iter().filter(|&&m| is_there(m.cast())).count();
        let left = (0..20).any(|_| {
            big.sweep();
            resident() < at.len() / 2
        });
        libc::pthread_mutex_unlock(at[0]);
        libc::pthread_join(t, &mut r);
        format!("{left} {}", r as usize)
    }
}

/// Objects of 16 pages from each function that gives memory: with the first page, the last one
/// comes along.
pub unsafe fn objects(big: &Big) -> String {
    unsafe {
        const BYTES: usize = 16 * PAGE;
        let new = libc::dlsym(libc::RTLD_DEFAULT, c"_Znwm".as_ptr());
        assert!(!new.is_null());
        let new: extern "C" fn(usize) -> *mut u8 = std::mem::transmute(new);
        let given: [&dyn Fn() -> *mut u8; 3] =
            [&|| new(BYTES), &|| libc::calloc(1, BYTES).cast(), &|| {
                libc::memalign(PAGE, BYTES).cast()
            }];
        let come = given.map(|give| {
            let all: Vec<*mut u8> = (0..64).map(|_| give()).collect();
            all.iter().for_each(|at| at.write_bytes(7, BYTES));
            // On a busy machine room may be short, which cuts a fetch. Then try again.
            (0..10).any(|_| {
                (0..4).for_each(|_| big.sweep());
                // Memory that the allocator took before the pager started is never away.
                let away: Vec<_> = all
                    .iter()
                    .filter(|at| !is_there(**at) && !is_there(at.add(BYTES - 1)))
                    .collect();
                let come = away
                    .iter()
                    .filter(|at| at.read_volatile() == 7 && is_there(at.add(BYTES - 1)))
                    .count();
                away.len() > 40 && come * 2 > away.len()
            })
        });
        come.map(|all| all.to_string()).join(" ")
    }
}

pub unsafe fn run(big: &Big) -> String {
    unsafe {
        // These pages are in no allocation.
        let (flags, pages) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 2048);
        let at =
            libc::mmap(null_mut(), pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
                .cast::<u8>();
        (0..pages).for_each(|i| at.add(i * PAGE).write(7));
        (0..4).for_each(|_| big.sweep());
        let away: Vec<*mut u8> =
            (0..pages).map(|i| at.add(i * PAGE)).filter(|&page| !is_there(page)).collect();
        let ahead =
            away.iter().filter(|&&page| is_there(page) & (page.read_volatile() == 7)).count();
        format!("{}", away.len() > pages / 2 && ahead * 4 > away.len() * 3)
    }
}

pub unsafe fn growing(big: &Big) -> String {
    unsafe {
        // Most of it was never touched, and a move must not touch it.
        let (flags, bytes) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 100 << 20);
        let at = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
            .cast::<u8>();
        at.add(50 << 20).write_bytes(7, PAGE * 2);
        big.send_away(at.add(50 << 20));
        let at =
            libc::mremap(at.cast(), bytes, bytes + (50 << 20), libc::MREMAP_MAYMOVE).cast::<u8>();
        format!("{} {} {}", *at, *at.add((50 << 20) + 5000), *at.add(bytes + 5))
    }
}

pub unsafe fn descriptors(big: &Big) -> String {
    unsafe {
        let at = sevens();
        for fd in 3..2000 {
            libc::close(fd);
        }
        close_range(3, u32::MAX, 0);
        big.send_away(at.add(5000));
        format!("{}", *at.add(5000))
    }
}
