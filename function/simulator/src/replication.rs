//! The cost of pushing state ahead. It counts the bytes of the messages that units would send.

use pando_flow::{End, FlowKey};
use pando_handover::Message;
use pando_handover::message::{Snapshot, fingerprint};

/// The state that a function keeps per flow.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Its size as a unit encodes it.
    pub bytes: usize,
    /// Whether each packet changes it, or only the first.
    pub changes: bool,
}

impl State {
    /// The NAT's state: a head, the alias, the lease and the function's data; written once.
    pub const DEFAULT: State = State { bytes: 23, changes: false };

    /// Returns the bytes of a push for an IPv4 flow. `whole` is false if the target has the state.
    fn push_bytes(&self, epoch: u32, clock: u64, whole: bool) -> u64 {
        let (key, _) = FlowKey::between(
            End::new(&[10, 0, 0, 1], [4, 0]),
            End::new(&[10, 0, 0, 2], [0, 53]),
            17,
            4,
        );
        let (holes, state, mut bytes) =
            (0, Snapshot::from_iter((0..self.bytes).map(|_| 0)), Vec::new());
        let print = fingerprint(&state);
        if whole {
            Message::Push { key, epoch, clock, holes, state }.encode(&mut bytes);
        } else {
            Message::Unchanged { key, epoch, clock, holes, print }.encode(&mut bytes);
        }
        bytes.len() as u64
    }
}

/// For each unit that has owned the flow, the set of units that it believes have the state.
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

    /// A unit gives the state to others. Giver and receivers record each other as holders.
    pub(crate) fn give(&mut self, from: u16, to: u64) {
        *self.of(from) |= to;
        for unit in (0..u64::BITS as u16).filter(|unit| to >> unit & 1 == 1) {
            *self.of(unit) |= 1 << from;
        }
    }

    /// Returns the bytes of a push to all targets together.
    pub(crate) fn push(
        &mut self,
        state: &State,
        from: u16,
        to: u64,
        epoch: u32,
        clock: u64,
    ) -> u64 {
        let has = if state.changes { 0 } else { to & *self.of(from) };
        self.give(from, to);
        let count = |units: u64, whole| {
            u64::from(units.count_ones()) * state.push_bytes(epoch, clock, whole)
        };
        count(to & !has, true) + count(has, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_state_goes_whole_only_to_a_unit_without_it() {
        let (whole, print) = (17 + 23, 16 + 4);
        let mut known = Known::default();
        let mut push = |from, to| known.push(&State::DEFAULT, from, to, 1, 1);
        assert_eq!(push(0, 0b0110), 2 * whole);
        assert_eq!(push(0, 0b1010), print + whole);
        assert_eq!(
            push(1, 0b1001),
            print + whole,
            "the givers have the state; the fourth unit has none"
        );
        known.give(2, 0b1000); // pulled
        assert_eq!(known.push(&State::DEFAULT, 3, 0b0101, 1, 1), 2 * print);
        let changes = State { changes: true, ..State::DEFAULT };
        assert_eq!(known.push(&changes, 3, 0b0101, 1, 200), 2 * (whole + 1));
    }
}
