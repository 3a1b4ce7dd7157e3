//! Reassembles datagrams from IP fragments, and fragments them again. Functions see whole packets
//! only, as they do behind Linux's connection tracking.
//!
//! Held fragments are limited in bytes, in packet time and in fragments per datagram. When the room
//! is full, the oldest unfinished datagram is dropped. A flood of endless fragments therefore harms
//! only datagrams that arrive more slowly than the flood fills the room.

use std::collections::{HashMap, VecDeque};

use crate::network;

/// Maximum bytes of all held fragments, as in Linux (`net.ipv4.ipfrag_high_thresh`).
const HELD_BYTES_MAX: usize = 4 << 20;
/// Maximum time from a datagram's first fragment to its last (RFC 1122 §3.3.2).
const HELD_NS_MAX: u64 = 60_000_000_000;
/// Maximum fragments of one datagram. The largest datagram has 241 over links of 296 bytes.
const FRAGMENTS_MAX: usize = 256;
/// Memory of a held fragment in addition to its bytes.
const OVERHEAD_BYTES: usize = 128;
/// Limit of IP's length field.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Size of IPv6's fragment header, and the unit of fragment offsets.
const UNIT_BYTES: usize = 8;
const FRAGMENT: u8 = 44;
/// Size of IPv4's header without options.
const IPV4_BYTES: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    from: [u8; 16],
    to: [u8; 16],
    id: u32,
    version: u8,
    protocol: u8,
}

/// One fragment, as offsets into its frame.
struct Parsed {
    key: Key,
    /// Offset of the IP header.
    ip: usize,
    /// Offset of the fragmented bytes.
    payload: usize,
    end: usize,
    /// Offset of these bytes in the datagram.
    offset: usize,
    more: bool,
}

struct Piece {
    offset: usize,
    payload: Vec<u8>,
}

struct Datagram {
    began_ns: u64,
    /// Fragments in order of arrival.
    pieces: Vec<Piece>,
    /// All bytes before the payload of the first fragment, and the offset of IP. Any fragment
    /// header is removed.
    head: Option<(Vec<u8>, usize)>,
    /// Length of the payload, from the last fragment.
    length: Option<usize>,
    /// IP bytes of the largest fragment.
    largest: usize,
    bytes: usize,
}

/// Result for a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// The frame is not a fragment.
    Whole,
    /// The fragment waits for the rest of its datagram.
    Held,
    /// The fragment is malformed, or its datagram has too many.
    Refused,
    /// The fragment completed its datagram.
    Complete(Complete),
}

/// A datagram with all its fragments.
#[derive(Debug, PartialEq, Eq)]
pub struct Complete {
    /// The frame as before its fragmentation.
    pub frame: Vec<u8>,
    /// How to fragment it again.
    pub cut: Cut,
}

/// The size and id with which a datagram was fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    largest: usize,
    id: u32,
}

/// The fragments that wait.
#[derive(Default)]
pub struct Fragments {
    datagrams: HashMap<Key, Datagram>,
    /// Datagrams in order of their first fragments. Some may be gone.
    began: VecDeque<(u64, Key)>,
    bytes: usize,
    /// Fragments that were given up because of age, lack of room, or the number of fragments or
    /// bytes of their datagram.
    pub expired: u64,
}

