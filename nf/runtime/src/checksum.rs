//! Checksums that the kernel left to a device which is not there: a packet between two hosts on one machine carries
//! only the sum of its pseudo header, and a function that mends checksums would mend nonsense.

/// Puts the whole checksum of TCP or UDP into a frame whose field holds the sum of the pseudo header.
/// `start` is the offset of the transport header, `offset` that of the field behind it.
pub fn complete(frame: &mut [u8], start: usize, offset: usize) {
    if start + offset + 2 > frame.len() {
        return;
    }
    let sum = !fold(sum_of(&frame[start..]));
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The sum of 16-bit words, the last one filled up with a zero byte.
fn sum_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let sum: u64 = words.by_ref().map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum + words.remainder().first().map_or(0, |&b| u64::from(b) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether the transport checksum of an IPv4 frame without VLAN tag is right; `None` when it has none to check.
pub fn transport_is_right(frame: &[u8]) -> Option<bool> {
    let ip = frame.get(14..)?;
    if frame[12..14] != [8, 0] || ip.first()? >> 4 != 4 {
        return None;
    }
    let header = usize::from(ip[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let transport = ip.get(header..total)?;
    let protocol = ip[9];
    if protocol == 17 && transport.get(6..8)? == [0, 0] || !matches!(protocol, 6 | 17) {
        return None;
    }
    let pseudo = sum_of(&ip[12..20]) + u64::from(protocol) + transport.len() as u64;
    Some(fold(pseudo + sum_of(transport)) == 0xffff)
}
