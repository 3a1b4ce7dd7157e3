//! Tracks the end of a TCP connection by its flags. A flow is forgotten soon after its connection
//! ends, which frees its leased numbers.

use pando_flow::network;

/// Time to keep the flow of an ended connection, so that retransmitted packets still find it.
pub const CLOSED_NS: u64 = 10_000_000_000;

const TCP: u8 = 6;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Signs of the end so far: a FIN in each direction, a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends(u8);

impl Ends {
    const FORTH: u8 = 1;
    const BACK: u8 = 2;
    const RESET: u8 = 4;

    /// Returns the state as three bits.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Restores the state from the three lowest bits.
    #[inline]
    pub fn from_bits(bits: u8) -> Ends {
        Ends(bits & 7)
    }

    /// Reports whether the connection is over.
    #[inline]
    pub fn closed(self) -> bool {
        self.0 & Ends::RESET != 0 || self.0 & (Ends::FORTH | Ends::BACK) == Ends::FORTH | Ends::BACK
    }

    /// Records a frame of the flow. `reply` marks the direction against the flow's first frame.
    #[inline]
    pub fn note(&mut self, frame: &[u8], reply: bool) {
        let Some(flags) = flags(frame).filter(|flags| flags & (FIN | SYN | RST) != 0) else {
            return;
        };
        if flags & (SYN | ACK) == SYN {
            self.0 = 0; // the same ends start a new connection
        }
        if flags & FIN != 0 {
            self.0 |= if reply { Ends::BACK } else { Ends::FORTH };
        }
        if flags & RST != 0 {
            self.0 |= Ends::RESET;
        }
    }
}

/// Returns the flags of a TCP frame. IPv6 headers must be without extensions.
fn flags(frame: &[u8]) -> Option<u8> {
    let (version, ip) = network(frame)?;
    let (protocol, transport) = match version {
        4 => (frame.get(ip + 9)?, ip + usize::from(frame[ip] & 15) * 4),
        _ => (frame.get(ip + 6)?, ip + 40),
    };
    if *protocol == TCP { frame.get(transport + 13).copied() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(protocol: u8, flags: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol]);
        frame.resize(54, 0);
        frame[34 + 13] = flags;
        frame
    }

    #[test]
    fn a_connection_is_over_with_a_fin_of_each_side_or_a_reset() {
        let after = |packets: &[(u8, bool)]| {
            let mut ends = Ends::default();
            packets.iter().for_each(|&(flags, reply)| ends.note(&frame(TCP, flags), reply));
            ends.closed()
        };
        assert!(!after(&[(SYN, false), (SYN | ACK, true), (ACK, false)]));
        assert!(!after(&[(FIN | ACK, false), (FIN | ACK, false)]), "the other side still sends");
        assert!(after(&[(FIN | ACK, false), (ACK, true), (FIN | ACK, true), (ACK, false)]));
        assert!(after(&[(RST, true)]));
        assert!(!after(&[(RST, true), (SYN, false)]), "it began anew");
        let mut udp = Ends::default();
        udp.note(&frame(17, RST), false);
        assert!(!udp.closed());
    }
}
