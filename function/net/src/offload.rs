//! Work that a sender's kernel leaves to a device: the checksum of a packet, and the cut of a large
//! packet into pieces.
//!
//! Linux leaves both undone between the two ends of a veth. A packet of a local program then has
//! only the sum of its pseudo header, and a TCP packet may have 64 KiB. A virtio header from the
//! kernel lists the remaining work. A function gets one large packet with a complete checksum.
//! [`cut`] splits the packet when it leaves.

use std::ops::Range;

use pando_flow::checksum;
use pando_flow::network;

/// The kernel's `struct virtio_net_hdr`. It precedes each packet of a socket that asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Bytes of payload in each piece of a large packet. 0 if the packet needs no cut.
    pub segment: u16,
    /// Offset of the first byte to sum, and offset of the checksum from there. `None` if the
    /// checksum is complete.
    sum: Option<(u16, u16)>,
}

const NEEDS_SUM: u8 = 1;

impl Offload {
    /// Length of the header.
    pub const LENGTH_BYTES: usize = 10;
    /// The header of a packet that needs no more work.
    pub const NONE: [u8; Offload::LENGTH_BYTES] = [0; Offload::LENGTH_BYTES];

    /// Reads the header. Its numbers are in native byte order.
    pub fn read(bytes: [u8; Offload::LENGTH_BYTES]) -> Offload {
        let [flags, kind, _, _, size, size_high, start, start_high, field, field_high] = bytes;
        let segment = if kind == 0 { 0 } else { u16::from_ne_bytes([size, size_high]) };
        let sum =
            (u16::from_ne_bytes([start, start_high]), u16::from_ne_bytes([field, field_high]));
        Offload { segment, sum: (flags & NEEDS_SUM != 0).then_some(sum) }
    }

