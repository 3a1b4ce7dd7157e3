//! The abilities of this machine: faults of the kernel for handler threads, and moves of pages.
//! They are probed before anything is leased, so a refusal has its true cause.

use crate::refusal::{self, Refusal};
use std::fs::OpenOptions;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const USER_MODE_ONLY: i32 = 1;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa << 8;
const UFFDIO_API: libc::c_ulong = 3 << 30 | 24 << 16 | 0xaa << 8 | 0x3f;
const API: u64 = 0xaa;
const WRITE_PROTECT: u64 = 1;
const SIGBUS: u64 = 1 << 7;
const MOVE: u64 = 1 << 16;

/// The device that gives a userfaultfd to a process with the rights of its file.
const DEVICE: &str = "/dev/userfaultfd";

/// The abilities of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Handler threads may serve faults inside the kernel.
    pub threads: bool,
    /// The kernel moves pages. Otherwise the pager copies them.
    pub moves: bool,
}

/// Probes this machine.
pub fn probe() -> Result<Kernel, Refusal> {
    let (fd, threads) = match open(0) {
        Ok(fd) => (fd, true),
        Err(_) => (open(USER_MODE_ONLY).map_err(|e| why(&e, &Facts::read()))?, false),
    };
    let has = features(&fd).map_err(|e| why(&e, &Facts::read()))?;
    if has & SIGBUS == 0 || has & (MOVE | WRITE_PROTECT) == 0 {
        return Err(refusal::unsupported(format!(
            "the userfaultfd of this kernel ({}) neither moves pages nor protects them: boot \
             Linux 6.1 or newer",
            Facts::read().release
        )));
    }
    let swapped = has_swap(&text("/proc/swaps")) && !moves_swapped(&Facts::read().release);
    Ok(Kernel { threads, moves: has & MOVE != 0 && !swapped })
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Whether the machine swaps, from its list of swap devices.
fn has_swap(list: &str) -> bool {
    list.lines().count() > 1
}

/// Whether a kernel moves pages safely while it swaps them. Before Linux 6.16, a page may be in the
/// swap cache during its move and lose its content. Older stable kernels may have the fix, and
/// copy too.
fn moves_swapped(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>());
    let (major, minor) = (numbers.next(), numbers.next());
    matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 16))
}

/// Creates a userfaultfd by the system call, or else by the device. The error is the system call's.
fn open(flags: i32) -> Result<OwnedFd, Error> {
    let flags = flags | libc::O_CLOEXEC;
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
    if fd >= 0 {
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let refused = Error::last_os_error();
    let Ok(device) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Err(refused);
    };
    match unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) } {
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(refused),
    }
}

/// Returns the features of a userfaultfd.
fn features(fd: &OwnedFd) -> Result<u64, Error> {
    let mut api = [API, 0, 0];
    match unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } {
        0 => Ok(api[1]),
        _ => Err(Error::last_os_error()),
    }
}

/// The facts that decide about the cause of a refusal.
struct Facts {
    release: String,
    /// A filter of system calls is on this process.
    filtered: bool,
    device: bool,
}

impl Facts {
    fn read() -> Facts {
        Facts {
            release: text("/proc/sys/kernel/osrelease").trim().to_string(),
            filtered: text("/proc/self/status").lines().any(|l| l == "Seccomp:\t2"),
            device: std::path::Path::new(DEVICE).exists(),
        }
    }
}

/// Returns the cause why there is no userfaultfd, and the next step.
fn why(e: &Error, facts: &Facts) -> Refusal {
    let Facts { release, filtered, device } = facts;
    let next = if *device {
        "give this user write access to /dev/userfaultfd"
    } else {
        "give the container the device (docker run --device /dev/userfaultfd; Linux 6.1 or newer)"
    };
    match e.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) if *filtered => refusal::denied(format!(
            "a filter of system calls (seccomp) refuses userfaultfd: {next}, or a seccomp profile \
             that allows userfaultfd"
        )),
        Some(libc::ENOSYS) => refusal::unsupported(format!(
            "this kernel ({release}) has no userfaultfd: boot one with CONFIG_USERFAULTFD"
        )),
        Some(libc::EINVAL) => refusal::denied(format!(
            "this kernel ({release}) gives a user no userfaultfd: be root, or run \
             `sysctl vm.unprivileged_userfaultfd=1`"
        )),
        Some(libc::EPERM | libc::EACCES) => refusal::denied(format!(
            "a security module refuses userfaultfd: {next}, or allow it in the module's policy"
        )),
        _ => refusal::of(e, format!("no userfaultfd: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_loses_moved_pages_in_its_swap_copies() {
        let head = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(!has_swap(head) && has_swap(&format!("{head}/dev/zram0 partition 1 0 100\n")));
        for (release, moves) in [
            ("6.8.0-31-generic", false),
            ("6.12.38+deb13-amd64", false),
            ("6.15.11", false),
            ("6.16.0-rc1", true),
            ("6.18.44-fc-v595", true),
            ("7.0", true),
            ("unknown", false),
        ] {
            assert_eq!(moves_swapped(release), moves, "{release}");
        }
    }

    #[test]
    fn a_refusal_has_its_cause_and_the_next_step() {
        let facts = |filtered, device| Facts { release: "6.1.0".into(), filtered, device };
        for (error, filtered, device, code, words) in [
            (libc::EPERM, true, false, 10, "docker run --device /dev/userfaultfd"),
            (libc::ENOSYS, true, true, 10, "write access to /dev/userfaultfd"),
            (libc::ENOSYS, false, false, 11, "CONFIG_USERFAULTFD"),
            (libc::EINVAL, false, false, 10, "sysctl vm.unprivileged_userfaultfd=1"),
            (libc::EPERM, false, true, 10, "a security module"),
            (libc::EMFILE, false, true, 1, "no userfaultfd"),
        ] {
            let refusal = why(&Error::from_raw_os_error(error), &facts(filtered, device));
            assert!(refusal.code == code && refusal.words.contains(words), "{error}: {refusal:?}");
        }
    }
}
