//! Flows: the conversations to which packets belong.

pub mod checksum;
pub mod fragments;

/// The direction of a packet, by the [`FlowKey`]'s order of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the lower end to the higher one.
    Up,
    /// From the higher end to the lower one.
    Down,
}

/// A flow in both directions: the two ends in canonical (byte-wise ascending) order, and the
/// protocol.
///
/// Flowlets are directional, but the state of a NAT or of a load balancer is not. Both directions
/// therefore share one key, and one unit. The ports are 0 in later fragments and in protocols
/// without ports. An ICMP echo has its identifier as both ports. An ICMP error belongs to the flow
/// of the packet that it quotes (RFC 5508), and runs against that packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    bytes: [u8; FlowKey::LENGTH_BYTES],
}

impl FlowKey {
    /// Two ends of 18 bytes (address, port), protocol, IP version.
    pub const LENGTH_BYTES: usize = 38;

    /// Orders two ends (16-byte address, IPv4 in its first 4 bytes; port in network order) into a
    /// key. Returns the key and the direction.
    pub fn between(from: End, to: End, protocol: u8, version: u8) -> (FlowKey, Direction) {
        let (low, high, direction) =
            if from <= to { (from, to, Direction::Up) } else { (to, from, Direction::Down) };
        let mut bytes = [0; Self::LENGTH_BYTES];
        bytes[..18].copy_from_slice(&low.0);
        bytes[18..36].copy_from_slice(&high.0);
        bytes[36] = protocol;
        bytes[37] = version;
        (FlowKey { bytes }, direction)
    }

    /// Returns the flow of an Ethernet frame that carries IPv4 or IPv6 (see [`innermost`]), or
    /// `None`.
    pub fn of_frame(frame: &[u8]) -> Option<(FlowKey, Direction)> {
        let (version, at) = innermost(frame)?;
        of_packet(&frame[at..], version)
    }

    /// Returns the key in its wire format.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH_BYTES] {
        &self.bytes
    }

    /// Reads a key from [`FlowKey::as_bytes`].
    pub fn from_bytes(bytes: [u8; Self::LENGTH_BYTES]) -> FlowKey {
        FlowKey { bytes }
    }

    /// Returns the IP protocol number.
    pub fn protocol(&self) -> u8 {
        self.bytes[36]
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |b: &[u8]| {
            let port = u16::from_be_bytes([b[16], b[17]]);
            let ip: std::net::IpAddr = match self.bytes[37] {
                4 => std::net::Ipv4Addr::new(b[0], b[1], b[2], b[3]).into(),
                _ => std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&b[..16]).expect("16 bytes"))
                    .into(),
            };
            std::net::SocketAddr::new(ip, port)
        };
        write!(f, "{}<>{}/{}", end(&self.bytes[..18]), end(&self.bytes[18..36]), self.protocol())
    }
}

/// One end of a flow: 16 bytes of address, 2 of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End([u8; 18]);

impl End {
    /// Returns an end with an address of 4 or 16 bytes and a port in network order.
    pub fn new(address: &[u8], port: [u8; 2]) -> End {
        let mut end = [0; 18];
        end[..address.len()].copy_from_slice(address);
        end[16..].copy_from_slice(&port);
        End(end)
    }
}

/// The most VLAN tags that are skipped: one of the customer (802.1Q) inside one of the provider
/// (802.1ad).
const TAGS_MAX: usize = 2;

/// Returns IP version and offset of an Ethernet frame's IP packet, after VLAN tags and a PPPoE
/// session header. Returns `None` if it is not IP or its fixed header is incomplete.
pub fn network(frame: &[u8]) -> Option<(u8, usize)> {
    let mut at = 12;
    for _ in 0..TAGS_MAX {
        if matches!(be16(frame, at)?, 0x8100 | 0x88a8) {
            at += 4;
        }
    }
    match be16(frame, at)? {
        0x0800 => ip_at(frame, 4, at + 2),
        0x86dd => ip_at(frame, 6, at + 2),
        // Version 1, type 1, code 0 (session data); its number and length; then PPP.
        0x8864 if be16(frame, at + 2)? == 0x1100 => ppp(frame, at + 8),
        _ => None,
    }
}