impl Fragments {
    /// Takes a frame if it is a fragment.
    #[inline]
    pub fn take(&mut self, frame: &[u8], now_ns: u64) -> Taken {
        let Some((version, ip)) = network(frame) else { return Taken::Whole };
        let parsed = match if version == 4 { parse_ipv4(frame, ip) } else { parse_ipv6(frame, ip) }
        {
            Ok(None) => return Taken::Whole,
            Ok(Some(parsed)) => parsed,
            Err(Malformed) => return Taken::Refused,
        };
        self.expire(now_ns);
        let size = parsed.end - parsed.payload + OVERHEAD_BYTES;
        while self.bytes + size > HELD_BYTES_MAX {
            let Some((_, oldest)) = self.began.front().copied() else { break };
            self.give_up(oldest);
        }
        let key = parsed.key;
        let began = &mut self.began;
        let datagram = self.datagrams.entry(key).or_insert_with(|| {
            began.push_back((now_ns, key));
            Datagram {
                began_ns: now_ns,
                pieces: Vec::new(),
                head: None,
                length: None,
                largest: 0,
                bytes: 0,
            }
        });
        if datagram.pieces.len() == FRAGMENTS_MAX {
            self.give_up(key);
            return Taken::Refused;
        }
        datagram.add(frame, &parsed);
        datagram.bytes += size;
        self.bytes += size;
        if datagram.is_too_long() {
            self.give_up(key);
            return Taken::Refused;
        }
        let Some(frame) = datagram.whole(version) else { return Taken::Held };
        let cut = Cut { largest: datagram.largest, id: key.id };
        self.remove(key);
        Taken::Complete(Complete { frame, cut })
    }

    fn remove(&mut self, key: Key) -> usize {
        let Some(datagram) = self.datagrams.remove(&key) else { return 0 };
        self.bytes -= datagram.bytes;
        while self.began.front().is_some_and(|(began_ns, key)| {
            self.datagrams.get(key).is_none_or(|d| d.began_ns != *began_ns)
        }) {
            self.began.pop_front();
        }
        datagram.pieces.len()
    }

    fn give_up(&mut self, key: Key) {
        self.expired += self.remove(key) as u64;
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(&(began_ns, key)) = self.began.front()
            && now_ns.saturating_sub(began_ns) > HELD_NS_MAX
        {
            self.give_up(key);
        }
        // Remove entries of datagrams that completed while an older one still waits.
        if self.began.len() > 2 * self.datagrams.len() + 64 {
            self.began.retain(|(began_ns, key)| {
                self.datagrams.get(key).is_some_and(|d| d.began_ns == *began_ns)
            });
        }
    }
}

impl Datagram {
    fn add(&mut self, frame: &[u8], parsed: &Parsed) {
        if parsed.offset == 0 && self.head.is_none() {
            let header =
                if parsed.key.version == 6 { parsed.payload - UNIT_BYTES } else { parsed.payload };
            let mut head = frame[..header].to_vec();
            if parsed.key.version == 6 {
                // Name the next protocol in place of the fragment header.
                let at = names_fragment(frame, parsed.ip, header);
                head[at] = parsed.key.protocol;
            }
            self.head = Some((head, parsed.ip));
        }
        let end = parsed.offset + parsed.end - parsed.payload;
        if !parsed.more && self.length.is_none() {
            self.length = Some(end);
        }
        self.largest = self.largest.max(parsed.end - parsed.ip);
        self.pieces.push(Piece {
            offset: parsed.offset,
            payload: frame[parsed.payload..parsed.end].to_vec(),
        });
    }

    /// Reports whether the headers of the first fragment and the payload of all exceed IP's length
    /// field, although each fragment alone does not.
    fn is_too_long(&self) -> bool {
        let (Some(length), Some((head, ip))) = (self.length, &self.head) else { return false };
        head.len() - ip + length > DATAGRAM_BYTES_MAX
    }

    /// Returns the datagram once it is complete. Where fragments overlap, the one with the lower
    /// offset wins. At equal offsets, the first to arrive wins. BSD does the same, and Suricata by
    /// default.
    fn whole(&self, version: u8) -> Option<Vec<u8>> {
        let (length, (head, ip)) = (self.length?, self.head.as_ref()?);
        let held: usize = self.pieces.iter().map(|p| p.payload.len()).sum();
        if held < length {
            return None;
        }
        let mut order: Vec<&Piece> = self.pieces.iter().collect();
        order.sort_by_key(|p| p.offset); // stable: ties keep the order of arrival
        let mut whole = head.clone();
        let mut covered = 0;
        for piece in order {
            if piece.offset > covered {
                break; // a gap, or a piece behind the end
            }
            if let Some(new) = piece.payload.get(covered - piece.offset..) {
                whole.extend(new);
                covered += new.len();
            }
        }
        if covered < length {
            return None;
        }
        whole.truncate(head.len() + length);
        finish(&mut whole, *ip, version, 0);
        Some(whole)
    }
}

