//! What the pager stands in for in the program: functions of the C library by their own names.
//!
//! Each does what the original does; memory of the region and calls that meet absent pages are treated first.

mod heap;
mod io;
mod memory;
mod path;
mod process;

pub use process::register;
pub mod signal;
mod stdio;

/// Sets `errno` from a kernel's answer, as the C library does.
pub unsafe fn answer(r: isize) -> isize {
    if r < 0 {
        *libc::__errno_location() = -r as i32;
        return -1;
    }
    r
}

pub const EFAULT: isize = -(libc::EFAULT as isize);

/// The next definition of a function, looked up once: `next!(malloc: fn(usize) -> *mut c_void)`.
#[macro_export]
macro_rules! next {
    ($name:ident : fn($($a:ty),*) $(-> $r:ty)?) => {{
        static FOUND: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        let mut f = FOUND.load(core::sync::atomic::Ordering::Relaxed);
        if f == 0 {
            f = libc::dlsym(libc::RTLD_NEXT, concat!(stringify!($name), "\0").as_ptr().cast()) as usize;
            if f == 0 {
                $crate::sys::die(format_args!("the program's C library has no {}", stringify!($name)));
            }
            FOUND.store(f, core::sync::atomic::Ordering::Relaxed);
        }
        core::mem::transmute::<usize, unsafe extern "C" fn($($a),*) $(-> $r)?>(f)
    }};
}