/// Returns an IP packet if its fixed header is complete.
fn ip_at(frame: &[u8], version: u8, at: usize) -> Option<(u8, usize)> {
    let header = if version == 4 { 20 } else { 40 };
    (frame.get(at)? >> 4 == version && frame.len() >= at + header).then_some((version, at))
}

/// PPP's protocol number has two bytes; the first is even. A sender may omit a first byte of 0.
fn ppp(frame: &[u8], at: usize) -> Option<(u8, usize)> {
    let first = *frame.get(at)?;
    let (protocol, next) =
        if first & 1 == 1 { (first.into(), at + 1) } else { (be16(frame, at)?, at + 2) };
    match protocol {
        0x0021 => ip_at(frame, 4, next),
        0x0057 => ip_at(frame, 6, next),
        _ => None,
    }
}

/// The most nested tunnels that are opened.
const TUNNELS_MAX: usize = 4;

/// Returns the start of the innermost IP packet. It looks into 4in4, 4in6, 6in4, 6in6 and GRE (with
/// IP, Ethernet, ERSPAN of types I and II, or PPP). `pando_parse_inner` of the SDK returns the
/// same.
pub fn innermost(frame: &[u8]) -> Option<(u8, usize)> {
    let mut packet = network(frame)?;
    for _ in 0..TUNNELS_MAX {
        match tunnelled(frame, packet) {
            Some(inner) => packet = inner,
            None => break,
        }
    }
    Some(packet)
}

/// Returns the packet inside a packet.
fn tunnelled(frame: &[u8], (version, at): (u8, usize)) -> Option<(u8, usize)> {
    let (protocol, payload, is_fragment) = upper(&frame[at..], version)?;
    let payload = at + payload;
    match protocol {
        _ if is_fragment => None,
        4 => ip_at(frame, 4, payload),
        41 => ip_at(frame, 6, payload),
        47 => gre(frame, payload),
        _ => None,
    }
}

/// RFC 2784, RFC 2890, RFC 2637 (PPTP).
fn gre(frame: &[u8], at: usize) -> Option<(u8, usize)> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGES: u16 = 0x0080;
    let (flags, protocol) = (be16(frame, at)?, be16(frame, at + 2)?);
    let is_pptp = flags & 7 == 1 && protocol == 0x880b;
    if flags & ROUTING != 0 || flags & 7 != 0 && !is_pptp {
        return None;
    }
    let optional = [CHECKSUM, KEY, SEQUENCE, if is_pptp { ACKNOWLEDGES } else { 0 }];
    let payload = at + 4 + 4 * optional.iter().filter(|&flag| flags & flag != 0).count();
    match protocol {
        0x880b => ppp(frame, if be16(frame, payload)? == 0xff03 { payload + 2 } else { payload }),
        0x0800 => ip_at(frame, 4, payload),
        0x86dd => ip_at(frame, 6, payload),
        0x6558 => ethernet(frame, payload),
        // ERSPAN: type II numbers its packets and has a header of 8 bytes.
        0x88be => ethernet(frame, if flags & SEQUENCE != 0 { payload + 8 } else { payload }),
        _ => None,
    }
}

