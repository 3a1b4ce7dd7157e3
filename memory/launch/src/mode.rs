//! The mode of fault handling, and the modes that the machine allows.

use crate::refusal::{self, Refusal};
use clap::ValueEnum;

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
    /// Whether the faulting thread serves its own faults. `allowed`: the machine allows handler
    /// threads. `past_wrappers`: the program makes system calls that fail in that mode.
    pub fn is_sigbus(
        self,
        allowed: bool,
        program: &str,
        past_wrappers: bool,
    ) -> Result<bool, Refusal> {
        match self {
            Mode::Sigbus => Ok(true),
            Mode::Thread | Mode::Auto if allowed => Ok(false),
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
