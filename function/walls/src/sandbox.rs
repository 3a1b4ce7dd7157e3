//! The walls of a unit's process. Each tenant has its own process. After its start, the process
//! needs only its open descriptors.
//!
//! WebAssembly is the first wall. These walls still hold if WebAssembly has a hole: a network
//! namespace without a device, a user per tenant, no new privileges and no capability. Landlock
//! refuses every file. seccomp allows only system calls that move packets and memory. The process
//! can start no other process.
//!
//! A packet socket could send on every device of the namespace in which it was opened, if a call
//! named the device. So no call that sends may have an address. Packets leave by the device of
//! their socket only.

use std::io;
use std::os::fd::RawFd;

/// System calls that the unit may make with any arguments. All others fail with EPERM, except for
/// [`Bounded`].
const ALLOWED: [libc::c_long; 32] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    libc::SYS_munmap,
    libc::SYS_mremap,
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
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
];

fn checked(result: libc::c_long, what: &str) -> io::Result<libc::c_long> {
    if result >= 0 {
        return Ok(result);
    }
    let cause = io::Error::last_os_error();
    Err(io::Error::new(cause.kind(), format!("{what}: {cause}")))
}

/// A system call that is allowed for some values of one argument. With several entries, a call is
/// allowed if one of them allows it.
struct Bounded {
    number: libc::c_long,
    argument: u32,
    test: Test,
}

/// Condition on the low half of the argument.
enum Test {
    /// The value is one of these.
    OneOf(Vec<u32>),
    /// The value has none of these bits.
    Without(u32),
}

/// Written memory is never executable. Signals reach only this process. No descriptor gets an owner
/// to receive signals. Only data of the socket `addresses` has an address. No packet socket
/// changes.
fn bounded(addresses: Option<RawFd>) -> Vec<Bounded> {
    let commands = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL].map(|c| c as u32);
    let call = |number, argument, test| Bounded { number, argument, test };
    let levels = [libc::SOL_SOCKET, libc::IPPROTO_TCP].map(|level| level as u32);
    let addresses = addresses.map(|fd| call(libc::SYS_sendto, 0, Test::OneOf(vec![fd as u32])));
    let rules = [
        // The length of the address. Without one, a packet leaves by its socket's device.
        call(libc::SYS_sendto, 5, Test::OneOf(vec![0])),
        call(libc::SYS_setsockopt, 1, Test::OneOf(levels.to_vec())),
        call(libc::SYS_mmap, 2, Test::Without(libc::PROT_EXEC as u32)),
        call(libc::SYS_mprotect, 2, Test::Without(libc::PROT_EXEC as u32)),
        call(libc::SYS_tgkill, 0, Test::OneOf(vec![std::process::id()])),
        // A log that is too long begins again. The shared memory of a group keeps its length.
        call(libc::SYS_ftruncate, 0, Test::OneOf(vec![libc::STDERR_FILENO as u32])),
        call(libc::SYS_fcntl, 1, Test::OneOf(commands.to_vec())),
    ];
    addresses.into_iter().chain(rules).collect()
}

/// Closes the walls around this process, which works for `tenant`. There is no way back. Only the
/// socket `addresses`, if any, may send to an address. It must be no packet socket.
///
/// The working thread must call this, because Landlock and the namespace apply only to the calling
/// thread. The other walls apply to all threads.
///
/// Without root, the process keeps its user and its network namespace, and only the calling thread
/// drops its capabilities. The other walls need no privilege.
pub fn enter(tenant: &str, addresses: Option<RawFd>) -> io::Result<()> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: plain system call.
        checked(
            unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWIPC) }.into(),
            "leave the network namespace",
        )?;
        become_user(user_of(tenant))?;
    }
    // SAFETY: plain system calls without memory of ours.
    checked(
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into(),
        "PR_SET_NO_NEW_PRIVS",
    )?;
    // SAFETY: as above.
    checked(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into(), "PR_SET_DUMPABLE")?;
    for (resource, what) in
        [(libc::RLIMIT_NPROC, "RLIMIT_NPROC"), (libc::RLIMIT_CORE, "RLIMIT_CORE")]
    {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives during the call.
        checked(unsafe { libc::setrlimit(resource, &none) }.into(), what)?;
    }
    no_files()?;
    no_capabilities()?;
    few_system_calls(addresses)
}

