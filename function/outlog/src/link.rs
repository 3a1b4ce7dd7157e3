//! Carries messages between a unit and its log: shared memory within a host, TCP between hosts.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::orders::{self, Order};
use super::ring::{self, Ring};

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

    /// Returns where the last received message began, for [`Shared::written`] of its sender.
    /// Returns `None` without shared memory.
    fn received_at(&self) -> Option<u64>;

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

/// A connection to the log from the watching process, with the number that this process chose.
pub struct Link {
    /// The connection.
    pub way: Box<dyn Transport>,
    /// Its number.
    pub number: u64,
}

impl Link {
    /// Returns the number of the link in an order; 0 if the order has no link.
    pub fn number_of(order: &Order) -> u64 {
        order.text.strip_prefix("log ").and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Opens the descriptors of the order `log NUMBER`: memory and a socket, or a TCP connection.
    pub fn open(order: Order) -> io::Result<Link> {
        let number = Link::number_of(&order);
        let mut fds = order.fds;
        let socket = fds.pop().ok_or(ErrorKind::InvalidInput)?;
        let way: Box<dyn Transport> = match fds.pop() {
            Some(memory) => Box::new(Shared::open(&memory, socket, true)?),
            None => Box::new(Stream::new(TcpStream::from(socket))?),
        };
        Ok(Link { way, number })
    }
}

/// Ring sizes to the log and back. The first holds more than any allowed lag: 20 ms of packets of
/// 1,434 bytes at a million a second.
const ROOMS: [usize; 2] = [8 << 20, 2 << 20];
/// The writer wakes the reader at this many unread bytes; fewer wait until the writer is idle.
const LAG_BYTES: u64 = 64 << 10;
/// A peer that reads nothing for this long is given up.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Two rings and a socket. The socket wakes a sleeping peer and ends when its other end closes.
pub struct Shared {
    outward: Ring,
    inward: Ring,
    socket: OwnedFd,
}

impl Shared {
    /// Makes memory and a socket for each side: (memory, the unit's socket, the log's).
    pub fn make() -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
        let [unit, log] = orders::socketpair(libc::SOCK_STREAM)?;
        Ok((ring::memory(&ROOMS)?, unit, log))
    }

    /// Returns the ring that the unit writes, for its standby to read after the unit's death.
    pub fn written(memory: &OwnedFd) -> io::Result<Ring> {
        Ring::view(memory.as_fd(), &ROOMS, 0)
    }

    /// Opens the side of the unit, or that of the log.
    pub fn open(memory: &OwnedFd, socket: OwnedFd, unit: bool) -> io::Result<Shared> {
        let map = |index| Ring::map(memory.as_fd(), &ROOMS, index);
        Ok(Shared { outward: map(usize::from(!unit))?, inward: map(usize::from(unit))?, socket })
    }
}

impl Transport for Shared {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let (mut seen, mut since) = (self.outward.progress(), Instant::now());
        while !self.outward.push(message) {
            self.flush()?;
            // The ring is full: the reader is behind. Check each millisecond and give up if it
            // stalls.
            if orders::poll(&[self.socket.as_raw_fd()], 1)?[0] {
                self.woken()?;
            }
            if self.outward.progress() != seen {
                (seen, since) = (self.outward.progress(), Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        if self.outward.fill() >= LAG_BYTES { self.flush() } else { Ok(()) }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.outward.has_room(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        let sleeping = self.outward.sleeping();
        if self.outward.fill() == 0 || sleeping.swap(0, std::sync::atomic::Ordering::SeqCst) == 0 {
            return Ok(());
        }
        // SAFETY: one byte of a constant. A full socket has woken the reader already.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                [1u8].as_ptr().cast(),
                1,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        match io::Error::last_os_error() {
            e if sent < 0 && e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        self.inward.pop(into).map_err(io::Error::other)
    }

    fn may_sleep(&mut self) -> bool {
        self.inward.sleeping().store(1, std::sync::atomic::Ordering::SeqCst);
        self.inward.fill() == 0
    }

    fn woken(&mut self) -> io::Result<()> {
        self.inward.sleeping().store(0, std::sync::atomic::Ordering::SeqCst);
        let mut bytes = [0u8; 64];
        // SAFETY: the buffer has its length.
        match unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
            )
        } {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            1.. => Ok(()),
            _ => match io::Error::last_os_error() {
                e if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
                e => Err(e),
            },
        }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn keeps_at_once(&self) -> bool {
        true
    }

    fn received_at(&self) -> Option<u64> {
        Some(self.inward.popped_at())
    }
}

/// The longest message on a stream.
const STREAM_MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A TCP connection. Each message follows its length (4 bytes, little endian).
pub struct Stream {
    socket: TcpStream,
    arrived: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Stream {
    /// Wraps a connection.
    pub fn new(socket: TcpStream) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Stream { socket, arrived: Vec::new(), taken: 0, ended: false })
    }

    fn fill(&mut self) -> io::Result<bool> {
        if self.taken > 0 {
            self.arrived.drain(..self.taken);
            self.taken = 0;
        }
        let mut bytes = [0u8; 64 << 10];
        // SAFETY: the buffer has its length.
        match unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
            )
        } {
            0 => {
                self.ended = true;
                Ok(false)
            }
            length @ 1.. => {
                self.arrived.extend_from_slice(&bytes[..length as usize]);
                Ok(true)
            }
            _ => match io::Error::last_os_error() {
                e if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    Ok(false)
                }
                e => Err(e),
            },
        }
    }
}

impl Transport for Stream {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        assert!(message.len() <= STREAM_MESSAGE_BYTES_MAX);
        let mut framed = Vec::with_capacity(4 + message.len());
        framed.extend_from_slice(&(message.len() as u32).to_le_bytes());
        framed.extend_from_slice(message);
        io::Write::write_all(&mut self.socket, &framed)
    }

    /// The kernel reports room when a third of its buffer is free. Any message to a standby is
    /// smaller.
    fn has_room(&self, _: usize) -> bool {
        let mut polled =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid descriptor to look at.
        unsafe { libc::poll(&mut polled, 1, 0) == 1 }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let there = &self.arrived[self.taken..];
            if let Some((length, rest)) = there.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > STREAM_MESSAGE_BYTES_MAX {
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
        true
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(a: &mut dyn Transport, b: &mut dyn Transport) {
        let soon = || Instant::now() + Duration::from_secs(5);
        for n in 0..1000usize {
            let message = vec![n as u8; n * 7 % 5000];
            a.send(&message).unwrap();
            a.flush().unwrap();
            let mut got = Vec::new();
            b.receive_by(&mut got, soon()).unwrap();
            assert_eq!(got, message);
        }
    }

    #[test]
    fn messages_arrive_both_ways_by_memory_and_by_tcp() {
        let (memory, unit, log) = Shared::make().unwrap();
        let (mut a, mut b) = (
            Shared::open(&memory, unit, true).unwrap(),
            Shared::open(&memory, log, false).unwrap(),
        );
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        drop(b);
        assert_eq!(
            a.receive_by(&mut Vec::new(), Instant::now() + PATIENCE).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a =
            Stream::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let mut b = Stream::new(listener.accept().unwrap().0).unwrap();
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        drop(b);
        assert_eq!(
            a.receive_by(&mut Vec::new(), Instant::now() + PATIENCE).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
}
