//! The messages between a unit and its log. All numbers are little endian; a message begins with
//! its kind.

use pando_chain::Work;
pub use pando_chain::codec::{FlowHead, Malformed, Reader, put_flow, put_state};
use pando_chain::flows::STAGES_MAX;

use super::Positions;

/// Kinds of messages.
pub mod kind {
    /// Unit → log: introduces the unit.
    pub const HELLO: u8 = 1;
    /// Unit → log: the results of one batch.
    pub const BATCH: u8 = 2;
    /// Either way: forget everything. The whole state follows in [`FLOWS`] and is complete with the
    /// next [`BATCH`].
    pub const CLEAR: u8 = 3;
    /// Either way: some flows with all their state.
    pub const FLOWS: u8 = 4;
    /// Standby → log: the unit is dead and I take over; send me everything that I lack.
    pub const TAKE: u8 = 5;
    /// Log → standby: end of the flows, with their number. The last [`BATCH`] follows if the state
    /// is whole.
    pub const TAKEN: u8 = 6;
    /// Log → unit: applied up to this sequence. Used only where a sent message is not kept at once.
    pub const APPLIED: u8 = 7;
    /// Standby → log: send me the unit's changes in [`CLEAR`], [`FORGET`] and [`FLOWS`], then
    /// [`EVEN`].
    pub const FOLLOW: u8 = 8;
    /// Log → standby: these flows are gone, or start anew with the next [`FLOWS`].
    pub const FORGET: u8 = 9;
    /// Log → standby: you have everything up to this batch.
    pub const EVEN: u8 = 10;
    /// Standby → log: the unit is dead, I have everything that it wrote, and I continue from there.
    pub const GO_ON: u8 = 11;
    /// Unit → log: my run begins. Send me the state of the run before mine, as after [`TAKE`]. The
    /// log answers when that run has no link any more. With a second byte 0, I have a newer state,
    /// and the log sends none.
    pub const ADOPT: u8 = 12;
    /// Unit → log: I was ordered to end, so forget my state.
    pub const END: u8 = 13;
}

/// Introduces a unit or standby to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The run that the unit belongs to, a random number. Epochs of different runs have no
    /// order.
    pub run: u64,
    /// A digest of the functions and their configuration. No other chain can use the state.
    pub chain: u64,
    /// Epoch of the unit.
    pub epoch: u32,
    /// State of a flow at each stage of the chain, in bytes.
    pub state_bytes: Vec<usize>,
    /// Tenant and name of the unit.
    pub unit: String,
}

/// The head of one batch, or of the batch that ends a whole state. Its flows and packets follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Epoch of the unit.
    pub epoch: u32,
    /// Batches so far.
    pub sequence: u64,
    /// Positions in the rings of the devices after the batch.
    pub positions: Positions,
    /// The device that sends the packets.
    pub port: u8,
    /// Totals of the bill after the batch, per stage.
    pub totals: Vec<Work>,
}

/// The last batch that a standby has completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Epoch of the unit.
    pub epoch: u32,
    /// Number of the batch.
    pub sequence: u64,
    /// Its start in the unit's memory; `None` if that memory does not outlive the unit.
    pub position: Option<u64>,
}

impl Mark {
    /// Encodes the mark as a [`kind::EVEN`].
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![kind::EVEN];
        message.extend_from_slice(&self.epoch.to_le_bytes());
        message.extend_from_slice(&self.sequence.to_le_bytes());
        self.position
            .iter()
            .for_each(|position| message.extend_from_slice(&position.to_le_bytes()));
        message
    }
}

/// Begins a batch; returns where [`set_counts`] puts its counts.
pub fn put_head(into: &mut Vec<u8>, head: &Head) -> usize {
    into.push(kind::BATCH);
    into.extend_from_slice(&head.epoch.to_le_bytes());
    for word in [head.sequence, head.positions[0], head.positions[1]] {
        into.extend_from_slice(&word.to_le_bytes());
    }
    into.extend_from_slice(&[head.port, head.totals.len() as u8]);
    for work in &head.totals {
        for word in [work.packets, work.bytes, work.fuel, work.trapped] {
            into.extend_from_slice(&word.to_le_bytes());
        }
    }
    let at = into.len();
    into.extend_from_slice(&[0; 12]);
    at
}

/// Sets the numbers of forgotten flows, changed flows and outgoing packets.
pub fn set_counts(message: &mut [u8], at: usize, counts: [usize; 3]) {
    for (n, count) in counts.into_iter().enumerate() {
        message[at + 4 * n..][..4].copy_from_slice(&(count as u32).to_le_bytes());
    }
}

/// Writes an outgoing packet.
pub fn put_packet(into: &mut Vec<u8>, frame: &[u8]) {
    into.extend_from_slice(&(frame.len() as u32).to_le_bytes());
    into.extend_from_slice(frame);
}

impl Hello {
    /// Encodes the introduction as a message.
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![kind::HELLO, VERSION];
        message.extend_from_slice(&self.run.to_le_bytes());
        message.extend_from_slice(&self.chain.to_le_bytes());
        message.extend_from_slice(&self.epoch.to_le_bytes());
        message.push(self.state_bytes.len() as u8);
        for bytes in &self.state_bytes {
            message.extend_from_slice(&(*bytes as u32).to_le_bytes());
        }
        message.extend_from_slice(self.unit.as_bytes());
        message
    }
}

/// The longest tenant and name of a unit, with the stroke between them.
const UNIT_BYTES_MAX: usize = 127;
/// Version of these messages.
const VERSION: u8 = 6;

