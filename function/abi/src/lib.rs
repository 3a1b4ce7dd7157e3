//! The batch ABI, version 1: the layout of a function's linear memory. `sdk/function/c/pando_nf.h`
//! is its contract.

pub mod executor;

/// The ABI version that this unit runs.
pub const VERSION: u32 = 1;
/// Maximum packets per call.
pub const BATCH_PACKETS: usize = 32;
/// Maximum bytes of all packets of a call, with their room to grow.
pub const BATCH_BYTES: usize = 128 * 1024;
/// Maximum events that one call may report.
pub const BATCH_EVENTS: usize = 1024;
/// Maximum bytes of state of one flow.
pub const STATE_BYTES_MAX: usize = 4096;
/// Maximum bytes of a function's configuration.
pub const CONFIG_BYTES_MAX: usize = 48 << 20;
/// Length of an Ethernet header. A shorter frame is invalid.
const FRAME_BYTES_MIN: usize = 14;
/// Bytes by which a function may grow a packet.
pub const GROWTH_BYTES: usize = 64;

/// Flags of a packet. The unit sets the first four and the last, the function sets the others.
pub mod flag {
    /// The flow has state.
    pub const STATE_VALID: u32 = 1;
    /// The packet runs against the direction of the flow's first packet.
    pub const REPLY: u32 = 2;
    /// The packet met its flow through the addresses of an earlier output.
    pub const TRANSLATED: u32 = 4;
    /// The unit offers a lease.
    pub const LEASED: u32 = 8;
    /// The function changed the state.
    pub const STATE_PUT: u32 = 16;
    /// The function took the lease.
    pub const LEASE_TAKEN: u32 = 32;
    /// Returns to the output's addresses belong to this flow.
    pub const ALIAS: u32 = 64;
    /// The packet came in at the outer of two devices.
    pub const OUTER: u32 = 128;
}

const PASS: u32 = 1;

const CURRENT: usize = 0;
const EVENT_COUNT: usize = 4;
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 40;
const EVENTS: usize = PACKETS + BATCH_PACKETS * PACKET_BYTES;
const DATA: usize = EVENTS + BATCH_EVENTS * 8;
const DESCRIPTOR_BYTES: usize = 64;

/// A module's description of itself (`struct pando_descriptor`), checked against its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Name, chosen by the author.
    pub name: String,
    /// Bytes of state of one flow.
    pub state_bytes: usize,
    /// Whether each new flow is offered a number of its own.
    pub leases: bool,
    /// Room for the configuration in bytes; 0 if the function takes none.
    pub config_bytes: usize,
    batch: usize,
    slots: usize,
    config: usize,
}

/// Reason why this unit cannot run a module.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// The module is built against another SDK.
    #[error(
        "ABI version {0}, this unit runs version {VERSION}: build it against this unit's pando_nf.h"
    )]
    Version(u32),
    /// The descriptor points outside of the module's memory.
    #[error(
        "its descriptor puts {what} at {offset}+{bytes}, outside of its {memory} bytes of memory"
    )]
    Outside {
        /// The misplaced part.
        what: &'static str,
        /// Its offset according to the descriptor.
        offset: usize,
        /// Its size.
        bytes: usize,
        /// Size of the memory.
        memory: usize,
    },
    /// The function wants more state than a unit keeps per flow.
    #[error("{0} bytes of state per flow, at most {STATE_BYTES_MAX}")]
    State(usize),
    /// The function wants more configuration than a unit provides.
    #[error("{0} bytes of configuration, at most {CONFIG_BYTES_MAX}")]
    Config(usize),
    /// The name is empty, over 35 bytes, not UTF-8, or has control characters.
    #[error("its name is not 1 to 35 bytes of UTF-8 without control characters, and a zero byte")]
    Name,
}

#[inline]
fn u32_at(memory: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(memory[at..at + 4].try_into().expect("4 bytes"))
}

