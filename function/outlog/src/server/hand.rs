//! Hands the state of a dead unit to the standby that takes over.

use std::time::{Duration, Instant};

use super::super::copy::{CHUNK_BYTES, Copy};
use super::super::record::{Hello, kind};
use super::{Parting, Server};

/// Pause between two looks for room of a standby that takes over.
const HAND_OVER_EVERY: Duration = Duration::from_millis(1);

impl Server {
    /// Makes a standby the unit if it cannot read the dead unit's memory. [`Server::hand_on`] sends
    /// it everything that it lacks.
    pub(super) fn hand_over(&mut self, at: usize, hello: &Hello) -> Result<(), Parting> {
        if !self.succeed(at, hello)? {
            self.copies.entry(hello.unit.clone()).and_modify(Copy::follow);
        }
        self.peers[at].takes = true;
        self.hand(at).map(drop)
    }

    /// Sends standbys that take over the missing state, as far as they have room. Returns when to
    /// look again.
    pub(super) fn hand_on(&mut self) -> Option<Instant> {
        let mut next = None;
        let mut at = 0;
        while at < self.peers.len() {
            match self.hand(at) {
                Ok(true) => at += 1,
                Ok(false) => {
                    next = Some(Instant::now() + HAND_OVER_EVERY);
                    at += 1;
                }
                Err(parting) => self.part(at, &parting),
            }
        }
        next
    }

    /// Sends a standby that takes over the missing state, as far as it has room. Returns true at
    /// the end of the state.
    pub(super) fn hand(&mut self, at: usize) -> Result<bool, Parting> {
        let peer = &mut self.peers[at];
        let Some(hello) = peer.hello.clone().filter(|_| peer.takes) else { return Ok(true) };
        let link = &mut peer.link;
        let copy = self.copies.entry(hello.unit.clone()).or_default();
        let whole = copy.is_whole() && copy.fits(&hello.state_bytes);
        let flows = if whole { copy.flows() as u32 } else { 0 };
        let told = !whole
            || copy.catch_up(|message| {
                let room = link.has_room(2 * CHUNK_BYTES);
                if room {
                    link.send(message)?;
                }
                link.flush().map(|()| room)
            })?;
        if !told || !link.has_room(CHUNK_BYTES) {
            return Ok(false);
        }
        link.send(&[&[kind::TAKEN, u8::from(whole)][..], &flows.to_le_bytes()].concat())?;
        if whole {
            link.send(copy.last())?;
        }
        link.flush()?;
        peer.takes = false;
        // The collected changes went to this standby. One that follows already begins anew.
        if self.is_followed(&hello.unit) {
            self.copies.entry(hello.unit).and_modify(Copy::follow);
        } else {
            self.copies.entry(hello.unit).and_modify(Copy::unfollow);
        }
        Ok(true)
    }
}
