//! Calls that change the user or the groups of the program. The pager's threads follow.

use crate::pin::Pin;
use crate::{identity, next};
use libc::{c_char, c_int, gid_t, size_t, uid_t};

/// Defines wrappers that call the C library, and then have the pager's threads follow.
macro_rules! followed {
    ($($name:ident($($a:ident: $t:ty),*);)*) => {$(
        /// # Safety
        /// As the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int { unsafe {
            let r = next!($name: fn($($t),*) -> c_int)($($a),*);
            if r == 0 {
                identity::spread();
            }
            r
        }}
    )*};
}

followed! {
    setuid(id: uid_t);
    seteuid(id: uid_t);
    setreuid(real: uid_t, effective: uid_t);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    setgid(id: gid_t);
    setegid(id: gid_t);
    setregid(real: gid_t, effective: gid_t);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    initgroups(user: *const c_char, group: gid_t);
}

/// # Safety
/// As setgroups(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setgroups(count: size_t, list: *const gid_t) -> c_int {
    unsafe {
        let _list = Pin::new(list.cast(), count.saturating_mul(size_of::<gid_t>()));
        let r = next!(setgroups: fn(size_t, *const gid_t) -> c_int)(count, list);
        if r == 0 {
            identity::spread();
        }
        r
    }
}