#[inline]
fn set_u32(memory: &mut [u8], at: usize, value: u32) {
    memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

impl Descriptor {
    /// Reads and checks the descriptor at `offset` of `memory`.
    pub fn read(memory: &[u8], offset: usize) -> Result<Descriptor, DescriptorError> {
        let inside = |what, offset: usize, bytes: usize| {
            let fits = offset.checked_add(bytes).is_some_and(|end| end <= memory.len());
            if fits {
                Ok(offset)
            } else {
                Err(DescriptorError::Outside { what, offset, bytes, memory: memory.len() })
            }
        };
        // Check the version first: a descriptor of another version may have another size.
        inside("the descriptor", offset, 4)?;
        let version = u32_at(memory, offset);
        if version != VERSION {
            return Err(DescriptorError::Version(version));
        }
        inside("the descriptor", offset, DESCRIPTOR_BYTES)?;
        let field = |n: usize| u32_at(memory, offset + 4 * n) as usize;
        let (state_bytes, config_bytes) = (field(1), field(5));
        if state_bytes > STATE_BYTES_MAX {
            return Err(DescriptorError::State(state_bytes));
        }
        if config_bytes > CONFIG_BYTES_MAX {
            return Err(DescriptorError::Config(config_bytes));
        }
        let name = &memory[offset + 28..offset + DESCRIPTOR_BYTES];
        let end = name.iter().position(|&b| b == 0).ok_or(DescriptorError::Name)?;
        let name = str::from_utf8(&name[..end]).map_err(|_| DescriptorError::Name)?;
        // Names appear in bills, logs and terminals.
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(DescriptorError::Name);
        }
        Ok(Descriptor {
            name: name.to_owned(),
            state_bytes,
            leases: field(6) != 0,
            config_bytes,
            batch: inside("the batch", field(2), DATA + BATCH_BYTES)?,
            slots: inside("the slots", field(3), BATCH_PACKETS * state_bytes.next_multiple_of(8))?,
            config: inside("the configuration", field(4), config_bytes)?,
        })
    }

    /// Returns the offset of the buffer for the configuration.
    pub fn config_at(&self) -> usize {
        self.config
    }

    /// Returns the offset of a slot of state.
    #[inline]
    pub fn slot(&self, slot: usize) -> usize {
        self.slots + slot * self.state_bytes.next_multiple_of(8)
    }
}

/// One packet as input of a function.
pub struct Input<'a> {
    /// The packet.
    pub frame: &'a [u8],
    /// Slot of its flow's state.
    pub slot: usize,
    /// Sum of [`flag`]s.
    pub flags: u32,
    /// The offered number, or the flow's.
    pub lease: u32,
    /// 1 + index of the flow's packet before this one in the batch, or 0.
    pub earlier: u32,
    /// Time of arrival.
    pub time_ns: u64,
}

/// Writes a batch into the memory of a function.
pub struct Writer<'a> {
    memory: &'a mut [u8],
    descriptor: &'a Descriptor,
    count: usize,
    used_bytes: usize,
}

impl<'a> Writer<'a> {
    /// Begins an empty batch.
    #[inline]
    pub fn new(memory: &'a mut [u8], descriptor: &'a Descriptor) -> Self {
        set_u32(memory, descriptor.batch + CURRENT, 0);
        set_u32(memory, descriptor.batch + EVENT_COUNT, 0);
        Writer { memory, descriptor, count: 0, used_bytes: 0 }
    }

    /// Adds a packet. The caller has checked that it fits.
    #[inline]
    pub fn push(&mut self, input: &Input) {
        let batch = self.descriptor.batch;
        let data = batch + DATA + self.used_bytes;
        let capacity = room_for(input.frame.len());
        let entry = batch + PACKETS + self.count * PACKET_BYTES;
        let slot = self.descriptor.slot(input.slot);
        self.memory[data..data + input.frame.len()].copy_from_slice(input.frame);
        let fields = &mut self.memory[entry..entry + PACKET_BYTES];
        for (n, value) in [
            data as u32,
            input.frame.len() as u32,
            capacity as u32,
            slot as u32,
            input.flags,
            0,
            input.lease,
            input.earlier,
        ]
        .iter()
        .enumerate()
        {
            fields[4 * n..4 * n + 4].copy_from_slice(&value.to_le_bytes());
        }
        fields[32..].copy_from_slice(&input.time_ns.to_le_bytes());
        self.count += 1;
        self.used_bytes += capacity;
    }
}

