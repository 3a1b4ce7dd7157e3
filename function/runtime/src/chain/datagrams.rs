//! The packets of a batch that came as fragments: whole for the functions, and as fragments again behind them.

use crate::chain::Arrival;
use crate::fragments::{Complete, Fragments, Taken};

/// The frames that go on for one packet that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames<'a> {
    one: Option<&'a [u8]>,
    parts: &'a [Vec<u8>],
}

impl<'a> Frames<'a> {
    pub(super) fn one(frame: &'a [u8]) -> Frames<'a> {
        Frames { one: (!frame.is_empty()).then_some(frame), parts: &[] }
    }

    /// Each of them: none, one, or the fragments of a datagram.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.one.into_iter().chain(self.parts.iter().map(Vec::as_slice))
    }

    /// All of them in one piece, to compare.
    pub fn concat(self) -> Vec<u8> {
        self.iter().collect::<Vec<_>>().concat()
    }
}

struct Whole {
    index: usize,
    datagram: Complete,
    parts: Vec<Vec<u8>>,
}

/// What waits for fragments, and what of the batch at work came as such.
#[derive(Default)]
pub(super) struct Datagrams {
    waiting: Fragments,
    /// Complete, and first in the next batch: this one had no room for it.
    next: Option<Complete>,
    batch: Vec<Whole>,
}

impl Datagrams {
    /// A new batch begins.
    pub fn clear(&mut self) {
        self.batch.clear();
    }

    /// Takes a packet that came, and says what is to be processed in its place.
    pub fn take(&mut self, arrival: &Arrival) -> Taken {
        match self.next.take() {
            Some(complete) => Taken::Complete(complete),
            None => self.waiting.take(arrival.frame, arrival.time_ns),
        }
    }

    /// The batch has no room for a datagram: it comes first in the next one.
    pub fn postpone(&mut self, datagram: Complete) {
        self.next = Some(datagram);
    }

    /// The packet `index` of the batch is this datagram.
    pub fn admit(&mut self, index: usize, datagram: Complete) {
        self.batch.push(Whole { index, datagram, parts: Vec::new() });
    }

    fn find(&self, index: usize) -> Option<&Whole> {
        self.batch.iter().find(|w| w.index == index)
    }

    /// What functions see as the packet `index`.
    pub fn frame<'a>(&'a self, arrivals: &'a [Arrival], index: usize) -> &'a [u8] {
        self.find(index).map_or(arrivals[index].frame, |w| &w.datagram.frame)
    }

    /// Packets of the batch that came as fragments.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let indices: Vec<usize> = self.batch.iter().map(|w| w.index).collect();
        indices.into_iter()
    }

    /// What comes out for `index` in one piece goes on as fragments.
    pub fn set_parts(&mut self, index: usize, split: impl FnOnce(&Complete) -> Vec<Vec<u8>>) {
        if let Some(whole) = self.batch.iter_mut().find(|w| w.index == index) {
            whole.parts = split(&whole.datagram);
        }
    }

    /// What goes on for the packet `index`, which came out as `bytes`.
    pub fn frames<'a>(&'a self, index: usize, bytes: &'a [u8]) -> Frames<'a> {
        self.find(index).map_or(Frames::one(bytes), |w| Frames { one: None, parts: &w.parts })
    }

    /// Fragments that were given up, because the others never came or there was no room to wait for them.
    pub fn expired(&self) -> u64 {
        self.waiting.expired
    }
}