/// Returns the user of a tenant by the hash of its name. The 2^28 users are a range that systemd's
/// "Users, Groups, UIDs and GIDs" lists as unused. With a thousand tenants, two share a user in one
/// of five hundred installations.
fn user_of(tenant: &str) -> u32 {
    const FIRST: u32 = 0x7000_0000;
    // FNV-1a is the same in every version. The standard library's hash is not.
    let hash = tenant
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST | (hash & 0x0fff_ffff)
}

/// Switches all threads to `user`, with only its group, for good. The kernel then clears the signal
/// for the parent's death, so this function sets it again.
fn become_user(user: u32) -> io::Result<()> {
    let mut signal: libc::c_int = 0;
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    // SAFETY: the call writes one int.
    checked(
        unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &mut signal) }.into(),
        "PR_GET_PDEATHSIG",
    )?;
    let what = format!("become user {user} (a user namespace has to map it)");
    // SAFETY: an empty list needs no memory.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into(), &what)?;
    // SAFETY: plain system calls.
    checked(unsafe { libc::setresgid(user, user, user) }.into(), &what)?;
    // SAFETY: as above.
    checked(unsafe { libc::setresuid(user, user, user) }.into(), &what)?;
    // SAFETY: as above.
    checked(
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }.into(),
        "PR_SET_PDEATHSIG",
    )?;
    // SAFETY: no arguments.
    if signal != 0 && unsafe { libc::getppid() } != parent {
        return Err(io::Error::other("the process that watches this one ended"));
    }
    Ok(())
}

/// Enters a Landlock ruleset that handles every file access and allows none.
fn no_files() -> io::Result<()> {
    const CREATE_RULESET: libc::c_long = 444;
    const RESTRICT_SELF: libc::c_long = 446;
    /// All rights of Landlock's first version, which every version supports.
    const EVERY_ACCESS: u64 = (1 << 13) - 1;
    // SAFETY: the attribute is 8 bytes and lives during the call.
    let ruleset = match unsafe { libc::syscall(CREATE_RULESET, &EVERY_ACCESS, 8usize, 0) } {
        // The kernel has no Landlock. seccomp below still refuses `open`.
        -1 if matches!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOSYS | libc::EOPNOTSUPP)
        ) =>
        {
            return Ok(());
        }
        fd => checked(fd, "create a Landlock ruleset")?,
    };
    // SAFETY: plain system calls.
    let result =
        checked(unsafe { libc::syscall(RESTRICT_SELF, ruleset, 0) }, "restrict by Landlock");
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
    checked(unsafe { libc::syscall(libc::SYS_capset, &header, &none) }, "drop the capabilities")
        .map(drop)
}

fn few_system_calls(addresses: Option<RawFd>) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |action: u32| statement(libc::BPF_RET | libc::BPF_K, action);
    let refused = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program =
        vec![load(4), jump(ARCHITECTURE, 1, 0), answer(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    for number in ALLOWED {
        program.extend([jump(number as u32, 0, 1), answer(libc::SECCOMP_RET_ALLOW)]);
    }
    let mut calls = bounded(addresses).into_iter().peekable();
    while let Some(call) = calls.next() {
        // Load the low half of the argument. Both architectures are little endian, and no test
        // needs the high half.
        let mut body = vec![load(16 + 8 * call.argument)];
        match call.test {
            Test::OneOf(values) => values
                .iter()
                .for_each(|v| body.extend([jump(*v, 0, 1), answer(libc::SECCOMP_RET_ALLOW)])),
            Test::Without(bits) => body.extend([
                libc::sock_filter {
                    code: (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16,
                    jt: 1,
                    jf: 0,
                    k: bits,
                },
                answer(libc::SECCOMP_RET_ALLOW),
            ]),
        }
        if calls.peek().is_some_and(|next| next.number == call.number) {
            body.push(load(0)); // the next entry decides
        } else {
            body.push(refused);
        }
        program.push(jump(call.number as u32, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(refused);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: filter and program live during the call.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter) };
    checked(result, "restrict the system calls").map(drop)
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
