//! The metadata header that the steering program puts before each packet (SNF §3, "state management
//! module").

use pando_flow::{End, FlowKey};

use crate::{NO_UNIT, UnitId};

/// EtherType of a frame with a [`Header`]: the first of the two for local experiments (IEEE 802).
pub const ETHERTYPE: u16 = 0x88b5;

/// The steering program's information about a packet, for the unit.
///
/// On the wire it is the first part of [`Steered`], little endian. In C:
///
/// ```c
/// struct pando_nf_header {
///     __u8  version;          // 2
///     __u8  flags;            // 1: first packet of a flowlet; 2, 4: see Steered
///     __be16 ethertype;       // of the packet itself
///     __u16 unit, previous;   // previous: 0xffff for a new flow
///     __u32 epoch;            // assignments of this flow so far, from 1
///     __u32 position;         // packets of this flow since the epoch began, from 0
///     __u64 clock;            // packets of this flow so far, from 1
///     __u64 replicas;         // bit u: push the state to unit u
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first packet of a flowlet.
    pub flowlet_starts: bool,
    /// EtherType of the packet itself.
    pub ethertype: u16,
    /// The unit that owns the flow in this epoch.
    pub unit: UnitId,
    /// The owner in the epoch before; [`NO_UNIT`] for a new flow.
    pub previous: UnitId,
    /// Number of the assignment, from 1; it grows by one whenever the flow gets another unit.
    pub epoch: u32,
    /// Packets of the flow since the epoch began, from 0: `clock - position` is the first clock of
    /// the epoch.
    pub position: u32,
    /// Packets of the flow so far, from 1.
    pub clock: u64,
    /// Bit `u` is set to push the state to unit `u` when the flow falls silent.
    pub replicas: u64,
}

/// The error of bytes that are not a header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer bytes than [`Steered::LENGTH_BYTES`].
    #[error(
        "metadata header: {0} bytes, 72 are needed: is the MTU between steering and unit 72 above \
         the clients'?"
    )]
    Short(usize),
    /// Written by another version of the steering program.
    #[error(
        "metadata header: version {0}, this unit reads version 2: upgrade steering and units \
         together"
    )]
    Version(u8),
    /// Clocks and epochs count from 1, and an epoch cannot begin before the flow.
    #[error(
        "metadata header: clock {clock}, position {position}, epoch {epoch} contradict each other"
    )]
    Contradiction {
        /// As received.
        clock: u64,
        /// As received.
        position: u32,
        /// As received.
        epoch: u32,
    },
}

const VERSION: u8 = 2;
const FLOWLET_STARTS: u8 = 1;
const BACK: u8 = 2;
const TRANSLATED: u8 = 4;

impl Header {
    /// Length on the wire.
    pub const LENGTH_BYTES: usize = 32;

    /// Returns the clock before this epoch. The state must have it before the epoch's first packet
    /// may change the state (§5.3).
    pub fn clock_before_epoch(&self) -> u64 {
        self.clock - u64::from(self.position) - 1
    }

    /// Returns the header in its wire format.
    pub fn encode(&self) -> [u8; Self::LENGTH_BYTES] {
        let mut b = [0; Self::LENGTH_BYTES];
        b[0] = VERSION;
        b[1] = if self.flowlet_starts { FLOWLET_STARTS } else { 0 };
        b[2..4].copy_from_slice(&self.ethertype.to_be_bytes());
        b[4..6].copy_from_slice(&self.unit.to_le_bytes());
        b[6..8].copy_from_slice(&self.previous.to_le_bytes());
        b[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        b[12..16].copy_from_slice(&self.position.to_le_bytes());
        b[16..24].copy_from_slice(&self.clock.to_le_bytes());
        b[24..32].copy_from_slice(&self.replicas.to_le_bytes());
        b
    }

    /// Reads a header from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let b: &[u8; Self::LENGTH_BYTES] =
            bytes.first_chunk().ok_or(HeaderError::Short(bytes.len()))?;
        if b[0] != VERSION {
            return Err(HeaderError::Version(b[0]));
        }
        let header = Header {
            flowlet_starts: b[1] & FLOWLET_STARTS != 0,
            ethertype: u16::from_be_bytes([b[2], b[3]]),
            unit: u16::from_le_bytes([b[4], b[5]]),
            previous: u16::from_le_bytes([b[6], b[7]]),
            epoch: u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
            position: u32::from_le_bytes([b[12], b[13], b[14], b[15]]),
            clock: u64::from_le_bytes(b[16..24].try_into().expect("8 bytes")),
            replicas: u64::from_le_bytes(b[24..32].try_into().expect("8 bytes")),
        };
        if header.epoch == 0
            || header.clock <= u64::from(header.position)
            || (header.epoch == 1) != (header.previous == NO_UNIT)
        {
            let Header { clock, position, epoch, .. } = header;
            return Err(HeaderError::Contradiction { clock, position, epoch });
        }
        Ok(header)
    }
}

