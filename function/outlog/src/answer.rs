//! Messages of a log with state: their effect on the flows, and the end of a state that the log
//! hands over.

use std::io::{self, ErrorKind};

use pando_abi::executor::Executor;
use pando_chain::Chain;

use super::record::{Head, Malformed, Mark, Parts, Reader, kind};
use super::tail;

/// Applies a message of the log to the flows. Returns the batch that the flows now contain, if the
/// message is an [`kind::EVEN`].
pub fn follow<E: Executor>(
    chain: &mut Chain<E>,
    message: &[u8],
) -> Result<Option<Mark>, Malformed> {
    let mut reader = Reader(message);
    match reader.u8()? {
        kind::CLEAR => chain.release_all(),
        kind::FORGET => {
            (0..reader.u32()?).try_for_each(|_| reader.key().map(|key| chain.release(&key)))?
        }
        kind::FLOWS => drop(restore(chain, reader, now_ns())?),
        kind::EVEN => return reader.mark().map(Some),
        _ => return Err(Malformed),
    }
    Ok(None)
}

/// The state that a log handed over.
pub(super) struct Taken {
    pub(super) flows: usize,
    /// The last batch, its counts read, and its packets.
    pub(super) last: Option<(Head, Vec<Vec<u8>>)>,
}

impl Taken {
    /// Fails if the last batch came before the batch `sent`, which left without a log.
    pub(super) fn newest(self, sent: u64) -> io::Result<Taken> {
        let is_older = self.last.as_ref().is_some_and(|(head, _)| head.sequence < sent);
        if is_older { Err(io::Error::other("the log has an older state")) } else { Ok(self) }
    }
}

/// The answer of a log that hands a state over.
#[derive(Default)]
pub(super) struct Answer {
    /// The number of flows, when all of them are there and the last batch follows.
    flows: Option<usize>,
}

impl Answer {
    /// Applies the next message to the flows. Returns the result with the last message.
    pub(super) fn read<E: Executor>(
        &mut self,
        chain: &mut Chain<E>,
        message: &[u8],
    ) -> Result<Option<Taken>, Malformed> {
        let mut reader = Reader(message);
        match (reader.u8()?, self.flows) {
            (kind::TAKEN, None) => {
                let (whole, flows) = (reader.u8()? == 1, reader.u32()? as usize);
                self.flows = Some(flows);
                Ok((!whole).then_some(Taken { flows: 0, last: None }))
            }
            (kind::BATCH, Some(flows)) => {
                Ok(Some(Taken { flows, last: Some(tail::last(message)?) }))
            }
            (_, None) => follow(chain, message).map(|_| None),
            _ => Err(Malformed),
        }
    }
}

/// Puts flows into the chain as their unit had them; returns how many.
pub fn restore<E: Executor>(
    chain: &mut Chain<E>,
    mut reader: Reader,
    now_ns: u64,
) -> Result<usize, Malformed> {
    let count = reader.u32()? as usize;
    // Flows beyond this unit's room are forgotten, as in the unit that died.
    (0..count).try_for_each(|_| chain.restore(&mut reader, now_ns))?;
    Ok(count)
}

pub(super) fn now_ns() -> u64 {
    pando_net::clock::now().as_nanos() as u64
}

pub(super) fn malformed(e: Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, e)
}