impl Cut {
    /// Returns the frame as fragments no longer than the longest that arrived. A frame that is
    /// short enough stays whole.
    pub fn apart(self, frame: &[u8]) -> Vec<Vec<u8>> {
        let Some((version, ip)) = network(frame) else { return vec![frame.to_vec()] };
        let (header, names) = match version {
            4 => (ip + usize::from(frame[ip] & 15) * 4, 0),
            _ => unfragmentable(frame, ip),
        };
        let end = end_of(frame, ip, version);
        let extra = if version == 4 { 0 } else { UNIT_BYTES };
        let room = self.largest.saturating_sub(header - ip + extra) / UNIT_BYTES * UNIT_BYTES;
        // A function may leave any header, even one that is shorter than IP's.
        let is_header = version == 6 || header >= ip + IPV4_BYTES;
        if !is_header || header > end || end - ip <= self.largest || room == 0 {
            return vec![frame.to_vec()];
        }
        let payload = &frame[header..end];
        let fragment = |(n, part): (usize, &[u8])| {
            let more = n * room + part.len() < payload.len();
            let offset = (n * room) as u16;
            let mut made = frame[..header].to_vec();
            if version == 6 {
                let next = std::mem::replace(&mut made[names], FRAGMENT);
                made.extend([next, 0]);
                made.extend((offset | u16::from(more)).to_be_bytes());
                made.extend(self.id.to_be_bytes());
            }
            made.extend(part);
            finish(&mut made, ip, version, (offset / 8) | (u16::from(more) << 13));
            made
        };
        payload.chunks(room).enumerate().map(fragment).collect()
    }
}

