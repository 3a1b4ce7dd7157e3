//! A link between hosts: a TCP connection with sealed records. Within them, each message follows
//! its length (4 bytes, little endian).

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::sealed::{Seal, Session};
use super::transport::{self, PATIENCE, Transport};

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// A log queues this much for a peer that reads slowly. A peer with more is let go.
const QUEUE_BYTES_MAX: usize = 64 << 10;
/// The kernel's buffer for the messages of a log to one peer.
const LOG_BUFFER_BYTES: i32 = 128 << 10;
/// A connection without a sign of the other host for this long is over.
const SILENCE: Duration = Duration::from_secs(20);

/// The connection.
pub struct Stream {
    socket: TcpStream,
    seal: Seal,
    /// Bytes as received; a part of a record.
    sealed: Vec<u8>,
    arrived: Vec<u8>,
    taken: usize,
    /// Bytes that the kernel has not taken.
    queue: Vec<u8>,
    /// A unit waits for room. A log never does, or one peer would stall all others.
    waits: bool,
    ended: bool,
}

impl Stream {
    /// Returns the unit's end of a connection.
    pub fn of_unit(socket: TcpStream, session: &Session) -> io::Result<Stream> {
        Stream::new(socket, session, true)
    }

    /// Returns the log's end of a connection.
    pub fn of_log(socket: TcpStream, session: &Session) -> io::Result<Stream> {
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, LOG_BUFFER_BYTES)?;
        Stream::new(socket, session, false)
    }

    fn new(socket: TcpStream, session: &Session, waits: bool) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        watch(&socket)?;
        let (sealed, arrived, queue) = (Vec::new(), Vec::new(), Vec::new());
        let seal = Seal::new(session);
        Ok(Stream { socket, seal, sealed, arrived, taken: 0, queue, waits, ended: false })
    }

    /// Reads once from the socket. Returns whether bytes came.
    fn fill(&mut self) -> io::Result<bool> {
        self.arrived.drain(..std::mem::take(&mut self.taken));
        let mut bytes = [0u8; 64 << 10];
        let Some(length) = transport::receive(&self.socket, &mut bytes)? else { return Ok(false) };
        self.ended = length == 0;
        self.sealed.extend_from_slice(&bytes[..length]);
        let mut at = 0;
        while let Some(bytes) = self.seal.take(&self.sealed[at..], &mut self.arrived)? {
            at += bytes;
        }
        self.sealed.drain(..at);
        Ok(length > 0)
    }

    /// Gives the kernel as much of the queue as it takes. Returns whether it took any.
    fn push(&mut self) -> io::Result<bool> {
        if self.queue.is_empty() {
            return Ok(false);
        }
        let sent = transport::send(&self.socket, &self.queue)?;
        self.queue.drain(..sent);
        Ok(sent > 0)
    }

    /// Waits until the kernel has the queue. A peer that takes nothing for a while is given up.
    fn push_all(&mut self) -> io::Result<()> {
        let mut since = Instant::now();
        while !self.queue.is_empty() {
            if self.push()? {
                since = Instant::now();
                continue;
            }
            let left = PATIENCE.checked_sub(since.elapsed()).ok_or(ErrorKind::TimedOut)?;
            wait_for_room(&self.socket, left.as_millis() as i32 + 1);
        }
        Ok(())
    }
}

/// Lets the kernel find out that the other host is gone.
fn watch(socket: &TcpStream) -> io::Result<()> {
    let silence = SILENCE.as_secs() as i32;
    set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, silence / 2)?;
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, silence / 4)?;
    set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 2)?;
    set(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence * 1000)
}

/// Sets an option of a socket that takes an int.
fn set(socket: &TcpStream, level: i32, option: i32, value: i32) -> io::Result<()> {
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the option takes an int, which lives during the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), bytes)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until the socket takes bytes; returns whether it does.
fn wait_for_room(socket: &TcpStream, timeout_ms: i32) -> bool {
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid descriptor to look at.
    unsafe { libc::poll(&mut polled, 1, timeout_ms) == 1 }
}

impl Transport for Stream {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        if self.queue.len() > QUEUE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::TimedOut, "it does not read its messages"));
        }
        let mut framed = Vec::with_capacity(4 + message.len());
        framed.extend_from_slice(&(message.len() as u32).to_le_bytes());
        framed.extend_from_slice(message);
        self.seal.put(&framed, &mut self.queue);
        if self.waits { self.push_all() } else { self.push().map(drop) }
    }

    /// The kernel reports room when a third of its buffer is free. Any message to a standby is
    /// smaller.
    fn has_room(&self, _: usize) -> bool {
        self.queue.is_empty() && wait_for_room(&self.socket, 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push().map(drop)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let there = &self.arrived[self.taken..];
            if let Some((length, rest)) = there.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MESSAGE_BYTES_MAX {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        format!("a message of {length} bytes: is that a unit's log?"),
                    ));
                }
                if let Some(message) = rest.get(..length) {
                    into.extend_from_slice(message);
                    self.taken += 4 + length;
                    return Ok(true);
                }
            }
            if self.ended {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if !self.fill()? && !self.ended {
                return Ok(false);
            }
        }
    }

    fn may_sleep(&mut self) -> bool {
        let there = &self.arrived[self.taken..];
        there
            .split_first_chunk::<4>()
            .is_none_or(|(length, rest)| rest.len() < u32::from_le_bytes(*length) as usize)
    }

    fn woken(&mut self) -> io::Result<()> {
        if self.ended { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn keeps_at_once(&self) -> bool {
        false
    }

    fn received_at(&self) -> Option<u64> {
        None
    }

    fn unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    fn held_bytes(&self) -> usize {
        self.sealed.capacity() + self.arrived.capacity() + self.queue.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of a log for one peer has a bound. Its messages still arrive.
    #[test]
    fn a_log_never_waits_for_a_peer_that_does_not_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let [a, b] = ["1", "2"].map(|digit| digit.repeat(64));
        let word = |word: String| Session::read(&word).unwrap();
        let mut log = Stream::of_log(far, &word(format!("{a}{b}"))).unwrap();
        let mut unit = Stream::of_unit(near, &word(format!("{b}{a}"))).unwrap();
        let mut sent = 0usize;
        let refused = loop {
            let full = log.queue.len() > QUEUE_BYTES_MAX;
            match log.send(&vec![sent as u8; 10_000]) {
                Ok(()) => sent += 1,
                Err(e) => break (e.kind(), full),
            }
            assert!(sent < 100_000, "the kernel's buffers have an end");
        };
        assert_eq!(refused, (ErrorKind::TimedOut, true));
        assert!(log.unsent() && !log.has_room(1));
        assert!(log.held_bytes() < 4 * QUEUE_BYTES_MAX);
        let mut message = Vec::new();
        for n in 0..sent {
            message.clear();
            let until = Instant::now() + Duration::from_secs(20);
            while !unit.receive(&mut message).unwrap() {
                log.flush().unwrap();
                assert!(Instant::now() < until, "message {n} of {sent} is missing");
            }
            assert_eq!(message, vec![n as u8; 10_000]);
        }
        assert!(!log.unsent());
    }
}