fn ethernet(frame: &[u8], at: usize) -> Option<(u8, usize)> {
    network(frame.get(at..)?).map(|(version, ip)| (version, at + ip))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Returns the ports. They start the payload of TCP, UDP, UDP-Lite, DCCP and SCTP.
fn ports(protocol: u8, payload: &[u8]) -> ([u8; 2], [u8; 2]) {
    match (protocol, payload) {
        (6 | 17 | 33 | 132 | 136, [a, b, c, d, ..]) => ([*a, *b], [*c, *d]),
        _ => ([0; 2], [0; 2]),
    }
}

/// The most extension headers that are skipped; a packet with more has no ports.
const EXTENSIONS_MAX: usize = 8;

/// Returns the payload's protocol, its start, and whether this is a later fragment.
fn upper(ip: &[u8], version: u8) -> Option<(u8, usize, bool)> {
    if version == 4 {
        let header = usize::from(*ip.first()? & 15) * 4;
        if header < 20 || ip.len() < header {
            return None;
        }
        return Some((ip[9], header, be16(ip, 6)? & 0x1fff != 0));
    }
    if ip.len() < 40 {
        return None;
    }
    let (mut next, mut at, mut is_fragment) = (ip[6], 40, false);
    for _ in 0..EXTENSIONS_MAX {
        let Some(extension) = ip.get(at..at + 8) else { break };
        match next {
            0 | 43 | 60 => at += 8 + usize::from(extension[1]) * 8,
            44 => {
                is_fragment |= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0;
                at += 8;
            }
            _ => break,
        }
        next = extension[0];
    }
    Some((next, at, is_fragment))
}

/// Returns the flow of an IP packet. Only the first fragment has ports.
fn of_packet(ip: &[u8], version: u8) -> Option<(FlowKey, Direction)> {
    let (protocol, payload, is_fragment) = upper(ip, version)?;
    let payload = ip.get(payload..).unwrap_or(&[]);
    if is_fragment {
        return between(ip, version, protocol, Default::default());
    }
    match icmp(protocol, version, payload) {
        Some(Icmp::Echo(id)) => between(ip, version, protocol, (id, id)),
        Some(Icmp::Quoted(quoted)) => of_quoted(quoted, version)
            .or_else(|| between(ip, version, protocol, Default::default())),
        None => between(ip, version, protocol, ports(protocol, payload)),
    }
}

/// Bytes of an ICMP header, which the quoted packet of an error follows.
const ICMP_BYTES: usize = 8;

/// The parts of an ICMP message that name a flow.
enum Icmp<'a> {
    /// A request or an answer, by its identifier.
    Echo([u8; 2]),
    /// An error, by the beginning of the packet that caused it.
    Quoted(&'a [u8]),
}

/// Reads an ICMP message of either version; `None` for any other payload.
fn icmp(protocol: u8, version: u8, payload: &[u8]) -> Option<Icmp<'_>> {
    let header = payload.get(..ICMP_BYTES)?;
    match (protocol, version, header[0]) {
        (1, 4, 0 | 8) | (58, 6, 128 | 129) => Some(Icmp::Echo([header[4], header[5]])),
        (1, 4, 3 | 11 | 12) | (58, 6, 1..=4) => Some(Icmp::Quoted(&payload[ICMP_BYTES..])),
        _ => None,
    }
}

/// Returns the flow of a quoted packet, with the direction of a packet against it. The quote needs
/// a whole IP header and the 8 bytes behind it, as errors have.
fn of_quoted(quoted: &[u8], version: u8) -> Option<(FlowKey, Direction)> {
    ip_at(quoted, version, 0)?;
    let (protocol, payload, is_fragment) = upper(quoted, version)?;
    let payload = quoted.get(payload..).filter(|payload| payload.len() >= 8 && !is_fragment)?;
    let ports = match icmp(protocol, version, payload) {
        Some(Icmp::Echo(id)) => (id, id),
        Some(Icmp::Quoted(_)) => return None, // no error is sent about an error
        None => ports(protocol, payload),
    };
    let (key, direction) = between(quoted, version, protocol, ports)?;
    let against = match direction {
        Direction::Up => Direction::Down,
        Direction::Down => Direction::Up,
    };
    Some((key, against))
}

/// Returns the flow between the two addresses of an IP header.
fn between(
    ip: &[u8],
    version: u8,
    protocol: u8,
    (from, to): ([u8; 2], [u8; 2]),
) -> Option<(FlowKey, Direction)> {
    let (addresses, length) = if version == 4 { (12, 4) } else { (8, 16) };
    let address = |n: usize| ip.get(addresses + n * length..)?.get(..length);
    Some(FlowKey::between(
        End::new(address(0)?, from),
        End::new(address(1)?, to),
        protocol,
        version,
    ))
}

#[cfg(test)]
mod tests;