/// Corrects the lengths in a frame's headers. In IPv4, it also writes the fragment field and the
/// checksum.
fn finish(frame: &mut [u8], ip: usize, version: u8, fragment: u16) {
    let length = frame.len() - ip;
    if let Some(name) = ppp_name(frame, ip) {
        let at = ip - name - 2;
        frame[at..at + 2]
            .copy_from_slice(&((length + name).min(DATAGRAM_BYTES_MAX) as u16).to_be_bytes());
    }
    if version == 6 {
        frame[ip + 4..ip + 6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        return;
    }
    let untouched = frame[ip + 6] & 0xc0; // keep "do not fragment"
    frame[ip + 2..ip + 4].copy_from_slice(&(length as u16).to_be_bytes());
    frame[ip + 6..ip + 8].copy_from_slice(&(fragment | u16::from(untouched) << 8).to_be_bytes());
    let header = usize::from(frame[ip] & 15) * 4;
    crate::checksum::fill_header(&mut frame[ip..ip + header]);
}

/// Returns the length of PPP's protocol name in front of the IP packet, 1 or 2 bytes. Returns
/// `None` outside of a PPPoE session, where an EtherType is in front.
fn ppp_name(frame: &[u8], ip: usize) -> Option<usize> {
    let is_session = |name: usize| {
        ip.checked_sub(name + 8)
            .is_some_and(|at| at >= 12 && frame[at..at + 4] == [0x88, 0x64, 0x11, 0])
    };
    match frame[ip - 2..ip] {
        [0, 0x21 | 0x57] if is_session(2) => Some(2),
        [_, 0x21 | 0x57] if is_session(1) => Some(1),
        _ => None,
    }
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// Returns the end of the IP packet according to its header, but at most the end of the frame.
fn end_of(frame: &[u8], ip: usize, version: u8) -> usize {
    let length = if version == 4 { be16(frame, ip + 2) } else { 40 + be16(frame, ip + 4) };
    (ip + length).min(frame.len())
}

/// A fragment that cannot be part of a datagram.
struct Malformed;

fn checked(parsed: Parsed) -> Result<Option<Parsed>, Malformed> {
    let length = parsed.end - parsed.payload;
    let fits = parsed.payload - parsed.ip + parsed.offset + length <= DATAGRAM_BYTES_MAX;
    let sound = length > 0 && fits && (!parsed.more || length.is_multiple_of(UNIT_BYTES));
    if sound { Ok(Some(parsed)) } else { Err(Malformed) }
}

fn parse_ipv4(frame: &[u8], ip: usize) -> Result<Option<Parsed>, Malformed> {
    let packet = &frame[ip..];
    if packet.len() < 20 || be16(packet, 6) & 0x3fff == 0 {
        return Ok(None);
    }
    let header = usize::from(packet[0] & 15) * 4;
    // A packet that was cut off is shorter than its header claims.
    if header < 20 || be16(packet, 2) <= header || be16(packet, 2) > packet.len() {
        return Err(Malformed);
    }
    let mut key = Key {
        from: [0; 16],
        to: [0; 16],
        id: be16(packet, 4) as u32,
        version: 4,
        protocol: packet[9],
    };
    key.from[..4].copy_from_slice(&packet[12..16]);
    key.to[..4].copy_from_slice(&packet[16..20]);
    let (offset, more) = ((be16(packet, 6) & 0x1fff) * UNIT_BYTES, packet[6] & 0x20 != 0);
    checked(Parsed { key, ip, payload: ip + header, end: end_of(frame, ip, 4), offset, more })
}

/// Maximum extension headers to search for a fragment header. A packet with more counts as whole.
const EXTENSIONS_MAX: usize = 8;

fn parse_ipv6(frame: &[u8], ip: usize) -> Result<Option<Parsed>, Malformed> {
    let packet = &frame[ip..];
    if packet.len() < 40 {
        return Ok(None);
    }
    let (mut next, mut at) = (packet[6], 40);
    for _ in 0..EXTENSIONS_MAX {
        let Some(extension) = packet.get(at..at + UNIT_BYTES) else { return Ok(None) };
        match next {
            0 | 43 | 60 => {
                next = extension[0];
                at += UNIT_BYTES + usize::from(extension[1]) * UNIT_BYTES;
            }
            FRAGMENT => break,
            _ => return Ok(None),
        }
    }
    let Some(header) =
        packet.get(at..at + UNIT_BYTES).filter(|h| next == FRAGMENT && be16(h, 2) & 0xfff9 != 0)
    else {
        return Ok(None);
    };
    let end = 40 + be16(packet, 4);
    if end <= at + UNIT_BYTES || end > packet.len() {
        return Err(Malformed);
    }
    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let mut key = Key { from: [0; 16], to: [0; 16], id, version: 6, protocol: header[0] };
    key.from.copy_from_slice(&packet[8..24]);
    key.to.copy_from_slice(&packet[24..40]);
    let (offset, more) = (be16(header, 2) & 0xfff8, header[3] & 1 != 0);
    checked(Parsed { key, ip, payload: ip + at + UNIT_BYTES, end: ip + end, offset, more })
}

/// Returns the offset of the byte that names the IPv6 header at `until`.
fn names_fragment(frame: &[u8], ip: usize, until: usize) -> usize {
    let (mut names, mut at) = (ip + 6, ip + 40);
    while at < until {
        names = at;
        at += UNIT_BYTES + usize::from(frame[at + 1]) * UNIT_BYTES;
    }
    names
}

/// Returns the end of the part that every fragment of an IPv6 packet has (RFC 8200 §4.5). The part
/// ends with the last header that every router reads. The second value is the offset of the byte
/// that names the next header.
fn unfragmentable(frame: &[u8], ip: usize) -> (usize, usize) {
    let (mut names, mut at) = (ip + 6, ip + 40);
    let mut found = (at, names);
    while let Some(extension) =
        frame.get(at..at + 2).filter(|_| matches!(frame[names], 0 | 43 | 60))
    {
        let routers = frame[names] != 60;
        names = at;
        at += UNIT_BYTES + usize::from(extension[1]) * UNIT_BYTES;
        if routers {
            found = (at, names);
        }
    }
    (found.0.min(frame.len()), found.1)
}

#[cfg(test)]
mod tests;
