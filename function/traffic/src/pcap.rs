//! Captures: reads pcap and pcapng, writes pcap. Every packet becomes an Ethernet frame.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The Ethernet frame, with all captured bytes.
    pub frame: Vec<u8>,
    /// Its length on the wire.
    pub wire_bytes: u32,
}

/// Reason why a file is not a capture.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file is not readable.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file is neither pcap nor pcapng.
    #[error(
        "{0}: neither pcap nor pcapng; `pando fn generate FILE` makes a capture, `tcpdump -w FILE` \
         records one"
    )]
    Format(String),
    /// The link type has no conversion to Ethernet.
    #[error(
        "{path}: link type {linktype} is not supported: Ethernet (1), raw IP (12, 101), null (0) \
         and Linux cooked (113, 276) are"
    )]
    LinkType {
        /// The file.
        path: String,
        /// The link type as in the file.
        linktype: u32,
    },
    /// The file ends within a packet, or has inconsistent lengths.
    #[error("{path}: packet {} is cut off or broken; the {after} before it are whole: `tcpdump -r \
        {path} -w whole.pcap` keeps those", after + 1)]
    Broken {
        /// The file.
        path: String,
        /// Number of whole packets before the error.
        after: usize,
    },
}

// First bytes of a capture: pcap with times in microseconds or nanoseconds, or pcapng. Either byte
// order is valid.
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const NEXT_GENERATION: u32 = 0x0a0d_0d0a;

#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u32(self, b: &[u8], at: usize) -> Option<u32> {
        let bytes: [u8; 4] = b.get(at..at + 4)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u16(self, b: &[u8], at: usize) -> Option<u16> {
        let bytes: [u8; 2] = b.get(at..at + 2)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }
}

/// Reads a whole capture.
pub fn read(path: &Path) -> Result<Vec<Captured>, PcapError> {
    let shown = path.display().to_string();
    let bytes = bytes(path).map_err(|source| PcapError::Read { path: shown.clone(), source })?;
    parse(&bytes, &shown)
}

/// Returns a whole capture, or only the first 4 bytes of any other file, which may be endless.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(4).read_to_end(&mut bytes)?;
    let begins =
        |magic: &u32| [magic.to_le_bytes(), magic.to_be_bytes()].iter().any(|m| bytes == m);
    if [MICROSECONDS, NANOSECONDS, NEXT_GENERATION].iter().any(begins) {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Parses a capture in memory. `path` is for errors.
pub fn parse(bytes: &[u8], path: &str) -> Result<Vec<Captured>, PcapError> {
    let magic =
        Order { big: false }.u32(bytes, 0).ok_or_else(|| PcapError::Format(path.to_owned()))?;
    match magic {
        MICROSECONDS => classic(bytes, Order { big: false }, 1000, path),
        NANOSECONDS => classic(bytes, Order { big: false }, 1, path),
        m if m == MICROSECONDS.swap_bytes() => classic(bytes, Order { big: true }, 1000, path),
        m if m == NANOSECONDS.swap_bytes() => classic(bytes, Order { big: true }, 1, path),
        NEXT_GENERATION => next_generation(bytes, path),
        _ => Err(PcapError::Format(path.to_owned())),
    }
}

fn classic(
    bytes: &[u8],
    order: Order,
    unit_ns: u64,
    path: &str,
) -> Result<Vec<Captured>, PcapError> {
    let linktype = order.u32(bytes, 20).ok_or_else(|| PcapError::Format(path.to_owned()))? & 0xffff;
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let broken = || PcapError::Broken { path: path.to_owned(), after: packets.len() };
        let field = |n: usize| order.u32(bytes, at + 4 * n).ok_or_else(broken);
        let (seconds, part, captured, wire_bytes) =
            (field(0)?, field(1)?, field(2)? as usize, field(3)?);
        let data = bytes.get(at + 16..(at + 16).saturating_add(captured)).ok_or_else(broken)?;
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(part) * unit_ns;
        packets.push(Captured { time_ns, frame: ethernet(data, linktype, path)?, wire_bytes });
        at += 16 + captured;
    }
    Ok(packets)
}

struct Interface {
    linktype: u32,
    ticks_per_second: u64,
}

fn next_generation(bytes: &[u8], path: &str) -> Result<Vec<Captured>, PcapError> {
    let mut packets: Vec<Captured> = Vec::new();
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut order = Order { big: false };
    let mut at = 0;
    while at < bytes.len() {
        let broken = || PcapError::Broken { path: path.to_owned(), after: packets.len() };
        if order.u32(bytes, at) == Some(NEXT_GENERATION) {
            order = Order { big: bytes.get(at + 8..at + 12) == Some(&[0x1a, 0x2b, 0x3c, 0x4d]) };
            interfaces.clear();
        }
        let length = order.u32(bytes, at + 4).ok_or_else(broken)? as usize;
        let block = bytes
            .get(at..at.saturating_add(length))
            .filter(|b| b.len() >= 12)
            .ok_or_else(broken)?;
        match order.u32(block, 0).ok_or_else(broken)? {
            1 => interfaces.push(interface(block, order).ok_or_else(broken)?),
            6 => {
                let number = order.u32(block, 8).ok_or_else(broken)? as usize;
                let interface = interfaces.get(number).ok_or_else(broken)?;
                let ticks = u64::from(order.u32(block, 12).ok_or_else(broken)?) << 32
                    | u64::from(order.u32(block, 16).ok_or_else(broken)?);
                let captured = order.u32(block, 20).ok_or_else(broken)? as usize;
                let data = block.get(28..28usize.saturating_add(captured)).ok_or_else(broken)?;
                let wire_bytes = order.u32(block, 24).ok_or_else(broken)?;
                let per_second = u128::from(interface.ticks_per_second);
                let time_ns = (u128::from(ticks) * 1_000_000_000 / per_second) as u64;
                packets.push(Captured {
                    time_ns,
                    frame: ethernet(data, interface.linktype, path)?,
                    wire_bytes,
                });
            }
            3 => {
                let interface = interfaces.first().ok_or_else(broken)?;
                let wire_bytes = order.u32(block, 8).ok_or_else(broken)?;
                let data = block.get(12..block.len() - 4).ok_or_else(broken)?;
                let data = &data[..data.len().min(wire_bytes as usize)];
                let time_ns = packets.last().map_or(0, |p| p.time_ns);
                packets.push(Captured {
                    time_ns,
                    frame: ethernet(data, interface.linktype, path)?,
                    wire_bytes,
                });
            }
            _ => {}
        }
        at += length;
    }
    Ok(packets)
}

/// Reads an interface description block. Its option 9 is the length of a tick: a power of ten, or
/// of two. One that no 64 bits hold counts as the shortest of 64 bits.
fn interface(block: &[u8], order: Order) -> Option<Interface> {
    let mut ticks_per_second = 1_000_000;
    let mut at = 16;
    while let (Some(code), Some(length)) = (order.u16(block, at), order.u16(block, at + 2)) {
        if code == 0 || at + 4 >= block.len() - 4 {
            break;
        }
        if code == 9 {
            let resolution = *block.get(at + 4)?;
            let power = u32::from(resolution & 0x7f);
            let per_second = match resolution & 0x80 {
                0 => 10u64.checked_pow(power),
                _ => 1u64.checked_shl(power),
            };
            ticks_per_second = per_second.unwrap_or(u64::MAX);
        }
        at += 4 + usize::from(length).next_multiple_of(4);
    }
    Some(Interface { linktype: order.u16(block, 8)?.into(), ticks_per_second })
}

/// Returns the packet with an Ethernet header in place of any other link header.
fn ethernet(data: &[u8], linktype: u32, path: &str) -> Result<Vec<u8>, PcapError> {
    let (ethertype, payload) = match linktype {
        1 => return Ok(data.to_vec()),
        0 => (of_ip(data.get(4..).unwrap_or(&[])), data.get(4..).unwrap_or(&[])),
        12 | 101 => (of_ip(data), data),
        113 => (
            [*data.get(14).unwrap_or(&0), *data.get(15).unwrap_or(&0)],
            data.get(16..).unwrap_or(&[]),
        ),
        276 => (
            [*data.first().unwrap_or(&0), *data.get(1).unwrap_or(&0)],
            data.get(20..).unwrap_or(&[]),
        ),
        _ => return Err(PcapError::LinkType { path: path.to_owned(), linktype }),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, ethertype[0], ethertype[1]];
    frame.extend_from_slice(payload);
    Ok(frame)
}

fn of_ip(packet: &[u8]) -> [u8; 2] {
    if packet.first().is_some_and(|b| b >> 4 == 6) { [0x86, 0xdd] } else { [8, 0] }
}

/// Creates a file for a capture. A file that a `Writer` wrote is replaced, and no other one.
pub fn create(path: &Path) -> io::Result<File> {
    // A device or a pipe is not opened for a look: that waits, or takes bytes away.
    if std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0) {
        let mut start = Vec::new();
        File::open(path)?.take(head().len() as u64).read_to_end(&mut start)?;
        if start != head() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file is there and is no capture of pando fn; name another file",
            ));
        }
    }
    File::create(path)
}

/// The head of a file: pcap with times in nanoseconds, of Ethernet frames.
fn head() -> Vec<u8> {
    [0xa1b2_3c4du32, 4 << 16 | 2, 0, 0, 262_144, 1].iter().flat_map(|f| f.to_le_bytes()).collect()
}

/// Writes a whole capture.
pub fn write(path: &Path, packets: &[Captured]) -> io::Result<()> {
    let mut writer = Writer::new(io::BufWriter::new(create(path)?))?;
    packets.iter().try_for_each(|p| writer.write(p.time_ns, &p.frame))?;
    writer.finish().map(drop)
}

/// Writes Ethernet frames as pcap with times in nanoseconds.
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(mut to: W) -> io::Result<Writer<W>> {
        to.write_all(&head())?;
        Ok(Writer { to })
    }

    /// Adds a frame.
    pub fn write(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        let length = frame.len() as u32;
        for field in
            [(time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32, length, length]
        {
            self.to.write_all(&field.to_le_bytes())?;
        }
        self.to.write_all(frame)
    }

    /// Ends the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_of_another_program_stays() {
        let dir = std::env::temp_dir().join(format!("pando-pcap-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = dir.join("out.pcap");
        let packets = [Captured { time_ns: 1, frame: vec![0; 60], wire_bytes: 60 }];
        let others = [
            (b"monday".to_vec(), false),
            ([&[0xd4, 0xc3, 0xb2, 0xa1][..], &[0; 20]].concat(), false), // of tcpdump
            (Vec::new(), true),
            (head(), true),
        ];
        for (before, replaced) in others {
            std::fs::write(&at, &before).unwrap();
            let result = write(&at, &packets);
            let now = std::fs::read(&at).unwrap();
            assert_eq!(result.is_ok(), replaced, "{before:?}: {result:?}");
            assert_eq!(now == before, !replaced, "{before:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            frames in proptest::collection::vec(
                (0..4_000_000_000_000_000_000u64, proptest::collection::vec(any::<u8>(), 0..99)),
                0..9,
            ),
        ) {
            let mut writer = Writer::new(Vec::new()).unwrap();
            for (time_ns, frame) in &frames {
                writer.write(*time_ns, frame).unwrap();
            }
            let read = parse(&writer.finish().unwrap(), "memory").unwrap();
            prop_assert_eq!(read.len(), frames.len());
            for (captured, (time_ns, frame)) in read.iter().zip(&frames) {
                prop_assert_eq!((captured.time_ns, &captured.frame), (*time_ns, frame));
            }
        }

        #[test]
        fn no_file_panics(
            magic in 0..5usize,
            bytes in proptest::collection::vec(prop_oneof![0..8u8, any::<u8>()], 0..200),
        ) {
            let mut file = [
                [0xd4, 0xc3, 0xb2, 0xa1],
                [0xa1, 0xb2, 0xc3, 0xd4],
                [0x4d, 0x3c, 0xb2, 0xa1],
                [0x0a, 0x0d, 0x0d, 0x0a],
                [0; 4],
            ][magic]
                .to_vec();
            file.extend(bytes);
            let _ = parse(&file, "memory");
        }
    }
}
