//! Reads a dead unit's last writes to its log from the memory that unit and log share. The standby
//! reads them itself: it need not wake another process or wait for a processor while the kernel
//! tears down the dead process.
//!
//! ```text
//!   memory of the unit's link:  … │ batch n │ n + 1 │ … │ the last │ (half written)
//!                                 ▲
//!   the standby has everything up to batch n, by the log's last message
//! ```
//!
//! A message that the log has read stays in the ring until the unit writes over it. The standby
//! first looks for batch `n` itself. If batch `n` is there, all later batches are there. The
//! memory is then also the right one: a unit that lost its log continues in another memory.

use std::borrow::Cow;

use pando_abi::executor::Executor;
use pando_chain::Chain;

use super::record::{Head, Malformed, Mark, Parts, Reader, kind};
use super::ring::Ring;

/// Returns the batches from the mark's batch to the last; none if any is missing. `appended` is the
/// last batch that the unit surely wrote.
fn batches<'a>(ring: &'a Ring, mark: &Mark, appended: u64) -> Vec<Cow<'a, [u8]>> {
    let (mut found, mut sequence) = (Vec::new(), mark.sequence);
    let Some(mut at) = mark.position.filter(|&at| ring.keeps(at)) else { return found };
    loop {
        match ring.look(at) {
            Ok(Some((message, next))) if is_batch(&message, mark.epoch, sequence) => {
                (at, sequence) = (next, sequence + 1);
                found.push(message);
            }
            Ok(None) if sequence > appended => return found,
            _ => return Vec::new(),
        }
    }
}

fn is_batch(message: &[u8], epoch: u32, sequence: u64) -> bool {
    let mut reader = Reader(message);
    reader.u8() == Ok(kind::BATCH)
        && reader.head().is_ok_and(|(head, _)| (head.epoch, head.sequence) == (epoch, sequence))
}

/// Applies to the flows all batches after the mark. Returns the last batch with its packets.
/// Returns `None` if the log has to be asked; it then sends all changes since the mark.
pub fn replay<E: Executor>(
    ring: &Ring,
    mark: &Mark,
    appended: u64,
    chain: &mut Chain<E>,
    now_ns: u64,
) -> Option<(Head, Vec<Vec<u8>>)> {
    let batches = batches(ring, mark, appended);
    batches.iter().skip(1).try_for_each(|message| batch(chain, message, now_ns)).ok()?;
    last(batches.last()?).ok()
}

/// Applies one batch to the flows.
pub fn batch<E: Executor>(
    chain: &mut Chain<E>,
    message: &[u8],
    now_ns: u64,
) -> Result<(), Malformed> {
    let mut reader = Reader(message);
    reader.u8()?;
    let (_, [forgotten, changed, _]) = reader.head()?;
    (0..forgotten).try_for_each(|_| reader.key().map(|key| chain.release(&key)))?;
    chain.replay(reader, changed, now_ns)
}

/// Reads head and packets of a batch.
pub fn last(message: &[u8]) -> Result<(Head, Vec<Vec<u8>>), Malformed> {
    let mut reader = Reader(message);
    reader.u8()?;
    let (head, [forgotten, changed, packets]) = reader.head()?;
    (0..forgotten).try_for_each(|_| reader.key().map(drop))?;
    for _ in 0..changed {
        let key = reader.key()?;
        let flow = reader.flow(key)?;
        (0..flow.changed.count_ones()).try_for_each(|_| reader.skip_state())?;
    }
    let packets =
        (0..packets).map(|_| Ok(reader.packet()?.to_vec())).collect::<Result<_, Malformed>>()?;
    Ok((head, packets))
}
