//! The fragmented datagrams of a batch: whole for the functions, in fragments again after them.

use pando_flow::fragments::{Complete, Fragments, Taken};

use crate::arrival::Arrival;

/// The outgoing frames of one received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames<'a> {
    one: Option<&'a [u8]>,
    parts: &'a [Vec<u8>],
}

impl<'a> Frames<'a> {
    #[inline]
    pub(super) fn one(frame: &'a [u8]) -> Frames<'a> {
        Frames { one: (!frame.is_empty()).then_some(frame), parts: &[] }
    }

    /// Returns the frames: none, one, or the fragments of a datagram.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.one.into_iter().chain(self.parts.iter().map(Vec::as_slice))
    }

    /// Returns all frames in one piece, for comparison.
    pub fn concat(self) -> Vec<u8> {
        self.iter().collect::<Vec<_>>().concat()
    }
}

struct Whole {
    index: usize,
    datagram: Complete,
    parts: Vec<Vec<u8>>,
}

/// The datagrams that wait for fragments, and those of the current batch.
#[derive(Default)]
pub(super) struct Datagrams {
    waiting: Fragments,
    /// A complete datagram for which the last batch had no room; it is first in the next one.
    next: Option<Complete>,
    batch: Vec<Whole>,
}

impl Datagrams {
    /// Starts a new batch.
    #[inline]
    pub fn clear(&mut self) {
        self.batch.clear();
    }

    /// Takes a received packet; returns the packet to process in its place.
    #[inline]
    pub fn take(&mut self, arrival: &Arrival) -> Taken {
        match self.next.take() {
            Some(complete) => Taken::Complete(complete),
            None => self.waiting.take(arrival.frame, arrival.time_ns),
        }
    }

    /// Keeps a datagram without room in this batch for the start of the next one.
    pub fn postpone(&mut self, datagram: Complete) {
        self.next = Some(datagram);
    }

    /// Makes a datagram the packet `index` of the batch.
    pub fn admit(&mut self, index: usize, datagram: Complete) {
        self.batch.push(Whole { index, datagram, parts: Vec::new() });
    }

    #[inline]
    fn find(&self, index: usize) -> Option<&Whole> {
        self.batch.iter().find(|w| w.index == index)
    }

    /// Returns the packet `index` as the functions see it.
    #[inline]
    pub fn frame<'a>(&'a self, arrivals: &'a [Arrival], index: usize) -> &'a [u8] {
        self.find(index).map_or(arrivals[index].frame, |w| &w.datagram.frame)
    }

    /// Returns the indices of the packets of the batch that came as fragments.
    #[inline]
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let indices: Vec<usize> = self.batch.iter().map(|w| w.index).collect();
        indices.into_iter()
    }

    /// Splits the output of packet `index` into fragments.
    pub fn set_parts(&mut self, index: usize, split: impl FnOnce(&Complete) -> Vec<Vec<u8>>) {
        if let Some(whole) = self.batch.iter_mut().find(|w| w.index == index) {
            whole.parts = split(&whole.datagram);
        }
    }

    /// Returns the outgoing frames of packet `index`, given its output `bytes`.
    #[inline]
    pub fn frames<'a>(&'a self, index: usize, bytes: &'a [u8]) -> Frames<'a> {
        self.find(index).map_or(Frames::one(bytes), |w| Frames { one: None, parts: &w.parts })
    }

    /// Returns the number of fragments that were given up: the rest never came, or there was no
    /// room to wait.
    pub fn expired(&self) -> u64 {
        self.waiting.expired
    }
}