/// Reads the parts of a message.
pub trait Parts<'a> {
    /// Reads a [`Hello`], after its kind.
    fn hello(&mut self) -> Result<Hello, Malformed>;
    /// Reads a [`Head`] and its three counts, after its kind.
    fn head(&mut self) -> Result<(Head, [usize; 3]), Malformed>;
    /// Reads a [`Mark`], after its kind.
    fn mark(&mut self) -> Result<Mark, Malformed>;
    /// Reads a packet.
    fn packet(&mut self) -> Result<&'a [u8], Malformed>;
}

impl<'a> Parts<'a> for Reader<'a> {
    fn hello(&mut self) -> Result<Hello, Malformed> {
        if self.u8()? != VERSION {
            return Err(Malformed);
        }
        let (run, chain, epoch) = (self.u64()?, self.u64()?, self.u32()?);
        let stages = usize::from(self.u8()?);
        if stages > STAGES_MAX {
            return Err(Malformed);
        }
        let state_bytes =
            (0..stages).map(|_| Ok(self.u32()? as usize)).collect::<Result<Vec<_>, _>>()?;
        if state_bytes.iter().any(|&b| b > pando_abi::STATE_BYTES_MAX) {
            return Err(Malformed);
        }
        if self.0.len() > UNIT_BYTES_MAX {
            return Err(Malformed);
        }
        let unit = str::from_utf8(self.0).map_err(|_| Malformed)?.to_owned();
        Ok(Hello { run, chain, epoch, state_bytes, unit })
    }

    fn head(&mut self) -> Result<(Head, [usize; 3]), Malformed> {
        let epoch = self.u32()?;
        let (sequence, positions) = (self.u64()?, [self.u64()?, self.u64()?]);
        let (port, stages) = (self.u8()?, self.u8()?);
        if usize::from(stages) > STAGES_MAX || port > 1 {
            return Err(Malformed);
        }
        let work = |r: &mut Self| {
            Ok(Work { packets: r.u64()?, bytes: r.u64()?, fuel: r.u64()?, trapped: r.u64()? })
        };
        let totals = (0..stages).map(|_| work(self)).collect::<Result<_, _>>()?;
        let counts = [self.u32()? as usize, self.u32()? as usize, self.u32()? as usize];
        Ok((Head { epoch, sequence, positions, port, totals }, counts))
    }

    fn mark(&mut self) -> Result<Mark, Malformed> {
        let (epoch, sequence) = (self.u32()?, self.u64()?);
        Ok(Mark {
            epoch,
            sequence,
            position: if self.0.is_empty() { None } else { Some(self.u64()?) },
        })
    }

    fn packet(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.bytes(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..5)
    }

    fn work() -> impl Strategy<Value = Work> {
        any::<[u64; 4]>().prop_map(|[packets, bytes, fuel, trapped]| Work {
            packets,
            bytes,
            fuel,
            trapped,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        /// A head and its packets are read as they were written. Cut off anywhere, they are
        /// refused.
        #[test]
        fn a_batch_is_read_as_it_was_written(
            numbers: [u64; 3],
            epoch: u32,
            port in 0..2u8,
            totals in proptest::collection::vec(work(), 0..=STAGES_MAX),
            packets in packets(),
        ) {
            let [sequence, one, other] = numbers;
            let head = Head { epoch, sequence, positions: [one, other], port, totals };
            let mut message = Vec::new();
            let at = put_head(&mut message, &head);
            packets.iter().for_each(|packet| put_packet(&mut message, packet));
            set_counts(&mut message, at, [0, 0, packets.len()]);
            let read = |bytes: &[u8]| {
                let mut reader = Reader(bytes);
                reader.u8()?;
                let (head, [_, _, count]) = reader.head()?;
                let packets: Result<Vec<Vec<u8>>, Malformed> =
                    (0..count).map(|_| Ok(reader.packet()?.to_vec())).collect();
                Ok((head, packets?, reader.0.len()))
            };
            for cut in 0..message.len() {
                prop_assert_eq!(read(&message[..cut]), Err(Malformed), "{} bytes", cut);
            }
            prop_assert_eq!(read(&message), Ok((head, packets, 0)));
        }

        #[test]
        fn an_introduction_is_read_as_it_was_written(
            run: u64,
            chain: u64,
            epoch: u32,
            state_bytes in proptest::collection::vec(0..=4096usize, 0..=STAGES_MAX),
            unit in "[a-zé]{0,20}/[a-z0-9.]{0,20}",
            position: Option<u64>,
            sequence: u64,
        ) {
            let hello = Hello { run, chain, epoch, state_bytes, unit };
            prop_assert_eq!(Reader(&hello.encode()[1..]).hello(), Ok(hello));
            let mark = Mark { epoch, sequence, position };
            prop_assert_eq!(Reader(&mark.encode()[1..]).mark(), Ok(mark));
        }
    }

    /// Numbers beyond a unit's bounds are refused before memory is taken for them.
    #[test]
    fn introductions_and_heads_beyond_bounds_are_refused() {
        let hello = |state_bytes: Vec<usize>| {
            let (run, chain, unit) = (1, 1, "u".into());
            Hello { run, chain, epoch: 1, state_bytes, unit }.encode()[1..].to_vec()
        };
        let refused = |bytes: &[u8]| assert_eq!(Reader(bytes).hello(), Err(Malformed));
        refused(&hello(vec![pando_abi::STATE_BYTES_MAX + 1]));
        refused(&hello(vec![1; STAGES_MAX + 1]));
        let mut older = hello(vec![8]);
        older[0] -= 1;
        refused(&older);
        refused(&[&hello(vec![8])[..], &[0xff]].concat());
        for (port, stages) in [(2, 0), (0, STAGES_MAX + 1)] {
            let mut message = Vec::new();
            let totals = vec![Work::default(); stages];
            put_head(&mut message, &Head { port, totals, ..Head::default() });
            assert_eq!(Reader(&message[1..]).head(), Err(Malformed));
        }
    }
}
