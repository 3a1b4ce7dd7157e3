//! What a unit wrote to its log last, read by its standby from the memory that unit and log share: nobody has to be woken for it,
//! or to find a processor while the dead process is taken down.
//!
//! ```text
//!   memory of the unit's link:  … │ batch n │ n + 1 │ … │ the last │ (half written)
//!                                 ▲
//!   the standby has all up to batch n, by what the log told it last
//! ```
//!
//! The log takes what it has read out of the ring, but it stays there until the unit writes over it. Batch `n` itself is looked
//! at first: if it is there, so is all behind it, and it is the right memory, for a unit that lost its log goes on in another.

use std::borrow::Cow;

use super::record::{Head, Malformed, Mark, Reader, kind};
use super::ring::Ring;
use crate::chain::Chain;
use crate::executor::Executor;

/// The batches from the one that the mark names to the last; none when they are not all there. `appended` is the last that
/// the unit is known to have written.
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
    reader.u8() == Ok(kind::BATCH) && reader.head().is_ok_and(|(head, _)| (head.epoch, head.sequence) == (epoch, sequence))
}

/// Does to the flows what the unit did to them behind the mark. The last batch, with its packets; `None` when the log has to be
/// asked, which then tells all that changed since the mark.
pub fn replay<E: Executor>(ring: &Ring, mark: &Mark, appended: u64, chain: &mut Chain<E>, now_ns: u64) -> Option<(Head, Vec<Vec<u8>>)> {
    let batches = batches(ring, mark, appended);
    batches.iter().skip(1).try_for_each(|message| batch(chain, message, now_ns)).ok()?;
    last(batches.last()?).ok()
}

/// Does to the flows what a batch did to them.
pub fn batch<E: Executor>(chain: &mut Chain<E>, message: &[u8], now_ns: u64) -> Result<(), Malformed> {
    let mut reader = Reader(message);
    reader.u8()?;
    let (_, [forgotten, changed, _]) = reader.head()?;
    (0..forgotten).try_for_each(|_| reader.key().map(|key| chain.release(&key)))?;
    chain.replay(reader, changed, now_ns)
}

/// Head and packets of a batch.
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
    let packets = (0..packets).map(|_| Ok(reader.packet()?.to_vec())).collect::<Result<_, Malformed>>()?;
    Ok((head, packets))
}