/// Returns the room for a packet: its length, its room to grow, and padding to whole cache lines.
#[inline]
pub fn room_for(length: usize) -> usize {
    (length + GROWTH_BYTES).next_multiple_of(64)
}

/// The result of a function for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Offset of the packet in the function's memory.
    pub data: usize,
    /// Its length.
    pub length: usize,
    /// Sum of [`flag`]s.
    pub flags: u32,
    /// Whether the packet passes.
    pub pass: bool,
}

/// Reads the result for packet `index`. Offset and room come from the unit, not from the function's
/// memory. An invalid length drops the packet.
#[inline]
pub fn output(
    memory: &[u8],
    descriptor: &Descriptor,
    index: usize,
    data: usize,
    input_length: usize,
) -> Output {
    let entry = descriptor.batch + PACKETS + index * PACKET_BYTES;
    let length = u32_at(memory, entry + 4) as usize;
    let valid = (FRAME_BYTES_MIN..=room_for(input_length)).contains(&length);
    Output {
        data: descriptor.batch + DATA + data,
        length: if valid { length } else { 0 },
        flags: u32_at(memory, entry + 16),
        pass: valid && u32_at(memory, entry + 20) == PASS,
    }
}

/// Returns the events of a batch of `count` packets as (index of the packet, code).
#[inline]
pub fn events<'a>(
    memory: &'a [u8],
    descriptor: &Descriptor,
    count: usize,
) -> impl Iterator<Item = (usize, u32)> + use<'a> {
    let batch = descriptor.batch;
    let reported = (u32_at(memory, batch + EVENT_COUNT) as usize).min(BATCH_EVENTS);
    (0..reported)
        .map(move |n| {
            (
                u32_at(memory, batch + EVENTS + 8 * n) as usize,
                u32_at(memory, batch + EVENTS + 8 * n + 4),
            )
        })
        .filter(move |(index, _)| *index < count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_descriptor_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            offset in 0..300usize,
            version: bool,
        ) {
            let mut bytes = bytes;
            if version && offset + 4 <= bytes.len() {
                set_u32(&mut bytes, offset, VERSION);
            }
            if let Ok(d) = Descriptor::read(&bytes, offset) {
                prop_assert!(d.config + d.config_bytes <= bytes.len());
            }
        }
    }

    #[test]
    fn a_name_is_one_word_of_a_bill() {
        let read = |name: &[u8]| {
            let mut memory = vec![0; DESCRIPTOR_BYTES + DATA + BATCH_BYTES];
            set_u32(&mut memory, 0, VERSION);
            memory[28..28 + name.len()].copy_from_slice(name);
            Descriptor::read(&memory, 0).map(|d| d.name)
        };
        assert_eq!(read("prüfer 1".as_bytes()), Ok("prüfer 1".into()));
        for bad in
            [&b""[..], b"a\nb", b"\x1b[2J", b"a\x7f", "a\u{9b}1m".as_bytes(), b"\xff", &[b'a'; 36]]
        {
            assert_eq!(read(bad), Err(DescriptorError::Name), "{bad:?}");
        }
    }

    #[test]
    fn the_header_file_says_the_same() {
        let header = include_str!("../../../sdk/function/c/pando_nf.h");
        for (name, value) in [
            ("PANDO_ABI", 1),
            ("PANDO_BATCH_PACKETS", BATCH_PACKETS),
            ("PANDO_BATCH_EVENTS", BATCH_EVENTS),
            ("PANDO_STATE_BYTES_MAX", STATE_BYTES_MAX),
        ] {
            assert!(
                header.contains(&format!("#define {name} {value}\n")),
                "{name} is not {value} in pando_nf.h"
            );
        }
    }
}
