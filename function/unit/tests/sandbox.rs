//! A unit that a function has broken out of. The sandbox refuses all its attempts. Needs root, so
//! that the sandbox is the one that refuses; without root the test reports that and skips.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use libc::c_long;
use pando_walls::sandbox;

/// The mode of the child: `wait` in the sandbox, `try` in the sandbox, `bare` to try without it.
const MODE: &str = "PANDO_TEST_WALLS";
const NEIGHBOUR: &str = "PANDO_TEST_NEIGHBOUR";

fn inside(mode: &str, neighbour: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "behind_the_walls", "--ignored", "--nocapture"])
        .env(MODE, mode)
        .env(NEIGHBOUR, neighbour.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Returns the lines "attempt NAME ERROR" of a child, until it ends.
fn attempts(mut child: Child) -> Vec<(String, i32)> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines
        .filter_map(|l| l.unwrap().split_once("attempt ").map(|(_, rest)| rest.to_owned()))
        .map(|l| {
            l.split_once(' ')
                .map(|(name, error)| (name.to_owned(), error.parse().unwrap()))
                .unwrap()
        })
        .collect();
    assert!(child.wait().unwrap().success());
    found
}

#[test]
fn nothing_outside_is_within_reach() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: needs root");
        return;
    }
    // The neighbour is in the same sandbox for the same tenant: the same user.
    let mut neighbour = inside("wait", 0);
    let mut said = BufReader::new(neighbour.stdout.take().unwrap()).lines();
    said.find(|l| l.as_ref().unwrap().contains("waits")).expect("the neighbour is ready").unwrap();
    let free = attempts(inside("bare", neighbour.id()));
    let walled = attempts(inside("try", neighbour.id()));
    let named: Vec<_> = walled.iter().filter(|(name, _)| !name.starts_with("call-")).collect();
    assert_eq!(named.len(), free.len());
    for ((name, without), (same, with)) in free.iter().zip(named) {
        assert_eq!((name, *with), (same, libc::EPERM), "behind the walls");
        assert_ne!(
            *without,
            libc::EPERM,
            "{name} is refused without walls too: that it is behind them says nothing"
        );
    }
    let open: Vec<_> = walled
        .iter()
        .filter(|(name, error)| name.starts_with("call-") && *error != libc::EPERM)
        .collect();
    assert!(open.is_empty() && walled.len() > 300, "not refused: {open:?}");
    assert!(neighbour.try_wait().unwrap().is_none(), "the neighbour ended");
    drop(neighbour.stdin.take());
    assert!(neighbour.wait().unwrap().success());
}

/// The child of the test above.
#[test]
#[ignore = "started by nothing_outside_is_within_reach"]
fn behind_the_walls() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let neighbour: c_long = std::env::var(NEIGHBOUR).unwrap().parse().unwrap();
    // Descriptors opened before remain, like the unit's sockets.
    let socket = packet_socket();
    if mode != "bare" {
        sandbox::enter("tenant", None).unwrap();
    }
    if mode == "wait" {
        println!("waits");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    for (name, call) in named(neighbour).into_iter().chain(sends(socket)) {
        println!("attempt {name} {}", error_of(call));
    }
    if mode == "try" {
        // Invalid addresses and descriptors, so that a call that passes through a hole does
        // nothing. The kernel lets uretprobe and uprobe pass every filter. Without a probe they end
        // the caller.
        let tried = |n: &c_long| !NEEDED.contains(n) && ![335, 336].contains(n);
        for number in (0..500).filter(tried).chain([0x4000_0000 | libc::SYS_getpid]) {
            println!("attempt call-{number} {}", error_of([number, -1, -1, -1, -1, -1, -1]));
        }
    }
}

/// Opens a packet socket in a namespace of its own, in which loopback is down.
fn packet_socket() -> c_long {
    // SAFETY: plain system calls.
    let socket = unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0);
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
    };
    assert!(socket >= 0);
    socket.into()
}

type Call = [c_long; 7];

fn error_of(c: Call) -> i32 {
    // SAFETY: the arguments are numbers, or point to memory that is never freed.
    match unsafe { libc::syscall(c[0], c[1], c[2], c[3], c[4], c[5], c[6]) } {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap(),
        // SAFETY: the child of the fork ends at once.
        0 if c[0] == libc::SYS_clone => unsafe { libc::_exit(0) },
        _ => 0,
    }
}

