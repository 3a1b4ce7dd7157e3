//! A device that receives and sends packets, through AF_PACKET or AF_XDP.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::packet::{self, Received, Slot};
use crate::promiscuous;
use crate::socket;
use crate::xdp;

/// The requested kernel interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// AF_XDP on a physical device that supports it, else AF_PACKET.
    #[default]
    Auto,
    /// AF_PACKET, which every device supports.
    Packet,
    /// AF_XDP, or an error.
    Xdp,
}

/// A device of a unit. Its methods are called once per batch, except [`Port::frame`].
pub struct Port {
    way: Way,
    /// The error of AF_XDP, if the port uses AF_PACKET because of it.
    instead: Option<String>,
    /// Makes the device of AF_XDP promiscuous.
    _promiscuous: Option<OwnedFd>,
}

enum Way {
    Packet(packet::Port),
    Xdp(Box<xdp::Port>),
}

macro_rules! either {
    ($port:expr, $name:ident => $result:expr) => {
        match $port {
            Way::Packet($name) => $result,
            Way::Xdp($name) => $result,
        }
    };
}

impl From<packet::Port> for Port {
    fn from(port: packet::Port) -> Port {
        Port { way: Way::Packet(port), instead: None, _promiscuous: None }
    }
}

impl Port {
    /// Opens `device` with room for `frames` packets.
    pub fn open(device: &str, frames: usize, wanted: Wanted) -> io::Result<Port> {
        let xdp = || {
            xdp::Port::open(device, frames).map(|port| Port {
                way: Way::Xdp(Box::new(port)),
                instead: None,
                _promiscuous: None,
            })
        };
        let packet = |instead| Ok(Port { instead, ..packet::Port::open(device, frames)?.into() });
        match wanted {
            Wanted::Xdp => xdp(),
            Wanted::Packet => packet(None),
            Wanted::Auto if !xdp::suits(device)? => packet(None),
            Wanted::Auto => xdp().or_else(|e| packet(Some(e.to_string()))),
        }
    }

    /// Takes over an AF_PACKET ring that another process opened.
    pub fn adopt(socket: OwnedFd, device: &str, frames: usize) -> io::Result<Port> {
        packet::Port::adopt(socket, device, frames).map(Port::from)
    }

    /// Returns another descriptor of the same ring, for another process to adopt.
    pub fn share(&self) -> io::Result<OwnedFd> {
        match &self.way {
            Way::Packet(port) => port.share(),
            Way::Xdp(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "AF_XDP's memory is one process's own",
            )),
        }
    }

    /// Makes the device pass packets for every address, until this port and its shares are closed.
    pub fn pass_all(&mut self) -> io::Result<()> {
        match &self.way {
            // SAFETY: the port keeps its descriptor open.
            Way::Packet(port) => {
                promiscuous::hold(unsafe { BorrowedFd::borrow_raw(port.as_raw_fd()) }, &port.device)
            }
            Way::Xdp(port) => {
                let socket = socket::open()?;
                promiscuous::hold(socket.as_fd(), &port.device)?;
                self._promiscuous = Some(socket);
                Ok(())
            }
        }
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        either!(&self.way, port => &port.device)
    }

    /// Returns the descriptors to poll.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let (packet, xdp) = match &self.way {
            Way::Packet(port) => (Some(port.as_raw_fd()), None),
            Way::Xdp(port) => (None, Some(port.fds())),
        };
        packet.into_iter().chain(xdp.into_iter().flatten())
    }

    /// Appends at most `max` received packets to `into`.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Slot>) {
        either!(&mut self.way, port => port.receive(max, into))
    }

    /// Returns the bytes of a packet that [`Port::receive`] returned and that is not yet released.
    #[inline]
    pub fn frame(&self, slot: &Slot) -> Received<'_> {
        either!(&self.way, port => port.frame(slot))
    }

    /// Releases the oldest `count` packets.
    pub fn release(&mut self, count: usize) {
        either!(&mut self.way, port => port.release(count))
    }

    /// Sends frames and returns how many the kernel took.
    pub fn send(&self, frames: &[&[u8]]) -> usize {
        either!(&self.way, port => port.send(frames))
    }

    /// Reports whether accepted packets need another call to be sent.
    pub fn is_behind(&self) -> bool {
        match &self.way {
            Way::Packet(_) => false,
            Way::Xdp(port) => port.is_behind(),
        }
    }

    /// Returns the number of packets since the last call that found no room, if a received packet
    /// reported a loss.
    pub fn noticed(&mut self) -> u64 {
        either!(&mut self.way, port => port.noticed())
    }

    /// Returns the number of packets since the last call that found no room. Always asks the
    /// kernel.
    pub fn lost(&mut self) -> u64 {
        either!(&mut self.way, port => port.lost())
    }

    /// Returns the number of packets since the last call that were too long. Each was an empty
    /// frame.
    pub fn too_long(&mut self) -> u64 {
        match &mut self.way {
            Way::Packet(port) => port.too_long(),
            Way::Xdp(_) => 0,
        }
    }

    /// Returns the number of packets released so far, by this process and those before it.
    pub fn position(&self) -> u64 {
        either!(&self.way, port => port.position())
    }

    /// Continues at packet `position` of an adopted ring. The packets from `released` up to there
    /// may still need their release.
    pub fn resume(&mut self, released: u64, position: u64) {
        match &mut self.way {
            Way::Packet(port) => port.resume(released, position),
            Way::Xdp(_) => unreachable!("it is never adopted"),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (&self.way, &self.instead) {
            (Way::Packet(port), None) => write!(f, "{}: AF_PACKET", port.device),
            (Way::Packet(port), Some(why)) => {
                write!(f, "{}: AF_PACKET, because with AF_XDP {why}", port.device)
            }
            (Way::Xdp(port), _) => {
                let copied = if port.zero_copy { "zero-copy" } else { "copied by the kernel" };
                let queues = port.queues();
                write!(
                    f,
                    "{}: AF_XDP, {copied}, {queues} queue{}",
                    port.device,
                    if queues == 1 { "" } else { "s" }
                )
            }
        }
    }
}
