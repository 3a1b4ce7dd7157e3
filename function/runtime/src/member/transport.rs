//! How messages get from unit to unit: shared memory within a host, UDP between hosts. Either may lose them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use pando_protocol::UnitId;

/// A way to the other units of a group.
pub trait Transport {
    /// Sends the encoded messages of one call; `false`: they are lost, and known to be.
    fn send(&mut self, to: UnitId, bytes: &[u8]) -> bool;
    /// Sends what its receiver has to know by its next packet: where it can be, one that sleeps is not woken.
    fn send_ahead(&mut self, to: UnitId, bytes: &[u8]) -> bool {
        self.send(to, bytes)
    }
    /// How far messages to a unit are written, where that can be told.
    fn written(&self, _to: UnitId) -> Option<u64> {
        None
    }
    /// Whether a unit has not read yet what was written up to there.
    fn is_unread(&self, _to: UnitId, _written: u64) -> bool {
        false
    }
    /// All that came, and from whom.
    fn receive(&mut self, into: &mut Vec<(UnitId, Vec<u8>)>);
    /// The unit is about to sleep; `false`: something has come meanwhile.
    fn sleep(&mut self) -> bool;
    /// It is awake again; `woken`: its descriptor was readable.
    fn awake(&mut self, woken: bool);
    /// Readable when something has come while the unit sleeps.
    fn fd(&self) -> RawFd;
}

/// Messages as datagrams: the sender's number, then the messages.
pub struct Udp {
    unit: UnitId,
    socket: UdpSocket,
    peers: Vec<Option<SocketAddr>>,
    buffer: Vec<u8>,
}

/// What a datagram carries over IPv4 without being split by Ethernet's MTU is less; this is what it can carry at all.
const DATAGRAM_BYTES_MAX: usize = 65_507;

impl Udp {
    /// The unit's end; `peers` by their numbers.
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
                // Who is not of the group has no say: a unit is the address that it was said to have.
                Ok((length, from)) if length > 2 => {
                    let unit = UnitId::from_le_bytes([datagram[0], datagram[1]]);
                    if self.peers.get(usize::from(unit)) == Some(&Some(from)) {
                        into.push((unit, datagram[2..length].to_vec()));
                    }
                }
                Ok(_) => {}
                // A peer that is gone answers with ICMP, which the socket reports once: the next call goes on.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    fn sleep(&mut self) -> bool {
        true // what comes meanwhile makes the socket readable
    }

    fn awake(&mut self, _: bool) {}

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
