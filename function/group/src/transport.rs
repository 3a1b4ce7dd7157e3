//! Carries messages between units: shared memory within a host, UDP between hosts. Either may lose
//! them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use pando_handover::UnitId;

/// Sends and receives messages of the other units of a group.
pub trait Transport {
    /// Sends the encoded messages of one call; returns `false` if they are surely lost.
    fn send(&mut self, to: UnitId, bytes: &[u8]) -> bool;
    /// Sends messages that the receiver needs only with its next packet. A transport that can
    /// avoids waking a sleeping receiver.
    fn send_ahead(&mut self, to: UnitId, bytes: &[u8]) -> bool {
        self.send(to, bytes)
    }
    /// Returns the write position towards a unit, if the transport has one.
    fn written(&self, _to: UnitId) -> Option<u64> {
        None
    }
    /// Reports whether a unit has not read up to the write position `written` yet.
    fn is_unread(&self, _to: UnitId, _written: u64) -> bool {
        false
    }
    /// Appends all received messages and their senders.
    fn receive(&mut self, into: &mut Vec<(UnitId, Vec<u8>)>);
    /// Prepares for sleep; returns `false` if a message has arrived meanwhile.
    fn sleep(&mut self) -> bool;
    /// Ends a sleep; `woken` is true if the descriptor was readable.
    fn awake(&mut self, woken: bool);
    /// Returns a descriptor that is readable when a message arrives during sleep.
    fn fd(&self) -> RawFd;
}

/// Sends messages as datagrams: the sender's number, then the messages.
pub struct Udp {
    unit: UnitId,
    socket: UdpSocket,
    peers: Vec<Option<SocketAddr>>,
    buffer: Vec<u8>,
}

/// The largest payload of UDP over IPv4. One without fragments on Ethernet is smaller.
const DATAGRAM_BYTES_MAX: usize = 65_507;

impl Udp {
    /// Returns the unit's end; `peers` is indexed by unit number.
    pub fn new(unit: UnitId, socket: UdpSocket, peers: Vec<Option<SocketAddr>>) -> io::Result<Udp> {
        socket.set_nonblocking(true)?;
        Ok(Udp { unit, socket, peers, buffer: vec![0; DATAGRAM_BYTES_MAX] })
    }
}

impl Transport for Udp {
    fn send(&mut self, to: UnitId, bytes: &[u8]) -> bool {
        let Some(Some(address)) = self.peers.get(usize::from(to)) else { return false };
        let mut datagram = Vec::with_capacity(bytes.len() + 2);
        datagram.extend(self.unit.to_le_bytes());
        datagram.extend(bytes);
        self.socket.send_to(&datagram, address).is_ok()
    }

    fn receive(&mut self, into: &mut Vec<(UnitId, Vec<u8>)>) {
        loop {
            let datagram = &mut self.buffer;
            match self.socket.recv_from(datagram) {
                // Drop messages from outside the group: a unit is identified by its configured
                // address.
                Ok((length, from)) if length > 2 => {
                    let unit = UnitId::from_le_bytes([datagram[0], datagram[1]]);
                    if self.peers.get(usize::from(unit)) == Some(&Some(from)) {
                        into.push((unit, datagram[2..length].to_vec()));
                    }
                }
                Ok(_) => {}
                // A dead peer answers with ICMP. The socket reports that once; the next call
                // succeeds.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    fn sleep(&mut self) -> bool {
        true // a message makes the socket readable
    }

    fn awake(&mut self, _: bool) {}

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn socket() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    /// Waits for a message of the group.
    fn received(unit: &mut Udp) -> Vec<(UnitId, Vec<u8>)> {
        let (mut came, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while came.is_empty() && Instant::now() < deadline {
            let mut polled = libc::pollfd { fd: unit.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry.
            unsafe { libc::poll(&mut polled, 1, 1000) };
            unit.receive(&mut came);
        }
        came
    }

    /// A datagram counts if it comes from the address of the unit that it names. Half a header, an
    /// unknown number and another address are dropped, and block nothing behind them.
    #[test]
    fn messages_of_strangers_are_dropped() {
        let [(one, one_at), (other, other_at), (stranger, _)] = [(); 3].map(|()| socket());
        let peers = vec![Some(one_at), Some(other_at), None];
        let mut one = Udp::new(0, one, peers.clone()).unwrap();
        let mut other = Udp::new(1, other, peers).unwrap();
        for bytes in [&[0, 0, 1][..], &[0, 0], &[0], &[], &[1, 0, 1], &[2, 0, 1], &[0xff; 9]] {
            stranger.send_to(bytes, other_at).unwrap();
        }
        assert!(one.send(1, b"from one") && !one.send(2, b"to none") && !one.send(3, b"to none"));
        assert_eq!(received(&mut other), [(0, b"from one".to_vec())]);
        assert!(other.send(0, &[7; 60_000]));
        assert_eq!(received(&mut one), [(1, vec![7; 60_000])]);
        assert!(!one.send(1, &[7; DATAGRAM_BYTES_MAX]), "no datagram is so long");
    }
}
