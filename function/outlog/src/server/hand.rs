//! Hands the state of a dead unit to the standby that takes over, and that of a dead run to the
//! first unit of the next one.

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
        // Its run has begun.
        (self.peers[at].takes, self.peers[at].adopts) = (true, None);
        self.hand(at).map(drop)
    }

    /// Begins the run of a unit, which wants the state of the run before it or has a newer one.
    pub(super) fn adopt(&mut self, at: usize, wants: bool) -> Result<(), Parting> {
        self.peers[at].adopts = Some(wants);
        self.hand(at).map(drop)
    }

    /// Gives the copy of a unit to a new run, if no peer of the run before is left. Such a peer may
    /// be alive, and the log has not read all that it wrote. A host without power has a link for 20
    /// s more.
    fn grant(&mut self, at: usize, hello: &Hello, wants: bool) -> bool {
        let before = self.copies.get(&hello.unit).map_or(hello.run, |copy| copy.run);
        let is_of = |h: &Hello| (h.run, &h.unit) == (before, &hello.unit);
        if before != hello.run && self.peers.iter().any(|p| p.hello.as_ref().is_some_and(is_of)) {
            self.report(format!(
                "unit {} of a new run waits for the end of the run before it, which has links",
                hello.unit
            ));
            return false;
        }
        let copy = self.copies.remove(&hello.unit).filter(|copy| wants && copy.fits(hello));
        let mut copy = copy.unwrap_or_else(|| Copy::of(hello));
        (copy.run, copy.epoch) = (hello.run, hello.epoch);
        (copy.position, copy.orphaned) = (None, None);
        copy.follow();
        self.copies.insert(hello.unit.clone(), copy);
        let peer = &mut self.peers[at];
        (peer.active, peer.takes, peer.adopts) = (true, true, None);
        true
    }

    /// Drops the copy of a unit that ends on order. The next run begins without its state.
    pub(super) fn forget(&mut self, hello: &Hello) {
        if self.copies.get(&hello.unit).is_some_and(|copy| copy.run == hello.run) {
            self.copies.remove(&hello.unit);
        }
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
        let Some(hello) = self.peers[at].hello.clone() else { return Ok(true) };
        // The end of a peer wakes the log, so nothing is due while it waits for one.
        if let Some(wants) = self.peers[at].adopts
            && !self.grant(at, &hello, wants)
        {
            return Ok(true);
        }
        let peer = &mut self.peers[at];
        if !peer.takes {
            return Ok(true);
        }
        let link = &mut peer.link;
        let copy = self.copies.entry(hello.unit.clone()).or_insert_with(|| Copy::of(&hello));
        let whole = copy.is_whole() && copy.fits(&hello);
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
        if self.is_followed(&hello) {
            self.copies.entry(hello.unit).and_modify(Copy::follow);
        } else {
            self.copies.entry(hello.unit).and_modify(Copy::unfollow);
        }
        Ok(true)
    }
}