/// Returns the ways by which a packet socket reaches a device that it is not bound to.
fn sends(socket: c_long) -> Vec<(&'static str, Call)> {
    // SAFETY: these are valid when they are all zero.
    let (mut address, mut header, mut member): (
        libc::sockaddr_ll,
        libc::mmsghdr,
        libc::packet_mreq,
    ) = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = 1;
    (member.mr_ifindex, member.mr_type) = (1, libc::PACKET_MR_PROMISC as u16);
    let (frame, address) = (Vec::leak(vec![2u8; 60]), Box::leak(Box::new(address)));
    let vector = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    let address_bytes = size_of_val(address) as c_long;
    header.msg_hdr.msg_name = (&raw mut *address).cast();
    header.msg_hdr.msg_namelen = address_bytes as u32;
    header.msg_hdr.msg_iov = Box::leak(Box::new(vector));
    header.msg_hdr.msg_iovlen = 1;
    let (frame, address) = (frame.as_ptr() as c_long, &raw const *address as c_long);
    let header = Box::leak(Box::new(header)) as *const libc::mmsghdr as c_long;
    let member_bytes = size_of_val(&member) as c_long;
    let member = Box::leak(Box::new(member)) as *const libc::packet_mreq as c_long;
    let (level, join) = (libc::SOL_PACKET as c_long, libc::PACKET_ADD_MEMBERSHIP as c_long);
    vec![
        (
            "send-on-another-device",
            [libc::SYS_sendto, socket, frame, 60, 0, address, address_bytes],
        ),
        // A message's header begins a header of many messages.
        ("send-a-message-on-another-device", [libc::SYS_sendmsg, socket, header, 0, 0, 0, 0]),
        ("send-messages-on-another-device", [libc::SYS_sendmmsg, socket, header, 1, 0, 0, 0]),
        (
            "listen-to-all-of-another-device",
            [libc::SYS_setsockopt, socket, level, join, member, member_bytes, 0],
        ),
    ]
}

fn named(neighbour: c_long) -> Vec<(&'static str, Call)> {
    let text = |t: String| std::ffi::CString::new(t).unwrap().into_raw() as c_long;
    let at = libc::AT_FDCWD as c_long;
    let memory = Vec::leak(vec![0u64; 64]).as_ptr() as c_long;
    // SAFETY: a new mapping.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    } as c_long;
    let (read, execute) = (libc::O_RDONLY as c_long, (libc::PROT_READ | libc::PROT_EXEC) as c_long);
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as c_long;
    vec![
        ("open-a-file", [libc::SYS_openat, at, text("/etc/passwd".into()), read, 0, 0, 0]),
        (
            "open-the-neighbour's-memory",
            [libc::SYS_openat, at, text(format!("/proc/{neighbour}/mem")), read, 0, 0, 0],
        ),
        (
            "look-for-a-file",
            [libc::SYS_newfstatat, at, text("/etc/passwd".into()), memory, 0, 0, 0],
        ),
        (
            "open-a-socket",
            [libc::SYS_socket, libc::AF_INET as c_long, libc::SOCK_STREAM as c_long, 0, 0, 0, 0],
        ),
        ("connect", [libc::SYS_connect, -1, 0, 0, 0, 0, 0]),
        ("bind", [libc::SYS_bind, -1, 0, 0, 0, 0, 0]),
        ("fork", [libc::SYS_clone, libc::SIGCHLD as c_long, 0, 0, 0, 0, 0]),
        ("execute", [libc::SYS_execve, text("/nowhere".into()), 0, 0, 0, 0, 0]),
        (
            "trace-the-neighbour",
            [libc::SYS_ptrace, libc::PTRACE_SEIZE as c_long, neighbour, 0, 0, 0, 0],
        ),
        ("read-the-neighbour", [libc::SYS_process_vm_readv, neighbour, memory, 1, memory, 1, 0]),
        ("kill-the-neighbour", [libc::SYS_kill, neighbour, 0, 0, 0, 0, 0]),
        ("kill-the-neighbour's-thread", [libc::SYS_tgkill, neighbour, neighbour, 0, 0, 0, 0]),
        (
            "signal-the-neighbour-by-a-descriptor",
            [libc::SYS_fcntl, 0, libc::F_SETOWN as c_long, neighbour, 0, 0, 0],
        ),
        ("map-memory-to-run", [libc::SYS_mmap, 0, 4096, execute, private, -1, 0]),
        ("make-memory-run", [libc::SYS_mprotect, page, 4096, execute, 0, 0, 0]),
        ("enter-a-namespace", [libc::SYS_setns, -1, 0, 0, 0, 0, 0]),
        ("change-the-user", [libc::SYS_setresuid, -1, -1, -1, 0, 0, 0]),
    ]
}

/// The system calls that a unit needs, listed again here. The test tries all others.
const NEEDED: [c_long; 36] = [
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
