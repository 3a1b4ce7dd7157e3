//! Captures: reads pcap and pcapng files as lists of (time, flow, length). Only the fields that
//! steering reads are kept; contents are dropped.

use pando_flow::FlowKey;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// One packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Nanoseconds since the first packet of the capture.
    pub at_ns: u64,
    /// Number of its flow within the capture; both directions of a conversation are one flow.
    pub flow: u32,
    /// Length on the wire in bytes.
    pub bytes: u32,
}

/// The packets of one file that carry TCP or UDP, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    /// File name without its folder.
    pub name: String,
    /// Packets in order of time.
    pub packets: Vec<Seen>,
    /// Number of flows.
    pub flows: u32,
}

/// Reports why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The folder or the file cannot be read.
    #[error(
        "read {path}: {source}: want a folder of captures, --captures DIR; `pando fn generate \
         DIR/in.pcap` makes one"
    )]
    Io {
        /// The path that was opened.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The file has neither magic number.
    #[error("not a capture: it begins with neither the magic number of pcap nor that of pcapng")]
    Magic,
    /// The folder has no captures.
    #[error(
        "{0}: no .pcap or .pcapng file with TCP or UDP packets in it: give a folder of captures \
         with --captures DIR; `pando fn generate DIR/in.pcap` makes one"
    )]
    Empty(PathBuf),
}

/// Reads all captures of a folder in order of their names. It skips other files.
pub fn read_folder(folder: &Path) -> Result<Vec<Capture>, CaptureError> {
    let io = |source| CaptureError::Io { path: folder.into(), source };
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| ["pcap", "pcapng", "cap"].iter().any(|k| e == *k)) {
            names.push(path);
        }
    }
    names.sort();
    let mut captures = Vec::new();
    for path in names {
        let bytes = std::fs::read(&path)
            .map_err(|source| CaptureError::Io { path: path.clone(), source })?;
        if let Ok(mut capture) = parse(&bytes)
            && !capture.packets.is_empty()
        {
            capture.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            captures.push(capture);
        }
    }
    if captures.is_empty() { Err(CaptureError::Empty(folder.into())) } else { Ok(captures) }
}

/// Reads one capture. A truncated file returns the packets before the cut.
pub fn parse(bytes: &[u8]) -> Result<Capture, CaptureError> {
    let mut frames = Frames::default();
    match bytes.first_chunk::<4>().map(|m| u32::from_le_bytes(*m)) {
        Some(0x0a0d_0d0a) => frames.read_pcapng(bytes),
        Some(magic)
            if [0xa1b2_c3d4, 0xa1b2_3c4d]
                .iter()
                .any(|&m: &u32| m == magic || m == magic.swap_bytes()) =>
        {
            frames.read_pcap(bytes);
        }
        _ => return Err(CaptureError::Magic),
    }
    let mut capture = frames.capture;
    capture.flows = frames.flows.len() as u32;
    capture.packets.sort_by_key(|p| p.at_ns);
    let first = capture.packets.first().map_or(0, |p| p.at_ns);
    capture.packets.iter_mut().for_each(|p| p.at_ns -= first);
    Ok(capture)
}

/// Reads numbers in the byte order of the file.
#[derive(Clone, Copy, Default)]
struct Order {
    swapped: bool,
}

impl Order {
    fn u16(self, b: &[u8], at: usize) -> Option<u16> {
        let v = u16::from_le_bytes(*b.get(at..)?.first_chunk()?);
        Some(if self.swapped { v.swap_bytes() } else { v })
    }
    fn u32(self, b: &[u8], at: usize) -> Option<u32> {
        let v = u32::from_le_bytes(*b.get(at..)?.first_chunk()?);
        Some(if self.swapped { v.swap_bytes() } else { v })
    }
}

#[derive(Default)]
struct Frames {
    capture: Capture,
    flows: HashMap<FlowKey, u32>,
}

impl Frames {
    /// Adds one frame of a libpcap link type. It skips frames without TCP or UDP over IP.
    fn add(&mut self, link: u32, at_ns: u64, length: u32, data: &[u8]) {
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        let Some((key, _)) = ethernet(link, data).and_then(|frame| FlowKey::of_frame(&frame))
        else {
            return;
        };
        if key.protocol() != TCP && key.protocol() != UDP {
            return;
        }
        let next = self.flows.len() as u32;
        let flow = *self.flows.entry(key).or_insert(next);
        self.capture.packets.push(Seen { at_ns, flow, bytes: length.clamp(60, 1 << 16) });
    }

    fn read_pcap(&mut self, b: &[u8]) {
        let magic = u32::from_le_bytes(*b.first_chunk().expect("4 bytes were read"));
        let order = Order { swapped: magic & 0xff != 0xd4 && magic & 0xff != 0x4d };
        let fraction_ns = if order.u32(b, 0) == Some(0xa1b2_3c4d) { 1 } else { 1000 };
        let Some(link) = order.u32(b, 20) else { return };
        let mut at = 24;
        while let (Some(seconds), Some(fraction), Some(stored), Some(length)) =
            (order.u32(b, at), order.u32(b, at + 4), order.u32(b, at + 8), order.u32(b, at + 12))
        {
            let Some(data) = b.get(at + 16..).and_then(|rest| rest.get(..stored as usize)) else {
                return;
            };
            self.add(
                link & 0xffff,
                u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * fraction_ns,
                length,
                data,
            );
            at += 16 + stored as usize;
        }
    }

