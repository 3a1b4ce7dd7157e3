//! Carries messages between a unit and its log: shared memory within a host, TCP between hosts.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::orders::{self, Order};
use super::ring::{self, Ring};
use super::sealed::Session;
use super::stream::Stream;
pub use super::transport::{PATIENCE, Transport};

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
        order.text.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Opens the descriptors of an order: `log NUMBER` with memory and a socket, or `log NUMBER
    /// SESSION` with a TCP connection.
    pub fn open(order: Order) -> io::Result<Link> {
        let number = Link::number_of(&order);
        let mut fds = order.fds;
        let socket = fds.pop().ok_or(ErrorKind::InvalidInput)?;
        let way: Box<dyn Transport> = match fds.pop() {
            Some(memory) => Box::new(Shared::open(&memory, socket, true)?),
            None => {
                let word = order.text.split(' ').nth(2).and_then(Session::read);
                let session = word.ok_or(ErrorKind::InvalidInput)?;
                Box::new(Stream::of_unit(TcpStream::from(socket), &session)?)
            }
        };
        Ok(Link { way, number })
    }
}

/// Ring sizes to the log and back. The first holds more than any allowed lag: 20 ms of packets of
/// 1,434 bytes at a million a second.
const ROOMS: [usize; 2] = [8 << 20, 2 << 20];
/// The writer wakes the reader at this many unread bytes; fewer wait until the writer is idle.
const LAG_BYTES: u64 = 64 << 10;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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

    /// Returns the sessions of both ends of a talk.
    fn sessions() -> [Session; 2] {
        let [a, b] = ["1", "2"].map(|digit| digit.repeat(64));
        [format!("{a}{b}"), format!("{b}{a}")].map(|word| Session::read(&word).unwrap())
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
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let [one, other] = sessions();
        let mut a = Stream::of_unit(near, &one).unwrap();
        let mut b = Stream::of_unit(far, &other).unwrap();
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        drop(b);
        assert_eq!(
            a.receive_by(&mut Vec::new(), Instant::now() + PATIENCE).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
}