/// The bytes that steering puts between a frame's Ethernet header and its packet. The Ethernet
/// header then has the EtherType [`ETHERTYPE`]. A unit puts them there as well when it sends the
/// packet on, but with the EtherType of its IP version. They take 72 bytes, so links between
/// steering and units need an MTU that much above the clients'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steered {
    /// The packet's place in its flow.
    pub header: Header,
    /// The flow, even if the packet's own addresses are translated ones.
    pub key: FlowKey,
    /// The packet came in at the outer end of the wire; from a unit, it leaves by the inner one.
    pub back: bool,
    /// The packet's addresses are not those of the key; from a unit, steering is to add them to the
    /// flow.
    pub translated: bool,
}

impl Steered {
    /// Length on the wire: the header, and the key as `struct flowlet_key` of bpf/flowlet.bpf.c.
    pub const LENGTH_BYTES: usize = Header::LENGTH_BYTES + 40;

    /// Returns the bytes in their wire format.
    pub fn encode(&self) -> [u8; Self::LENGTH_BYTES] {
        let mut b = [0; Self::LENGTH_BYTES];
        b[..32].copy_from_slice(&self.header.encode());
        b[1] |= if self.back { BACK } else { 0 } | if self.translated { TRANSLATED } else { 0 };
        let key = self.key.as_bytes();
        b[32..48].copy_from_slice(&key[..16]);
        b[48..64].copy_from_slice(&key[18..34]);
        b[64..66].copy_from_slice(&key[16..18]);
        b[66..70].copy_from_slice(&key[34..38]);
        b
    }

    /// Reads them from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Steered, HeaderError> {
        let b: &[u8; Self::LENGTH_BYTES] =
            bytes.first_chunk().ok_or(HeaderError::Short(bytes.len()))?;
        let header = Header::decode(b)?;
        let (low, high) =
            (End::new(&b[32..48], [b[64], b[65]]), End::new(&b[48..64], [b[66], b[67]]));
        let (key, _) = FlowKey::between(low, high, b[68], b[69]);
        Ok(Steered { header, key, back: b[1] & BACK != 0, translated: b[1] & TRANSLATED != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            starts: bool,
            ethertype: u16,
            unit in 0..64u16,
            epoch in 2..u32::MAX,
            position: u32,
            before: u32,
            replicas: u64,
        ) {
            let clock = u64::from(position) + u64::from(before) + 1;
            let header = Header {
                flowlet_starts: starts,
                ethertype,
                unit,
                previous: 3,
                epoch,
                position,
                clock,
                replicas,
            };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            prop_assert_eq!(header.clock_before_epoch(), u64::from(before));
        }

        #[test]
        fn what_is_steered_is_read(
            a: [u8; 4],
            b: [u8; 16],
            ports: [u8; 4],
            back: bool,
            translated: bool,
        ) {
            let header = Header {
                flowlet_starts: true,
                ethertype: 0x800,
                unit: 1,
                previous: NO_UNIT,
                epoch: 1,
                position: 0,
                clock: 1,
                replicas: 6,
            };
            let [p, q, r, s] = ports;
            let (key, _) = FlowKey::between(End::new(&a, [p, q]), End::new(&b, [r, s]), 6, 4);
            let steered = Steered { header, key, back, translated };
            prop_assert_eq!(Steered::decode(&steered.encode()), Ok(steered));
        }

        #[test]
        fn no_steered_bytes_panic(bytes in proptest::collection::vec(0..3u8, 0..90)) {
            let _ = Steered::decode(&bytes);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0..3u8, 0..40)) {
            if let Ok(header) = Header::decode(&bytes) {
                header.clock_before_epoch();
            }
        }
    }
}