    fn read_pcapng(&mut self, b: &[u8]) {
        const SECTION: u32 = 0x0a0d_0d0a;
        const INTERFACE: u32 = 1;
        const PACKET: u32 = 6;
        let mut order = Order::default();
        let mut interfaces: Vec<(u32, u64)> = Vec::new();
        let mut at = 0;
        while let Some(kind) = order.u32(b, at) {
            if kind == SECTION {
                order.swapped = b.get(at + 8..at + 12) == Some(&[0x1a, 0x2b, 0x3c, 0x4d]);
                interfaces.clear();
            }
            let Some(length) =
                order.u32(b, at + 4).map(|l| l as usize).filter(|&l| l >= 12 && l % 4 == 0)
            else {
                return;
            };
            let Some(block) = b.get(at..).and_then(|rest| rest.get(..length)) else { return };
            match kind {
                INTERFACE => interfaces.push((
                    u32::from(order.u16(block, 8).unwrap_or(0)),
                    ticks_per_second(order, block),
                )),
                PACKET => {
                    self.add_pcapng(order, &interfaces, block);
                }
                _ => {}
            }
            at += length;
        }
    }

    fn add_pcapng(&mut self, order: Order, interfaces: &[(u32, u64)], block: &[u8]) -> Option<()> {
        let (link, ticks) = *interfaces.get(order.u32(block, 8)? as usize)?;
        let stamp = u64::from(order.u32(block, 12)?) << 32 | u64::from(order.u32(block, 16)?);
        let (stored, length) = (order.u32(block, 20)? as usize, order.u32(block, 24)?);
        let at_ns = (u128::from(stamp) * 1_000_000_000 / u128::from(ticks)) as u64;
        self.add(link, at_ns, length, block.get(28..)?.get(..stored)?);
        Some(())
    }
}

/// Returns the resolution of an interface's time stamps: option 9 of its description block, else
/// microseconds.
fn ticks_per_second(order: Order, block: &[u8]) -> u64 {
    let mut at = 16;
    while let (Some(code), Some(length)) = (order.u16(block, at), order.u16(block, at + 2)) {
        match (code, block.get(at + 4)) {
            (0, _) => break,
            (9, Some(&v)) if v & 0x80 != 0 => {
                return 1u64.checked_shl(u32::from(v & 0x7f)).unwrap_or(0).max(1);
            }
            (9, Some(&v)) => return 10u64.checked_pow(u32::from(v)).unwrap_or(1_000_000),
            _ => at += 4 + usize::from(length).div_ceil(4) * 4,
        }
    }
    1_000_000
}

/// Returns the frame with an Ethernet header, for link types that carry IP differently.
fn ethernet(link: u32, data: &[u8]) -> Option<Vec<u8>> {
    let skipped = match link {
        1 => return Some(data.to_vec()),
        0 | 108 => 4,
        12 | 14 | 101 | 228 | 229 => 0,
        113 => 16,
        276 => 20,
        _ => return None,
    };
    let ip = data.get(skipped..)?;
    let ethertype: [u8; 2] = match ip.first()? >> 4 {
        4 => [0x08, 0x00],
        6 => [0x86, 0xdd],
        _ => return None,
    };
    Some([&[0; 12][..], &ethertype, ip].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a pcap file of UDP packets, given as (microseconds, source port).
    fn pcap(packets: &[(u32, u16)]) -> Vec<u8> {
        let mut file = [
            0xa1b2_c3d4u32.to_le_bytes(),
            [2, 0, 4, 0],
            [0; 4],
            [0; 4],
            [0, 0, 4, 0],
            [1, 0, 0, 0],
        ]
        .concat();
        for (micros, port) in packets {
            let mut frame = vec![0; 60];
            frame[12] = 8;
            frame[14] = 0x45;
            frame[17] = 46;
            frame[23] = 17;
            frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            for v in [7, *micros, 60, 1500] {
                file.extend(v.to_le_bytes());
            }
            file.extend(frame);
        }
        file
    }

    #[test]
    fn packets_come_in_order_of_time_and_flows_are_numbered() {
        let capture = parse(&pcap(&[(30, 1), (10, 2), (20, 1)])).unwrap();
        let got: Vec<_> = capture.packets.iter().map(|p| (p.at_ns, p.flow, p.bytes)).collect();
        assert_eq!(got, [(0, 1, 1500), (10_000, 0, 1500), (20_000, 0, 1500)]);
        assert_eq!(capture.flows, 2);
    }

    #[test]
    fn what_is_cut_off_gives_the_packets_before_it() {
        let whole = pcap(&[(1, 1), (2, 2)]);
        assert_eq!(parse(&whole[..whole.len() - 1]).unwrap().packets.len(), 1);
        assert!(matches!(parse(b"GIF89a"), Err(CaptureError::Magic)));
    }

    proptest! {
        #[test]
        fn no_file_panics(
            pcapng: bool,
            body in
                proptest::collection::vec(prop_oneof![Just(0u8), 0..20u8, any::<u8>()], 0..200),
        ) {
            let magic =
                if pcapng { [0x0a, 0x0d, 0x0d, 0x0a] } else { 0xa1b2_c3d4u32.to_le_bytes() };
            let _ = parse(&[&magic[..], &body].concat());
        }
    }
}
