//! What it takes to push states ahead, as units count it: the messages that they would send, byte by byte.

use pando_protocol::flow::End;
use pando_protocol::message::{Snapshot, fingerprint};
use pando_protocol::{FlowKey, Message};

/// What a function keeps of a flow.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// As a unit writes it down.
    pub bytes: usize,
    /// Whether each packet makes another one of it, or only the first.
    pub changes: bool,
}

impl State {
    /// The NAT's: a head, the alias, the lease, and what the function keeps; written once.
    pub const DEFAULT: State = State { bytes: 23, changes: false };

    /// A push of a flow of IPv4, whole or to a unit that has the state.
    fn push_bytes(&self, epoch: u32, clock: u64, whole: bool) -> u64 {
        let (key, _) = FlowKey::between(End::new(&[10, 0, 0, 1], [4, 0]), End::new(&[10, 0, 0, 2], [0, 53]), 17, 4);
        let (holes, state, mut bytes) = (0, Snapshot::from_iter((0..self.bytes).map(|_| 0)), Vec::new());
        let print = fingerprint(&state);
        if whole {
            Message::Push { key, epoch, clock, holes, state }.encode(&mut bytes);
        } else {
            Message::Unchanged { key, epoch, clock, holes, print }.encode(&mut bytes);
        }
        bytes.len() as u64
    }
}

/// Which units have a flow's state, as far as each of them knows that has owned it: a bit for each.
#[derive(Debug, Default)]
pub(crate) struct Known(Vec<(u16, u64)>);

impl Known {
    fn of(&mut self, unit: u16) -> &mut u64 {
        let at = self.0.iter().position(|(of, _)| *of == unit).unwrap_or_else(|| {
            self.0.push((unit, 0));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// A unit gives the state to others, and knows that they have it, as they know of it.
    pub(crate) fn give(&mut self, from: u16, to: u64) {
        *self.of(from) |= to;
        for unit in (0..u64::BITS as u16).filter(|unit| to >> unit & 1 == 1) {
            *self.of(unit) |= 1 << from;
        }
    }

    /// The bytes of a push, to all targets together.
    pub(crate) fn push(&mut self, state: &State, from: u16, to: u64, epoch: u32, clock: u64) -> u64 {
        let has = if state.changes { 0 } else { to & *self.of(from) };
        self.give(from, to);
        let count = |units: u64, whole| u64::from(units.count_ones()) * state.push_bytes(epoch, clock, whole);
        count(to & !has, true) + count(has, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_does_not_change_goes_whole_to_who_has_not_got_it() {
        let (whole, print) = (17 + 23, 16 + 4);
        let mut known = Known::default();
        let mut push = |from, to| known.push(&State::DEFAULT, from, to, 1, 1);
        assert_eq!(push(0, 0b0110), 2 * whole);
        assert_eq!(push(0, 0b1010), print + whole);
        assert_eq!(push(1, 0b1001), print + whole, "who gave it to it has it; of the fourth it knows nothing");
        known.give(2, 0b1000); // pulled
        assert_eq!(known.push(&State::DEFAULT, 3, 0b0101, 1, 1), 2 * print);
        let changes = State { changes: true, ..State::DEFAULT };
        assert_eq!(known.push(&changes, 3, 0b0101, 1, 200), 2 * (whole + 1));
    }
}
