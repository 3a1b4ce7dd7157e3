//! The functions of the Redis module API and of the pager that the guide calls, found at load.

use libc::{c_char, c_int, c_longlong, c_void};
use std::sync::atomic::Ordering::Relaxed;

/// An object of Redis.
pub type Ptr = *mut c_void;

/// `struct pando_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: *const u8,
    pub bytes: usize,
}

/// Functions by name, and one that looks all of them up; whether they are there.
macro_rules! functions {
    ($load:ident; $($name:ident: fn($($a:ty),*) $(-> $r:ty)?;)*) => {
        $(
            #[allow(non_snake_case)]
            mod $name {
                use std::sync::atomic::AtomicUsize;
                pub static AT: AtomicUsize = AtomicUsize::new(0);
            }
            #[allow(non_snake_case)]
            pub fn $name() -> unsafe extern "C" fn($($a),*) $(-> $r)? {
                unsafe { std::mem::transmute($name::AT.load(Relaxed)) }
            }
        )*
        pub fn $load(find: impl Fn(&str) -> usize) -> bool {
            $($name::AT.store(find(concat!(stringify!($name), "\0")), Relaxed);)*
            [$($name::AT.load(Relaxed)),*].iter().all(|&at| at != 0)
        }
    };
}

functions! { load_redis;
    SetModuleAttribs: fn(Ptr, *const c_char, c_int, c_int);
    GetThreadSafeContext: fn(Ptr) -> Ptr;
    RegisterCommandFilter: fn(Ptr, unsafe extern "C" fn(Ptr), c_int) -> Ptr;
    CommandFilterArgsCount: fn(Ptr) -> c_int;
    CommandFilterArgGet: fn(Ptr, c_int) -> Ptr;
    StringPtrLen: fn(Ptr, *mut usize) -> *const u8;
    StringToLongLong: fn(Ptr, *mut c_longlong) -> c_int;
    CreateString: fn(Ptr, *const u8, usize) -> Ptr;
    FreeString: fn(Ptr, Ptr);
    OpenKey: fn(Ptr, Ptr, c_int) -> Ptr;
    CloseKey: fn(Ptr);
    DeleteKey: fn(Ptr) -> c_int;
    ListPush: fn(Ptr, c_int, Ptr) -> c_int;
}

functions! { load_pager;
    pando_guide_abi: fn() -> u32;
    pando_guide_prefetch: fn(*const Range, usize) -> usize;
    pando_guide_request: fn();
    pando_guide_extent: fn(*const u8) -> usize;
}
