//! The walls of a unit's process: one process per tenant, which after its start needs nothing but its open descriptors.
//!
//! WebAssembly is the first wall. These are the second, for the day on which that one has a hole: no new privileges, no
//! capability, no file (Landlock), and of the system calls only those that move packets and memory (seccomp).

use std::io;

/// What the unit may still ask of the kernel. All else fails with EPERM.
const ALLOWED: [libc::c_long; 40] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
];

fn checked(result: libc::c_long, what: &str) -> io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let cause = io::Error::last_os_error();
    Err(io::Error::new(cause.kind(), format!("{what}: {cause}")))
}

/// Closes the walls around all threads of this process. There is no way back.
pub fn enter() -> io::Result<()> {
    // SAFETY: plain system calls without memory of ours.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into(), "PR_SET_NO_NEW_PRIVS")?;
    // SAFETY: as above.
    checked(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into(), "PR_SET_DUMPABLE")?;
    no_files()?;
    no_capabilities()?;
    few_system_calls()
}

/// A Landlock ruleset that handles every access to files and allows none.
fn no_files() -> io::Result<()> {
    const CREATE_RULESET: libc::c_long = 444;
    const RESTRICT_SELF: libc::c_long = 446;
    /// All rights of Landlock's first version, which every kernel that has Landlock knows.
    const EVERY_ACCESS: u64 = (1 << 13) - 1;
    // SAFETY: the attribute is 8 bytes and lives during the call.
    let ruleset = match unsafe { libc::syscall(CREATE_RULESET, &EVERY_ACCESS, 8usize, 0) } {
        // A kernel without Landlock: seccomp below refuses open all the same.
        -1 if matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => return Ok(()),
        fd => checked(fd, "create a Landlock ruleset")?,
    };
    // SAFETY: plain system calls.
    let result = checked(unsafe { libc::syscall(RESTRICT_SELF, ruleset, 0) }, "restrict by Landlock");
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(ruleset as i32) };
    result.map(drop)
}

fn no_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: header and data are what version 3 of the call takes.
    checked(unsafe { libc::syscall(libc::SYS_capset, &header, &none) }, "drop the capabilities").map(drop)
}

fn few_system_calls() -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k: u32, jt: u8, jf: u8| libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt, jf, k };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |action: u32| statement(libc::BPF_RET | libc::BPF_K, action);
    let mut program = vec![load(4), jump(ARCHITECTURE, 1, 0), answer(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    for (n, number) in ALLOWED.iter().enumerate() {
        program.push(jump(*number as u32, (ALLOWED.len() - n) as u8, 0));
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: filter and program live during the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter) };
    checked(result, "restrict the system calls").map(drop)
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
