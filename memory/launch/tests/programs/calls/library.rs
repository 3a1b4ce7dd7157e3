//! Calls of the C library that read or write memory of its own: streams and tables of names.

use crate::away::Big;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
}

pub unsafe fn output(big: &Big) -> String {
    unsafe {
        libc::printf(c"first ".as_ptr());
        big.sweep();
        libc::printf(c"second\n".as_ptr());
        big.sweep();
        libc::fflush(stdout);
        "third".into()
    }
}

pub unsafe fn passwd(big: &Big) -> String {
    unsafe {
        big.sweep();
        let user = libc::getpwnam(c"root".as_ptr());
        format!("{}", !user.is_null() && CStr::from_ptr((*user).pw_name) == c"root")
    }
}

pub unsafe fn names(big: &Big) -> String {
    unsafe {
        big.sweep();
        let mut found = null_mut();
        format!("{}", libc::getaddrinfo(c"localhost".as_ptr(), c"80".as_ptr(), null(), &mut found))
    }
}

pub unsafe fn closed(big: &Big) -> String {
    unsafe {
        // The buffers of many closed streams leave some time after the close.
        let opened = std::array::from_fn::<_, 700, _>(|_| {
            libc::fopen(c"/etc/passwd".as_ptr(), c"r".as_ptr())
        });
        let read = opened.iter().filter(|&&f| !f.is_null() && libc::fgetc(f) > 0).count();
        // The stream itself, and its buffer.
        let places: Vec<*const u8> =
            opened.iter().flat_map(|&f| [f.cast(), *f.cast::<*const u8>().add(7)]).collect();
        for f in opened {
            libc::fclose(f);
        }
        big.send_all_away(&places);
        format!("{read}")
    }
}
