//! The processes of `pando fn run --durability log`, as their watching process sees them.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use pando_outlog::orders::{Order, Orders};

use super::Failure;

/// Returns a function that makes a failure of an error in a step.
pub fn internal(step: &'static str) -> impl Fn(io::Error) -> Failure {
    move |e| Failure::Internal(format!("{step}: {e}"))
}

/// A process of the watching process, and how to reach it.
pub struct Process {
    pub child: Child,
    pub pidfd: OwnedFd,
    pub orders: Orders,
    /// The last link given to the process; 0 if it needs one.
    pub link: u64,
    /// The memory of that link, if its log is on this host. It keeps the process's writes after its
    /// death.
    pub memory: Option<OwnedFd>,
    pub serving: bool,
}

impl Process {
    fn start(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> io::Result<Process> {
        let (ours, theirs) = Orders::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::from(theirs.into_fd())).stdout(Stdio::null());
        let child = command.spawn()?;
        // SAFETY: plain system call; the child is not reaped yet, so its number is its own.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
        if pidfd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
        Ok(Process { child, pidfd, orders: ours, link: 0, memory: None, serving: false })
    }

    /// Sends an order. Ignores errors: the pidfd reports a dead process.
    pub fn send(&self, text: &str, fds: &[std::os::fd::BorrowedFd]) {
        let _ = self.orders.send(text, fds);
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts a unit and sends it the descriptors to open.
    pub fn unit(
        ports: &[OwnedFd],
        control: &UnixListener,
        page: &OwnedFd,
    ) -> Result<Process, Failure> {
        let arguments = std::env::args_os().skip(1).chain(["--unit".into()]);
        let process = Process::start(arguments).map_err(internal("start a unit"))?;
        let mut fds: Vec<_> = ports.iter().map(AsFd::as_fd).collect();
        fds.extend([control.as_fd(), page.as_fd()]);
        process.send("open", &fds);
        Ok(process)
    }

    /// Starts an output log.
    pub fn log() -> Result<Process, Failure> {
        Process::start(["log".into(), "--inside".into()]).map_err(internal("start the output log"))
    }

    /// Orders a standby to follow a unit.
    pub fn watch(&self, unit: &Process) {
        let memory = unit.memory.as_ref().map(AsFd::as_fd);
        let fds: Vec<_> = [unit.pidfd.as_fd()].into_iter().chain(memory).collect();
        self.send("watch", &fds);
    }

    /// Waits until a unit is in its sandbox; returns the unit's reason if it fails.
    pub fn ready(&mut self) -> Result<(), Failure> {
        match self.orders.receive(true) {
            Ok(Order { text, .. }) if text == "ready" => Ok(()),
            Ok(Order { text, .. }) => {
                let status = self.child.wait().map_err(internal("wait for the unit"))?;
                Err(Failure::from_code(status.code(), text))
            }
            Err(_) => Err(Failure::Internal(format!(
                "the unit ended: {}",
                self.child.wait().map_err(internal("wait for the unit"))?
            ))),
        }
    }
}
