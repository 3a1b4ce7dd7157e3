//! Threads: their stacks, their ends, and their users.

use crate::away::{Big, PAGE, sevens};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn pthread_cancel(t: libc::pthread_t) -> c_int;
    fn pthread_attr_setstack(a: *mut libc::pthread_attr_t, at: *mut c_void, bytes: usize) -> c_int;
}

pub unsafe fn pipe() -> [c_int; 2] {
    unsafe {
        let mut ends = [0; 2];
        libc::pipe(ends.as_mut_ptr());
        ends
    }
}

pub extern "C" fn reads(fd: *mut c_void) -> *mut c_void {
    let mut b = 0u8;
    unsafe { libc::read(*fd.cast::<c_int>(), (&raw mut b).cast(), 1) };
    null_mut()
}

pub unsafe fn cancel(_: &Big) -> String {
    unsafe {
        let (ends, mut t, mut r) = (pipe(), 0, null_mut());
        libc::pthread_create(&mut t, null(), reads, ends.as_ptr() as *mut c_void);
        pthread_cancel(t);
        libc::pthread_join(t, &mut r);
        format!("{}", r as isize)
    }
}

pub unsafe fn stack(big: &Big) -> String {
    unsafe {
        let (ends, mut t, bytes) = (pipe(), 0, 1 << 19);
        let stack = libc::memalign(PAGE, bytes);
        stack.write_bytes(0, bytes);
        big.send_away(stack.cast::<u8>().add(bytes - 3 * PAGE));
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        pthread_attr_setstack(&mut attributes, stack, bytes);
        big.sweep();
        libc::write(ends[1], c"x".as_ptr().cast(), 1);
        let r = libc::pthread_create(&mut t, &attributes, reads, ends.as_ptr() as *mut c_void);
        format!("{r} {}", libc::pthread_join(t, null_mut()))
    }
}

/// The users and groups of all threads, each combination once.
fn identities() -> std::collections::BTreeSet<String> {
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let lines = status
            .lines()
            .filter(|l| ["Uid:", "Gid:", "Groups:"].iter().any(|name| l.starts_with(name)));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().map(of).collect()
}

pub unsafe fn root(big: &Big) -> String {
    unsafe {
        let at = sevens();
        libc::setgroups(1, [1234].as_ptr());
        libc::setgid(1235);
        libc::setuid(1236);
        big.send_away(at.add(5000));
        format!("{} {:?}", *at.add(5000), identities())
    }
}
