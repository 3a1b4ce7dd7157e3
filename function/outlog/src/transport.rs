//! The interface of a link, whichever way its messages take.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::orders;

/// A peer that reads nothing for this long is given up.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Carries messages in both directions.
pub trait Transport {
    /// Hands a message over; waits for room. After an error the other side is gone.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Reports whether a message of `bytes` bytes can be sent without waiting.
    fn has_room(&self, bytes: usize) -> bool;

    /// Wakes the other side if it sleeps and has something to read.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends the next message to `into`; returns false if there is none now.
    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool>;

    /// Prepares for a sleep on the descriptor; returns false if a message is already there.
    fn may_sleep(&mut self) -> bool;

    /// Ends a sleep; fails if the other side is gone.
    fn woken(&mut self) -> io::Result<()>;

    /// Returns the descriptor to sleep on.
    fn fd(&self) -> RawFd;

    /// Reports whether a sent message is kept before the other side has read it.
    fn keeps_at_once(&self) -> bool;

    /// Returns where the last received message began, for [`super::link::Shared::written`] of its
    /// sender. Returns `None` without shared memory.
    fn received_at(&self) -> Option<u64>;

    /// Reports whether sent bytes wait for room. [`Transport::flush`] sends them.
    fn unsent(&self) -> bool {
        false
    }

    /// Returns the memory of this process that the link takes, in bytes.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Waits for a message, at most until `deadline`.
    fn receive_by(&mut self, into: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        while !self.receive(into)? {
            let left =
                deadline.checked_duration_since(Instant::now()).ok_or(ErrorKind::TimedOut)?;
            if self.may_sleep() {
                orders::poll(&[self.fd()], left.as_millis() as i32 + 1)?;
            }
            self.woken()?;
        }
        Ok(())
    }
}

/// Reads the bytes that have arrived. Returns `None` if there are none, and 0 at the end. It never
/// waits, and needs no system call that the walls of a log refuse.
pub(super) fn receive(socket: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer has its length.
    let length = unsafe {
        libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
    };
    if length >= 0 {
        return Ok(Some(length as usize));
    }
    match io::Error::last_os_error() {
        e if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        e => Err(e),
    }
}

/// Gives the kernel as many bytes as it takes; returns their number. It never waits.
pub(super) fn send(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the buffer has its length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if sent >= 0 {
        return Ok(sent as usize);
    }
    match io::Error::last_os_error() {
        e if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        e => Err(e),
    }
}
