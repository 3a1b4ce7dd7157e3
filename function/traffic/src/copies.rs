//! Copies of a capture, each with its own flows. Every copy has its own addresses, and the
//! checksums follow.
//!
//! Checksums are updated by the difference (RFC 1624). A right checksum stays right and a wrong one
//! stays wrong, even if the packet was captured only in part.

use std::collections::HashSet;

/// Copies of a capture. Each copy XORs its own mask onto the last four bytes of every address.
pub struct Copies {
    masks: Vec<u32>,
}

/// Offsets in an IP packet within a frame.
struct Parts {
    source: usize,
    address_bytes: usize,
    /// Checksum of the IPv4 header.
    header_sum: Option<usize>,
    /// Checksum of the payload if it covers the addresses. The flag marks UDP, where zero means no
    /// checksum.
    payload_sum: Option<(usize, bool)>,
}

impl Copies {
    /// Returns `count` copies of `frames`. Copy 0 is the capture itself. Fails if the copies would
    /// share addresses because there are too many.
    pub fn new<'a>(count: u32, frames: impl Iterator<Item = &'a [u8]>) -> Result<Copies, String> {
        let own: HashSet<u32> = frames.filter_map(addresses).flatten().collect();
        let mut taken = own.clone();
        let mut masks = vec![0];
        // Try masks of 16 bits first, so that one network stays together. Then try masks of 24
        // bits.
        let within16 = (1..1u32 << 16).map(|n| n.wrapping_mul(0x9e37) & 0xffff);
        let within24 = (1..1u32 << 24).map(|n| n.wrapping_mul(0x9e_3779) & 0xff_ffff);
        let mut candidates = within16.chain(within24);
        while masks.len() < count as usize {
            let free = |mask: &u32| own.iter().all(|a| !taken.contains(&(a ^ mask)));
            let mask = candidates.find(free).ok_or_else(|| {
                format!(
                    "{count} copies of {} addresses do not fit beside each other: \
                     give fewer --copies",
                    own.len()
                )
            })?;
            taken.extend(own.iter().map(|a| a ^ mask));
            masks.push(mask);
        }
        Ok(Copies { masks })
    }

    /// Turns a captured frame into the frame of a copy. Returns whether the copy has this frame:
    /// only copy 0 has frames other than IP.
    pub fn rewrite(&self, copy: usize, frame: &mut [u8]) -> bool {
        let mask = self.masks[copy];
        if mask == 0 {
            return true;
        }
        let Some(parts) = parts(frame) else { return false };
        for end in 0..2 {
            let at = parts.source + (end + 1) * parts.address_bytes - 4;
            for word in [at, at + 2] {
                let old = u16::from_be_bytes([frame[word], frame[word + 1]]);
                let new = old ^ (mask >> (8 * (at + 2 - word))) as u16;
                frame[word..word + 2].copy_from_slice(&new.to_be_bytes());
                for sum in parts.header_sum.map(|s| (s, false)).into_iter().chain(parts.payload_sum)
                {
                    mend(frame, sum, old, new);
                }
            }
        }
        true
    }
}

/// Updates a checksum (RFC 1624, equation 3). In UDP, a checksum of zero means none.
fn mend(frame: &mut [u8], (at, udp): (usize, bool), old: u16, new: u16) {
    let Some(&[a, b]) = frame.get(at..at + 2).and_then(|s| s.first_chunk()) else { return };
    let was = u16::from_be_bytes([a, b]);
    if udp && was == 0 {
        return;
    }
    let mut sum = u32::from(!was) + u32::from(!old) + u32::from(new);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let is = !(sum as u16);
    frame[at..at + 2].copy_from_slice(&(if udp && is == 0 { 0xffff } else { is }).to_be_bytes());
}

fn addresses(frame: &[u8]) -> Option<[u32; 2]> {
    let Parts { source, address_bytes, .. } = parts(frame)?;
    let last = |end: usize| {
        u32::from_be_bytes(frame[source + end - 4..source + end].try_into().expect("4 bytes"))
    };
    Some([last(address_bytes), last(2 * address_bytes)])
}

