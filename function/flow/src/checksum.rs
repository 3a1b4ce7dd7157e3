//! Completes checksums that the kernel left to a device that does not exist. A packet between two
//! hosts on one machine carries only the sum of its pseudo header. A function that updates such a
//! checksum would update a wrong value.

/// Writes the complete TCP or UDP checksum into a frame. The field must hold the sum of the pseudo
/// header. `start` is the offset of the transport header, `offset` that of the field from there.
pub fn complete(frame: &mut [u8], start: usize, offset: usize) {
    if start + offset + 2 > frame.len() {
        return;
    }
    let sum = !fold(sum_of(&frame[start..]));
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the sum of 16-bit words as a number that folds to it. A zero byte pads the last word. It
/// adds words of 32 bits, which the compiler vectorizes. The sum of swapped bytes is the swapped
/// sum (RFC 1071).
pub fn sum_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut sum: u64 =
        words.by_ref().map(|w| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))).sum();
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(last));
    u64::from(u16::from_be_bytes(fold(sum).to_ne_bytes()))
}

/// Folds a sum to 16 bits, with the carries added.
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Place of the transport header and inputs of its checksum. Covers frames without a VLAN tag and
/// IPv6 without extension headers.
struct Transport {
    start: usize,
    end: usize,
    protocol: u8,
    addresses: std::ops::Range<usize>,
}

impl Transport {
    fn of(frame: &[u8]) -> Option<Transport> {
        let be16 = |at: usize| {
            Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])))
        };
        let found = match frame.get(12..15)? {
            [8, 0, first] if first >> 4 == 4 => Transport {
                start: 14 + usize::from(first & 15) * 4,
                end: 14 + be16(16)?,
                protocol: *frame.get(23)?,
                addresses: 26..34,
            },
            [0x86, 0xdd, first] if first >> 4 == 6 => Transport {
                start: 54,
                end: 54 + be16(18)?,
                protocol: *frame.get(20)?,
                addresses: 22..54,
            },
            _ => return None,
        };
        (found.start <= found.end && found.end <= frame.len() && found.addresses.end <= found.start)
            .then_some(found)
    }

    fn pseudo_sum(&self, frame: &[u8]) -> u64 {
        sum_of(&frame[self.addresses.clone()])
            + u64::from(self.protocol)
            + (self.end - self.start) as u64
    }

    /// Returns the offset of the checksum from the start of the transport header.
    fn field(&self) -> Option<usize> {
        match self.protocol {
            6 => Some(16),
            17 => Some(6),
            _ => None,
        }
    }
}

/// Fills in the checksums of a new TCP or UDP frame, in the IP header and in the transport header.
pub fn fill(frame: &mut [u8]) {
    let Some(transport) = Transport::of(frame) else { return };
    let Some(offset) = transport.field() else { return };
    let pseudo = fold(transport.pseudo_sum(frame));
    frame[transport.start + offset..transport.start + offset + 2]
        .copy_from_slice(&pseudo.to_be_bytes());
    complete(&mut frame[..transport.end], transport.start, offset);
    if frame[12..14] == [8, 0] {
        fill_header(&mut frame[14..transport.start]);
    }
}

/// Completes a checksum if its field equals the sum of the pseudo header. A correct checksum with
/// that value does not change, because completing it gives the same value.
pub fn complete_partial(frame: &mut [u8]) {
    let Some(transport) = Transport::of(frame) else { return };
    // Skip fragments. The kernel completes a checksum before it fragments, and later fragments have
    // no transport header.
    let fragment = frame[12..14] == [8, 0] && (frame[20] & 0x3f | frame[21]) != 0;
    let Some(offset) = transport.field().filter(|_| !fragment) else { return };
    let at = transport.start + offset;
    if frame.get(at..at + 2) == Some(&fold(transport.pseudo_sum(frame)).to_be_bytes()[..]) {
        complete(&mut frame[..transport.end], transport.start, offset);
    }
}

/// Fills in the checksum of an IPv4 header.
pub fn fill_header(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !fold(sum_of(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Reports whether the transport checksum of a frame without a VLAN tag is right. Returns `None` if
/// there is no checksum to check.
pub fn transport_is_right(frame: &[u8]) -> Option<bool> {
    let transport = Transport::of(frame)?;
    let header = &frame[transport.start..transport.end];
    if transport.field()? == 6 && header.get(6..8)? == [0, 0] {
        return None;
    }
    Some(fold(transport.pseudo_sum(frame) + sum_of(header)) == 0xffff)
}

/// Reports whether the checksum of an IPv4 header is right. Returns `None` for other frames.
pub fn header_is_right(frame: &[u8]) -> Option<bool> {
    let ip = frame
        .get(14..)
        .filter(|ip| frame[12..14] == [8, 0] && ip.first().is_some_and(|b| b >> 4 == 4))?;
    Some(fold(sum_of(ip.get(..usize::from(ip[0] & 15) * 4)?)) == 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_traffic::{Shape, generate};

    /// A partial checksum is completed. A correct one stays, even if it equals the sum of the
    /// pseudo header.
    #[test]
    fn a_partial_checksum_is_told_from_a_right_one() {
        for packet in generate(&Shape { flows: 200, ..Shape::default() }).packets {
            let transport = Transport::of(&packet.frame).unwrap();
            let (at, pseudo) = (
                transport.start + transport.field().unwrap(),
                fold(transport.pseudo_sum(&packet.frame)),
            );
            let mut frame = packet.frame.clone();
            complete_partial(&mut frame);
            assert_eq!(frame, packet.frame);
            frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            complete_partial(&mut frame);
            assert_eq!(frame, packet.frame);
            let mut fragment = frame.clone();
            fragment[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            if fragment[12] == 8 {
                fragment[20] |= 0x20;
                let before = fragment.clone();
                complete_partial(&mut fragment);
                assert_eq!(fragment, before);
            }
        }
        // This payload makes the correct checksum equal to the sum of the pseudo header.
        let mut frame = pando_traffic::generate(&Shape { flows: 40, ..Shape::default() }).packets;
        frame.retain(|p| p.frame.len() > 100 && p.frame[12] == 8);
        for mut frame in frame.into_iter().map(|p| p.frame) {
            let transport = Transport::of(&frame).unwrap();
            let (at, pseudo) =
                (transport.start + transport.field().unwrap(), fold(transport.pseudo_sum(&frame)));
            let word = transport.start + 30;
            frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            frame[word..word + 2].fill(0);
            let rest =
                fold(transport.pseudo_sum(&frame) + sum_of(&frame[transport.start..transport.end]));
            frame[word..word + 2].copy_from_slice(&(!rest).to_be_bytes());
            assert_eq!(transport_is_right(&frame), Some(true));
            let before = frame.clone();
            complete_partial(&mut frame);
            assert_eq!(frame, before);
        }
    }
}
