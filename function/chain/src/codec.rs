//! A flow as bytes, in the messages of the output log and of a group. All numbers are little
//! endian.

use pando_flow::{End, FlowKey};

use crate::ends::Ends;
use crate::flows::STAGES_MAX;
pub use crate::zeros::put_state;

/// The error of a malformed message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message of the output log is cut off or contradicts itself: are unit and log of the same \
     version?"
)]
pub struct Malformed;

/// The fixed part of a flow; the state of its stages follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowHead {
    /// The flow's key.
    pub key: FlowKey,
    /// The key of returning packets.
    pub alias: Option<FlowKey>,
    /// The first packet went up.
    pub up: bool,
    /// Bit per stage: has state.
    pub valid: u8,
    /// Bit per stage: took a lease.
    pub taken: u8,
    /// Bit per stage: its state follows.
    pub changed: u8,
    /// Lease of each stage that took one.
    pub leases: [u32; STAGES_MAX],
    /// How far the end of its connection has come.
    pub ends: Ends,
}

/// Writes a flow without its state, including its key.
pub fn put_flow(into: &mut Vec<u8>, flow: &FlowHead) {
    into.extend_from_slice(flow.key.as_bytes());
    flow.encode(into);
}

/// Flags of a flow.
mod of {
    pub const UP: u8 = 1;
    /// Two bits: the form of the alias, one of the following.
    pub const ALIAS: u8 = 6;
    /// Only the end that differs from the key; the key's lower end stays …
    pub const LOW: u8 = 2;
    /// … or its higher end.
    pub const HIGH: u8 = 4;
    pub const WHOLE: u8 = 6;
    /// The states that follow are not exactly those that the flow has.
    pub const SOME: u8 = 8;
    /// From this bit on: the observed end of the connection.
    pub const ENDS_AT: u8 = 4;
}

/// Bytes of one end of a key.
const END: usize = 18;

/// Returns the bytes of an address of this IP version.
fn address_bytes(version: u8) -> usize {
    if version == 4 { 4 } else { 16 }
}

impl FlowHead {
    /// Writes the flow without its key, as in messages of the log and of a group.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let at = into.len();
        let some = self.changed != self.valid;
        let up = if self.up { of::UP } else { 0 } | self.ends.bits() << of::ENDS_AT;
        into.extend_from_slice(&[if some { up | of::SOME } else { up }, self.valid, self.taken]);
        if some {
            into.push(self.changed);
        }
        if let Some(alias) = &self.alias {
            into[at] |= self.put_alias(into, alias);
        }
        for stage in (0..STAGES_MAX).filter(|s| self.taken & 1 << s != 0) {
            into.extend_from_slice(&self.leases[stage].to_le_bytes());
        }
    }

    fn put_alias(&self, into: &mut Vec<u8>, alias: &FlowKey) -> u8 {
        let (key, alias) = (self.key.as_bytes(), alias.as_bytes());
        let (ends, address) =
            ([&alias[..END], &alias[END..2 * END]], address_bytes(key[2 * END + 1]));
        for (flag, kept) in [(of::LOW, &key[..END]), (of::HIGH, &key[END..2 * END])] {
            for (one, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                if one == kept
                    && key[2 * END..] == alias[2 * END..]
                    && other[address..END - 2].iter().all(|&byte| byte == 0)
                {
                    into.extend_from_slice(&other[..address]);
                    into.extend_from_slice(&other[END - 2..]);
                    return flag;
                }
            }
        }
        into.extend_from_slice(alias);
        of::WHOLE
    }
}

/// Reads a message from its start.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (now, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(now)
    }

    /// Reads an array of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.bytes(N)?.try_into().expect("N bytes"))
    }

    /// Reads a byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes(1)?[0])
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a key.
    pub fn key(&mut self) -> Result<FlowKey, Malformed> {
        Ok(FlowKey::from_bytes(self.array()?))
    }

    /// Reads a flow without its state, after its key.
    pub fn flow(&mut self, key: FlowKey) -> Result<FlowHead, Malformed> {
        let [flags, valid, taken] = self.array()?;
        let changed = if flags & of::SOME != 0 { self.u8()? } else { valid };
        let alias = match flags & of::ALIAS {
            0 => None,
            of::WHOLE => Some(self.key()?),
            kept => Some(self.alias(&key, if kept == of::LOW { 0 } else { END })?),
        };
        let mut leases = [0; STAGES_MAX];
        for (stage, lease) in leases.iter_mut().enumerate() {
            if taken & 1 << stage != 0 {
                *lease = self.u32()?;
            }
        }
        let ends = Ends::from_bits(flags >> of::ENDS_AT);
        Ok(FlowHead { key, alias, up: flags & of::UP != 0, valid, taken, changed, leases, ends })
    }

    /// Reads an alias that shares the key's end at offset `kept`.
    fn alias(&mut self, key: &FlowKey, kept: usize) -> Result<FlowKey, Malformed> {
        let bytes = key.as_bytes();
        let (kept, [protocol, version]) =
            (&bytes[kept..kept + END], [bytes[2 * END], bytes[2 * END + 1]]);
        let other = End::new(self.bytes(address_bytes(version))?, self.array()?);
        Ok(FlowKey::between(
            End::new(&kept[..END - 2], [kept[END - 2], kept[END - 1]]),
            other,
            protocol,
            version,
        )
        .0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An alias that differs from the key in one end only is written as that end.
    #[test]
    fn a_flow_is_read_as_it_was_written() {
        let end = |n: u8, bytes: usize| End::new(&[n; 16][..bytes], [n, n]);
        let key = |a: End, b: End, version: u8| FlowKey::between(a, b, 17, version).0;
        for (version, bytes) in [(4, 4), (6, 16)] {
            let flow = key(end(10, bytes), end(20, bytes), version);
            let aliases = [
                (None, 0),
                (Some(key(end(30, bytes), end(20, bytes), version)), bytes + 2),
                (Some(key(end(10, bytes), end(15, bytes), version)), bytes + 2),
                (Some(key(end(10, bytes), end(5, bytes), version)), bytes + 2),
                (Some(key(end(1, bytes), end(2, bytes), version)), FlowKey::LENGTH_BYTES),
                (
                    Some(FlowKey::between(end(30, bytes), end(20, bytes), 6, version).0),
                    FlowKey::LENGTH_BYTES,
                ),
            ];
            for (n, (alias, alias_bytes)) in aliases.into_iter().enumerate() {
                let (taken, changed, leases) =
                    (n as u8 & 1, 2 + (n as u8 & 1), [7, 0, 0, 0, 0, 0, 0, 0]);
                let leases = if taken == 1 { leases } else { [0; STAGES_MAX] };
                let head = FlowHead {
                    key: flow,
                    alias,
                    up: n % 2 == 0,
                    valid: 2,
                    taken,
                    changed,
                    leases,
                    ends: Ends::from_bits(n as u8),
                };
                let mut bytes = Vec::new();
                head.encode(&mut bytes);
                put_state(&mut bytes, &[1, 2, 0, 0]);
                assert_eq!(
                    bytes.len(),
                    3 + usize::from(changed != 2) + alias_bytes + 4 * usize::from(taken) + 4
                );
                let (mut reader, mut state) = (Reader(&bytes), [9; 4]);
                assert_eq!(reader.flow(flow).as_ref(), Ok(&head));
                assert_eq!(
                    (reader.state(&mut state), state, reader.0.len()),
                    (Ok(()), [1, 2, 0, 0], 0)
                );
            }
        }
    }
}