    /// Completes the checksum of the packet if the sender left that to the device.
    pub fn complete(&self, frame: &mut [u8]) {
        if let Some((start, field)) = self.sum {
            checksum::complete(frame, start.into(), field.into());
        }
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Size of IPv4's header without options.
const IPV4_BYTES: usize = 20;
/// TCP flags that only the last piece has, and the flag that only the first piece has.
const FIN_PUSH: u8 = 0x09;
const REDUCED: u8 = 0x80;
/// Maximum IPv6 extension headers to skip.
const EXTENSIONS_MAX: usize = 8;

/// Offsets of the parts of a TCP or UDP packet.
struct Parts {
    version: u8,
    protocol: u8,
    ip: usize,
    transport: usize,
    payload: Range<usize>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl Parts {
    fn of(frame: &[u8]) -> Option<Parts> {
        let (version, ip) = network(frame)?;
        let (protocol, transport, end) = if version == 4 {
            (
                *frame.get(ip + 9)?,
                ip + usize::from(frame[ip] & 15) * 4,
                ip + usize::from(be16(frame, ip + 2)?),
            )
        } else {
            let (mut next, mut at) = (*frame.get(ip + 6)?, ip + 40);
            for _ in 0..EXTENSIONS_MAX {
                if matches!(next, 0 | 43 | 60) {
                    next = *frame.get(at)?;
                    at += 8 + 8 * usize::from(*frame.get(at + 1)?);
                }
            }
            (next, at, ip + 40 + usize::from(be16(frame, ip + 4)?))
        };
        let header = match protocol {
            TCP => usize::from(*frame.get(transport + 12)? >> 4) * 4,
            UDP => 8,
            _ => return None,
        };
        let least = if protocol == TCP { 20 } else { 8 };
        let payload = transport + header..end;
        // A function may leave any header, even one that is shorter than IP's.
        let is_ip = transport >= ip + IPV4_BYTES;
        let fits = payload.start <= end && end <= frame.len();
        (is_ip && header >= least && fits).then_some(Parts {
            version,
            protocol,
            ip,
            transport,
            payload,
        })
    }

    /// Returns piece number `n` of `frame`, with the part `piece` of its payload.
    fn piece(&self, frame: &[u8], piece: Range<usize>, n: u16) -> Vec<u8> {
        let mut cut = Vec::with_capacity(self.payload.start + piece.len());
        cut.extend_from_slice(&frame[..self.payload.start]);
        cut.extend_from_slice(&frame[piece.clone()]);
        let transport = self.transport;
        if self.protocol == TCP {
            let before = (piece.start - self.payload.start) as u32;
            let sequence = u32::from_be_bytes(
                cut[transport + 4..transport + 8].try_into().expect("it has four bytes"),
            );
            cut[transport + 4..transport + 8]
                .copy_from_slice(&sequence.wrapping_add(before).to_be_bytes());
            let first = if n > 0 { REDUCED } else { 0 };
            let last = if piece.end < self.payload.end { FIN_PUSH } else { 0 };
            cut[transport + 13] &= !(first | last);
        } else {
            let length = (cut.len() - transport) as u16;
            cut[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
        }
        self.lengthen(&mut cut, n);
        cut
    }

    /// Writes a piece's length, its number and its checksums.
    fn lengthen(&self, cut: &mut [u8], n: u16) {
        let (ip, transport, total) = (self.ip, self.transport, cut.len());
        let mut pseudo = u64::from(self.protocol) + (total - transport) as u64;
        if self.version == 4 {
            let number = u16::from_be_bytes([cut[ip + 4], cut[ip + 5]]).wrapping_add(n);
            cut[ip + 2..ip + 4].copy_from_slice(&((total - ip) as u16).to_be_bytes());
            cut[ip + 4..ip + 6].copy_from_slice(&number.to_be_bytes());
            checksum::fill_header(&mut cut[ip..transport]);
            pseudo += checksum::sum_of(&cut[ip + 12..ip + 20]);
        } else {
            cut[ip + 4..ip + 6].copy_from_slice(&((total - ip - 40) as u16).to_be_bytes());
            pseudo += checksum::sum_of(&cut[ip + 8..ip + 40]);
        }
        let field = if self.protocol == TCP { 16 } else { 6 };
        cut[transport + field..transport + field + 2]
            .copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
        checksum::complete(cut, transport, field);
    }
}

/// Cuts a TCP or UDP packet into pieces of `segment` bytes of payload, as a device would. Returns
/// `None` if the packet is short enough or of another protocol.
#[inline]
pub fn cut(frame: &[u8], segment: u16) -> Option<Vec<Vec<u8>>> {
    let segment = usize::from(segment);
    if segment == 0 || frame.len() <= segment {
        return None;
    }
    let parts = Parts::of(frame)?;
    let whole = parts.payload.clone();
    if whole.len() <= segment {
        return None;
    }
    let starts = whole.clone().step_by(segment);
    Some(
        starts
            .zip(0..)
            .map(|(start, n)| parts.piece(frame, start..whole.end.min(start + segment), n))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: usize = 5000;

    /// Returns a packet with a correct checksum and `tags` in front of its EtherType.
    fn packet(protocol: u8, v6: bool, tags: &[u8]) -> Vec<u8> {
        let header: Vec<u8> = match protocol {
            TCP => vec![4, 0, 0, 80, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0],
            _ => [&[4, 0, 0, 80][..], &(8 + PAYLOAD as u16).to_be_bytes(), &[0, 0]].concat(),
        };
        let length = (header.len() + PAYLOAD) as u16;
        let ip = match v6 {
            false => [
                &[0x45, 0][..],
                &(20 + length).to_be_bytes(),
                &[0xff, 0xff, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9],
            ]
            .concat(),
            true => {
                [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, 64], &[7; 16], &[9; 16]]
                    .concat()
            }
        };
        let ethertype: &[u8] = if v6 { &[0x86, 0xdd] } else { &[8, 0] };
        let payload: Vec<u8> = (0..PAYLOAD).map(|n| (n * 7) as u8).collect();
        [&[2; 12], tags, ethertype, &ip, &header, &payload].concat()
    }

    /// Returns the sum of the pseudo header, the transport header and the payload. It is all ones
    /// for a good packet.
    fn sum(frame: &[u8], parts: &Parts) -> u16 {
        let addresses = if parts.version == 4 {
            parts.ip + 12..parts.ip + 20
        } else {
            parts.ip + 8..parts.ip + 40
        };
        let length = (parts.payload.end - parts.transport) as u64;
        let pseudo = checksum::sum_of(&frame[addresses]) + u64::from(parts.protocol) + length;
        checksum::fold(pseudo + checksum::sum_of(&frame[parts.transport..parts.payload.end]))
    }

    #[test]
    fn pieces_are_the_packet_in_parts_with_right_sums() {
        for (protocol, v6, tags) in [
            (TCP, false, &[][..]),
            (TCP, true, &[]),
            (UDP, false, &[]),
            (UDP, true, &[]),
            (TCP, false, &[0x81, 0, 0, 7]),
        ] {
            let whole = packet(protocol, v6, tags);
            let pieces = cut(&whole, 1448).unwrap();
            assert_eq!(pieces.len(), PAYLOAD.div_ceil(1448));
            let mut payload = Vec::new();
            for (n, piece) in pieces.iter().enumerate() {
                let parts = Parts::of(piece).unwrap();
                assert_eq!(parts.payload.end, piece.len(), "its length");
                assert_eq!(sum(piece, &parts), 0xffff, "its checksum");
                let last = n == pieces.len() - 1;
                if protocol == TCP {
                    let sequence = u32::from_be_bytes(
                        piece[parts.transport + 4..parts.transport + 8].try_into().unwrap(),
                    );
                    assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(payload.len() as u32));
                    assert_eq!(
                        piece[parts.transport + 13],
                        0x10 | if n == 0 { REDUCED } else { 0 } | if last { FIN_PUSH } else { 0 }
                    );
                } else {
                    assert_eq!(
                        be16(piece, parts.transport + 4),
                        Some((piece.len() - parts.transport) as u16)
                    );
                }
                if !v6 {
                    assert_eq!(
                        checksum::fold(checksum::sum_of(&piece[parts.ip..parts.transport])),
                        0xffff,
                        "the header's"
                    );
                    assert_eq!(be16(piece, parts.ip + 4), Some(0xffffu16.wrapping_add(n as u16)));
                }
                payload.extend_from_slice(&piece[parts.payload]);
            }
            assert_eq!(payload, whole[whole.len() - PAYLOAD..]);
        }
    }

    #[test]
    fn what_is_short_or_of_no_stream_stays_whole() {
        assert_eq!(cut(&packet(TCP, false, &[]), 0), None);
        assert_eq!(cut(&packet(TCP, false, &[]), PAYLOAD as u16), None);
        assert_eq!(cut(&packet(1, false, &[]), 1448), None);
        let mut long = packet(TCP, false, &[]);
        long[16] = 0xff; // the header claims more bytes than the frame has
        assert_eq!(cut(&long, 1448), None);
    }

    #[test]
    fn the_header_says_what_is_left_to_do() {
        let size = 1448u16.to_ne_bytes();
        let (start, field) = (34u16.to_ne_bytes(), 16u16.to_ne_bytes());
        let header =
            [NEEDS_SUM, 1, 54, 0, size[0], size[1], start[0], start[1], field[0], field[1]];
        assert_eq!(Offload::read(header), Offload { segment: 1448, sum: Some((34, 16)) });
        assert_eq!(Offload::read(Offload::NONE), Offload::default());
    }
}
