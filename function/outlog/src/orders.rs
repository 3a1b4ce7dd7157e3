//! Carries orders from the watching process to a unit and its log: short messages with open
//! descriptors. The sandboxes of unit and log do not let them open files or sockets themselves.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors in one message.
pub const FDS_MAX: usize = 5;
const MESSAGE_BYTES_MAX: usize = 4096;

/// One end of the connection.
pub struct Orders(OwnedFd);

/// A message.
#[derive(Debug)]
pub struct Order {
    /// The text.
    pub text: String,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
}

/// The space of a control message with [`FDS_MAX`] descriptors, aligned as the kernel requires.
#[repr(align(8))]
struct Control([u8; 64]);

impl Orders {
    /// Makes both ends.
    pub fn pair() -> io::Result<(Orders, Orders)> {
        let [a, b] = socketpair(libc::SOCK_SEQPACKET)?;
        Ok((Orders(a), Orders(b)))
    }

    /// Returns the end that this process received as its standard input.
    pub fn inherited() -> Orders {
        // SAFETY: descriptor 0 is open, and nothing else in this process uses it.
        Orders(unsafe { OwnedFd::from_raw_fd(0) })
    }

    /// Returns the descriptor, for a child's standard input.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends a message.
    pub fn send(&self, text: &str, fds: &[BorrowedFd]) -> io::Result<()> {
        assert!(fds.len() <= FDS_MAX && (1..=MESSAGE_BYTES_MAX).contains(&text.len()));
        if fds.is_empty() {
            return self.say(text); // the walls allow no other call
        }
        let mut control = Control([0; 64]);
        let mut vector =
            libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
        // SAFETY: a zero header is valid; its lengths match its buffers, which outlive the call.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut vector;
            message.msg_iovlen = 1;
            let bytes = size_of_val(fds) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
            std::ptr::copy_nonoverlapping(raw.as_ptr(), libc::CMSG_DATA(header).cast(), raw.len());
            libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn say(&self, text: &str) -> io::Result<()> {
        // SAFETY: text lives during the call.
        let sent = unsafe {
            libc::send(self.0.as_raw_fd(), text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the next message. With `wait` false, fails with `WouldBlock` if there is none. Fails
    /// with `UnexpectedEof` if the other end is gone.
    pub fn receive(&self, wait: bool) -> io::Result<Order> {
        let mut control = Control([0; 64]);
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut fds = Vec::new();
        // SAFETY: as in send; descriptors in the control message are new and ours.
        let length = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut vector;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len();
            let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
            let length = libc::recvmsg(self.0.as_raw_fd(), &mut message, flags);
            let header = libc::CMSG_FIRSTHDR(&message);
            if length > 0 && !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data: *const RawFd = libc::CMSG_DATA(header).cast();
                fds.extend((0..count).map(|n| OwnedFd::from_raw_fd(data.add(n).read_unaligned())));
            }
            length
        };
        match length {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => Ok(Order {
                text: String::from_utf8_lossy(&bytes[..length as usize]).into_owned(),
                fds,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsRawFd for Orders {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Makes both ends of a socket of this kind.
pub fn socketpair(kind: libc::c_int) -> io::Result<[OwnedFd; 2]> {
    let mut pair = [0; 2];
    // SAFETY: pair takes two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) }
        < 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made.
    Ok(pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Waits until one of `fds` is readable or gone, at most `timeout_ms` (-1: forever). Returns a flag
/// per descriptor.
pub fn poll(fds: &[RawFd], timeout_ms: i32) -> io::Result<Vec<bool>> {
    poll_with_room(&fds.iter().map(|&fd| (fd, false)).collect::<Vec<_>>(), timeout_ms)
}

/// Waits as [`poll`] does. A descriptor with true also ends the wait when it has room for bytes.
pub fn poll_with_room(fds: &[(RawFd, bool)], timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|&(fd, room)| {
            let events = libc::POLLIN | if room { libc::POLLOUT } else { 0 };
            libc::pollfd { fd, events, revents: 0 }
        })
        .collect();
    // SAFETY: polled is a valid array.
    let result =
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    match result {
        -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
            Err(io::Error::last_os_error())
        }
        -1 => Ok(vec![false; fds.len()]),
        _ => Ok(polled.iter().map(|p| p.revents != 0).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_travel_and_the_end_is_seen() {
        let (a, b) = Orders::pair().unwrap();
        let [x, y] = socketpair(libc::SOCK_STREAM).unwrap();
        a.send("take these", &[x.as_fd(), y.as_fd()]).unwrap();
        let order = b.receive(true).unwrap();
        assert_eq!((order.text.as_str(), order.fds.len()), ("take these", 2));
        assert_eq!(b.receive(false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(b.receive(true).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
