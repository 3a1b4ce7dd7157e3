//! The functions of the C library behind the wrappers of this library.

/// Finds the next definition of a function, by its name with a NUL. The C library has two versions
/// of conditions, which must not be mixed. Programs of this century use the newer one.
pub unsafe fn find(name: &str) -> usize {
    unsafe {
        let newer = if name.starts_with("pthread_cond_") {
            libc::dlvsym(libc::RTLD_NEXT, name.as_ptr().cast(), c"GLIBC_2.3.2".as_ptr())
        } else {
            core::ptr::null_mut()
        };
        if newer.is_null() {
            libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) as usize
        } else {
            newer as usize
        }
    }
}

/// The next definition of a function, which is looked up once: `next!(malloc: fn(usize) -> *mut
/// c_void)`.
macro_rules! next {
    ($name:ident : fn($($a:ty),*) $(-> $r:ty)?) => {{
        static FOUND: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        let mut f = FOUND.load(core::sync::atomic::Ordering::Relaxed);
        if f == 0 {
            f = $crate::next::find(concat!(stringify!($name), "\0"));
            if f == 0 {
                let name = stringify!($name);
                $crate::sys::die(format_args!("the program's C library has no {name}"));
            }
            FOUND.store(f, core::sync::atomic::Ordering::Relaxed);
        }
        core::mem::transmute::<usize, unsafe extern "C" fn($($a),*) $(-> $r)?>(f)
    }};
}
pub(crate) use next;
