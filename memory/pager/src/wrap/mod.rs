//! Functions of the C library that the pager replaces, by their own names.
//!
//! Each behaves like the original. It handles memory of the region itself, and repeats calls that
//! meet absent pages.

mod checked;
mod descriptor;
pub mod heap;
mod identity;
mod io;
mod loader;
mod memory;
mod path;
mod pieces;
mod process;

pub use process::register;
pub mod signal;
mod small;
mod spawn;
mod stdio;
mod sync;
mod syscall;
mod threads;
mod zerocopy;

/// Sets `errno` from a kernel's result, as the C library does.
pub unsafe fn answer(r: isize) -> isize {
    unsafe {
        if r < 0 {
            *libc::__errno_location() = -r as i32;
            return -1;
        }
        r
    }
}

pub const EFAULT: isize = -(libc::EFAULT as isize);

/// Finds the next definition of a function, by its name with a NUL. The C library has two versions
/// of conditions, which must not be mixed. Programs of this century use the newer one.
pub unsafe fn find(name: &str) -> usize {
    unsafe {
        let newer = if name.starts_with("pthread_cond_") {
            libc::dlvsym(libc::RTLD_NEXT, name.as_ptr().cast(), c"GLIBC_2.3.2".as_ptr())
        } else {
            core::ptr::null_mut()
        };
        let newest = if newer.is_null() { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) } else { newer };
        newest as usize
    }
}

/// The next definition of a function, which is looked up once: `next!(malloc: fn(usize) -> *mut
/// c_void)`.
#[macro_export]
macro_rules! next {
    ($name:ident : fn($($a:ty),*) $(-> $r:ty)?) => {{
        static FOUND: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        let mut f = FOUND.load(core::sync::atomic::Ordering::Relaxed);
        if f == 0 {
            f = $crate::wrap::find(concat!(stringify!($name), "\0"));
            if f == 0 {
                $crate::sys::die(format_args!("the program's C library has no {}", stringify!($name)));
            }
            FOUND.store(f, core::sync::atomic::Ordering::Relaxed);
        }
        core::mem::transmute::<usize, unsafe extern "C" fn($($a),*) $(-> $r)?>(f)
    }};
}