fn parts(frame: &[u8]) -> Option<Parts> {
    let ethertype = |at: usize| frame.get(at..at + 2).map(|t| [t[0], t[1]]);
    let at = if ethertype(12)? == [0x81, 0] { 16 } else { 12 };
    let ip = at + 2;
    match ethertype(at)? {
        [8, 0] if frame.get(ip)? >> 4 == 4 && frame.len() >= ip + 20 => {
            let payload = ip + usize::from(frame[ip] & 15) * 4;
            let first = u16::from_be_bytes([frame[ip + 6], frame[ip + 7]]) & 0x1fff == 0;
            let payload_sum = if first { sum_of(frame[ip + 9], payload) } else { None };
            Some(Parts {
                source: ip + 12,
                address_bytes: 4,
                header_sum: Some(ip + 10),
                payload_sum,
            })
        }
        [0x86, 0xdd] if frame.get(ip)? >> 4 == 6 && frame.len() >= ip + 40 => {
            let (next, payload) = behind_extensions(frame, ip);
            let payload_sum = payload.and_then(|payload| {
                if next == 58 { Some((payload + 2, false)) } else { sum_of(next, payload) }
            });
            Some(Parts { source: ip + 8, address_bytes: 16, header_sum: None, payload_sum })
        }
        _ => None,
    }
}

/// Returns the offset of the checksum that covers addresses, and whether zero means no checksum.
fn sum_of(protocol: u8, payload: usize) -> Option<(usize, bool)> {
    match protocol {
        6 => Some((payload + 16, false)),
        17 => Some((payload + 6, true)),
        33 | 136 => Some((payload + 6, false)),
        _ => None,
    }
}

/// Returns the protocol after the extension headers of an IPv6 packet, and its offset. The offset
/// is `None` in all fragments but the first.
fn behind_extensions(frame: &[u8], ip: usize) -> (u8, Option<usize>) {
    let (mut next, mut at) = (frame[ip + 6], ip + 40);
    while let (0 | 43 | 44 | 60, Some(header)) = (next, frame.get(at..at + 8)) {
        if next == 44 && u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0 {
            return (header[0], None);
        }
        at += if next == 44 { 8 } else { 8 + usize::from(header[1]) * 8 };
        next = header[0];
    }
    (next, Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, generate};
    use pando_flow::{FlowKey, checksum};

    /// Every copy of a flow is its own flow with right checksums.
    #[test]
    fn copies_are_flows_of_their_own() {
        let made = generate(&Shape { flows: 60, seconds: 0.2, ..Shape::default() });
        let copies = Copies::new(20, made.packets.iter().map(|p| p.frame.as_slice())).unwrap();
        let flows = |frames: &mut dyn Iterator<Item = Vec<u8>>| {
            frames.map(|f| FlowKey::of_frame(&f).unwrap().0).collect::<HashSet<_>>()
        };
        let own = flows(&mut made.packets.iter().map(|p| p.frame.clone()));
        let all = flows(&mut (0..20).flat_map(|copy| {
            let copies = &copies;
            made.packets.iter().map(move |p| {
                let mut frame = p.frame.clone();
                assert!(copies.rewrite(copy, &mut frame));
                assert_ne!(checksum::transport_is_right(&frame), Some(false), "copy {copy}");
                assert_ne!(checksum::header_is_right(&frame), Some(false), "copy {copy}");
                frame
            })
        }));
        assert_eq!(all.len(), 20 * own.len());
    }

    #[test]
    fn what_is_no_ip_packet_has_no_copies() {
        let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &[0; 28]].concat();
        let copies = Copies::new(2, std::iter::once(arp.as_slice())).unwrap();
        let mut copy = arp.clone();
        assert!(copies.rewrite(0, &mut copy) && !copies.rewrite(1, &mut copy) && copy == arp);
    }

    #[test]
    fn a_udp_packet_without_a_sum_gets_none() {
        let mut frame = vec![0; 12];
        frame.extend([
            8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 9,
            0, 8, 0, 0,
        ]);
        let copies = Copies::new(2, std::iter::once(frame.as_slice())).unwrap();
        assert!(copies.rewrite(1, &mut frame));
        assert_eq!(&frame[40..42], [0, 0]);
    }
}
