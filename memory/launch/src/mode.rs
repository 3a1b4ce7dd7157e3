//! The mode of fault handling, and the modes that the machine allows.

use crate::refusal::{self, Refusal};
use clap::ValueEnum;
use std::fs::OpenOptions;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Threads of the pager where the machine allows them, else the thread itself
    Auto,
    /// The thread that touches a page
    Sigbus,
    /// Threads of the pager
    Thread,
}

/// The rights that handler threads need.
const WANTED: &str = "be root, or give CAP_SYS_PTRACE, write access to /dev/userfaultfd, or \
    `sysctl vm.unprivileged_userfaultfd=1`";

impl Mode {
    /// Whether the faulting thread serves its own faults. `past_wrappers`: the program makes system
    /// calls that fail in that mode.
    pub fn is_sigbus(self, program: &str, past_wrappers: bool) -> Result<bool, Refusal> {
        match self {
            Mode::Sigbus => Ok(true),
            Mode::Thread | Mode::Auto if is_allowed() => Ok(false),
            Mode::Thread => Err(refusal::denied(format!(
                "--mode thread is not allowed here: {WANTED}, or use --mode sigbus"
            ))),
            Mode::Auto if past_wrappers => Err(refusal::denied(format!(
                "{program} uses io_uring, which takes --mode thread, and that is not allowed here: \
                 {WANTED}"
            ))),
            Mode::Auto => {
                eprintln!(
                    "pando-mem: {program} serves its own faults (sigbus mode); some system calls \
                     may fail with EFAULT. For thread mode {WANTED}"
                );
                Ok(true)
            }
        }
    }
}

/// Whether this process may have a userfaultfd that also handles faults of the kernel.
fn is_allowed() -> bool {
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
    if fd >= 0 {
        unsafe { libc::close(fd) };
        return true;
    }
    OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").is_ok_and(|device| {
        const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa << 8;
        let fd = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&device),
                USERFAULTFD_IOC_NEW,
                libc::O_CLOEXEC,
            )
        };
        fd >= 0 && unsafe { libc::close(fd) } == 0
    })
}
