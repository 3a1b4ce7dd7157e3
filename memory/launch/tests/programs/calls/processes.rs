//! Calls that make processes: forks, and programs that read their arguments from memory that is
//! away.

use crate::away::{Big, sevens};
use crate::threads::{pipe, reads};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    static environ: *const *mut c_char;
    fn _Fork() -> c_int;
    fn vfork() -> c_int;
}

unsafe fn text(s: &CStr) -> *mut c_char {
    unsafe { libc::strdup(s.as_ptr()) }
}

unsafe fn ended(child: c_int) -> c_int {
    unsafe {
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        status
    }
}

pub unsafe fn system(big: &Big) -> String {
    unsafe {
        let command = text(c"echo $FAR");
        big.sweep();
        format!("{}", libc::system(command))
    }
}

pub unsafe fn popen(big: &Big) -> String {
    unsafe {
        let command = text(c"echo $FAR");
        big.sweep();
        let f = libc::popen(command, c"r".as_ptr());
        big.sweep();
        let mut line = [0 as c_char; 100];
        libc::fgets(line.as_mut_ptr(), 100, f);
        format!("{} {}", CStr::from_ptr(line.as_ptr()).to_string_lossy().trim(), libc::pclose(f))
    }
}

pub unsafe fn spawn(big: &Big) -> String {
    unsafe {
        let list = libc::malloc(1 << 16).cast::<*mut c_char>();
        list.write(text(c"sh"));
        list.add(1).write(text(c"-c"));
        list.add(2).write(text(c"read line <&5; echo $FAR $line"));
        list.add(3).write(null_mut());
        let actions = libc::malloc(size_of::<libc::posix_spawn_file_actions_t>())
            .cast::<libc::posix_spawn_file_actions_t>();
        libc::posix_spawn_file_actions_init(actions);
        libc::posix_spawn_file_actions_addopen(actions, 5, text(c"/proc/self/comm"), 0, 0);
        big.send_away(list.cast());
        let mut child = 0;
        let r = libc::posix_spawnp(&mut child, c"sh".as_ptr(), actions, null(), list, environ);
        format!("{r} {}", ended(child))
    }
}

pub unsafe fn arguments(big: &Big) -> String {
    unsafe {
        // Use more texts than stay local, so that they leave. The program prints how many it
        // received.
        let list = libc::malloc(1 << 16).cast::<*mut c_char>();
        list.write(text(c"sh"));
        list.add(1).write(text(c"-c"));
        list.add(2).write(text(c"echo $#"));
        for i in 3..3000 {
            let long = libc::malloc(400).cast::<c_char>();
            long.write_bytes(b'x', 399);
            long.add(399).write(0);
            list.add(i).write(long);
        }
        list.add(3000).write(null_mut());
        let places = std::slice::from_raw_parts(list.cast::<*const u8>(), 3000);
        let far: Vec<*const u8> = places[3..].to_vec();
        big.send_all_away(&far);
        let child = libc::fork();
        if child == 0 {
            libc::execv(c"/bin/sh".as_ptr(), list.cast());
            libc::_exit(9);
        }
        let exec = ended(child);
        big.send_all_away(&far);
        let mut child = 0;
        let r = libc::posix_spawn(&mut child, c"/bin/sh".as_ptr(), null(), null(), list, environ);
        format!("{exec} {r} {}", ended(child))
    }
}

pub unsafe fn streams(big: &Big) -> String {
    unsafe {
        // A program with threads and open files forks.
        let (ends, mut t) = (pipe(), 0);
        libc::pthread_create(&mut t, null(), reads, ends.as_ptr() as *mut c_void);
        for _ in 0..100 {
            libc::fopen(c"/etc/passwd".as_ptr(), c"r".as_ptr());
        }
        big.sweep();
        let child = libc::fork();
        if child == 0 {
            libc::_exit(3);
        }
        format!("{:x}", ended(child))
    }
}

/// Forks with memory that is away: the child reads it.
unsafe fn forked(big: &Big, fork: impl FnOnce() -> c_int) -> String {
    unsafe {
        let at = sevens();
        big.send_away(at.add(5000));
        let child = fork();
        if child == 0 {
            libc::_exit(*at.add(5000) as c_int);
        }
        format!("{:x}", ended(child))
    }
}

pub unsafe fn fork(big: &Big) -> String {
    unsafe { forked(big, || libc::syscall(libc::SYS_fork) as c_int) }
}

pub unsafe fn clone(big: &Big) -> String {
    unsafe { forked(big, || libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as c_int) }
}

pub unsafe fn bare(big: &Big) -> String {
    unsafe { forked(big, || _Fork()) }
}

pub unsafe fn vforked(big: &Big) -> String {
    unsafe {
        let at = sevens().add(5000);
        big.send_away(at);
        let child = vfork();
        if child == 0 {
            let found = at.read();
            at.write(8);
            libc::_exit(found as c_int);
        }
        format!("{:x} {}", ended(child), at.read())
    }
}

/// Counts the descriptors of pipes. Those of the pager are closed once it has noticed the ends of
/// its children.
fn pipes() -> usize {
    let is_pipe = |f: &std::fs::DirEntry| {
        std::fs::read_link(f.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
    };
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_pipe).count()
}

pub unsafe fn children(big: &Big) -> String {
    unsafe {
        // Use more children at once than the pager has pipes. Each sees the moment of its fork.
        let (at, early, late, before) = (sevens().add(5000), pipe(), pipe(), pipes());
        let born = |gate: [c_int; 2]| {
            let child = libc::fork();
            if child == 0 {
                reads(gate.as_ptr() as *mut c_void);
                libc::_exit(at.read() as c_int);
            }
            child
        };
        let open = |gate: [c_int; 2], of: &[c_int]| {
            libc::write(gate[1], [0u8; 64].as_ptr().cast(), of.len());
            of.iter().map(|&child| ended(child) >> 8).sum::<c_int>()
        };
        big.send_away(at);
        let first: Vec<c_int> =
            (0..40).map(|i| born(if i % 2 == 0 { early } else { late })).collect();
        at.write(8);
        big.send_away(at);
        let gone = open(early, &first.iter().copied().step_by(2).collect::<Vec<_>>());
        let mut rest: Vec<c_int> = first.into_iter().skip(1).step_by(2).collect();
        rest.push(born(late));
        let gone = [gone, open(late, &rest)];
        let noticed = (0..10_000).any(|_| {
            libc::usleep(1000);
            pipes() == before
        });
        format!("{gone:?} {noticed}")
    }
}
