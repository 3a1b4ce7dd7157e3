//! The process that holds the log: a copy of each unit's state. The unit feeds it; a standby takes
//! it.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::copy::{CHUNK_BYTES, Copy};
use super::link::{Shared, Transport};
use super::orders::{self, Orders};
use super::record::{Hello, Malformed, Mark, Parts, Reader, kind};

mod door;
mod guests;
mod hand;

use door::CALL_TIME;
pub use door::{Bounds, Door};

/// Messages of one peer before the others get their turn.
const TURN: usize = 256;
/// … and their bytes.
const TURN_BYTES: usize = 1 << 20;

/// Pause between two updates of a standby. It bounds the cost of a standby under many changes.
const FOLLOW_EVERY: Duration = Duration::from_millis(5);

/// How long a copy is kept after its unit and standby are gone, for a standby on its way or a new
/// run. A log with a door has its own time.
const ORPHAN: Duration = Duration::from_secs(60);
/// The same report about a unit is printed again after this time.
const REPORT_AGAIN: Duration = Duration::from_secs(10);

struct Peer {
    link: Box<dyn Transport>,
    /// The tenant of a peer on another host, by its key.
    tenant: Option<String>,
    since: Instant,
    hello: Option<Hello>,
    /// This peer filled the copy or took it: it is the unit, not a standby.
    active: bool,
    /// When this standby was last updated; `None` if it is not the standby that follows its unit.
    follows: Option<Instant>,
    /// This standby takes over, and lacks a part of the state.
    takes: bool,
    /// This unit is the first of its run and waits for the end of the run before. True: it wants
    /// the state of that run.
    adopts: Option<bool>,
    /// The last batch that this standby has completely.
    has: Option<Mark>,
}

/// The log.
pub struct Server {
    /// The source of links within the host. After it has ended, the log ends with its last peer.
    pub orders: Option<Orders>,
    /// Lets units of other hosts in.
    pub door: Option<Door>,
    /// SIGTERM and SIGINT.
    pub signals: RawFd,
    peers: Vec<Peer>,
    copies: HashMap<String, Copy>,
    message: Vec<u8>,
    /// The last report, and its time.
    reported: Option<(String, Instant)>,
}

/// The reason for dropping a peer.
#[derive(Debug, thiserror::Error)]
enum Parting {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("epoch {0} is over: another unit has gone on")]
    Over(u32),
    #[error("another run of this unit has taken up its state")]
    Succeeded,
    #[error("it has the key of tenant {0} and calls itself {1:?}")]
    Foreign(String, String),
    #[error("it did not introduce itself within 5 s, or too many others called")]
    Silent,
    #[error("tenant {0} has {1} connections already")]
    Crowd(String, usize),
    #[error("tenant {0} holds {1} MiB, and may hold {2} (`pando fn log --tenant-mib`)")]
    Full(String, usize, usize),
}

impl Peer {
    fn is_late(&self) -> bool {
        self.since.elapsed() >= CALL_TIME
    }
}

impl Server {
    /// Returns a log without units.
    pub fn new(orders: Option<Orders>, door: Option<Door>, signals: RawFd) -> Server {
        Server {
            orders,
            door,
            signals,
            peers: Vec::new(),
            copies: HashMap::new(),
            message: Vec::new(),
            reported: None,
        }
    }

    /// Serves until it is ordered to end, or until it has no peer and can get no more.
    pub fn run(&mut self) -> io::Result<()> {
        while self.orders.is_some() || self.door.is_some() || !self.peers.is_empty() {
            let mut at = 0;
            while at < self.peers.len() {
                match self.turn(at) {
                    Ok(()) => at += 1,
                    Err(parting) => self.part(at, &parting),
                }
            }
            self.keep_bounds();
            let next = [self.tell_standbys(), self.hand_on()].into_iter().flatten().min();
            if self.sleep(next)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends due standbys the changes that they lack, and then the mark of the last batch. Returns
    /// when the next update is due.
    fn tell_standbys(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let (Some(hello), Some(told)) = (&peer.hello, peer.follows) else { continue };
            // The changes go to the standby that takes over first.
            if self.of_unit(hello).any(|p| self.peers[p].takes) {
                continue;
            }
            let is_ahead = |c: &Copy| c.is_ahead() || c.is_whole() && peer.has != Some(c.mark());
            let copy = self
                .copies
                .get_mut(&hello.unit)
                .filter(|c| c.run == hello.run && is_ahead(c) && c.fits(hello));
            let Some(copy) = copy else { continue };
            let (now, mut due) = (Instant::now(), told + FOLLOW_EVERY);
            if now >= due {
                let peer = &mut self.peers[at];
                let link = &mut peer.link;
                let told = copy.catch_up(|message| {
                    let room = link.has_room(2 * CHUNK_BYTES);
                    if room { link.send(message).map(|()| true) } else { Ok(false) }
                });
                if matches!(told, Ok(true))
                    && link.has_room(CHUNK_BYTES)
                    && link.send(&copy.mark().encode()).is_ok()
                {
                    peer.has = Some(copy.mark());
                }
                // The standby's turn reports its end.
                let _ = told.and_then(|_| link.flush());
                peer.follows = Some(now);
                due = now + FOLLOW_EVERY;
                if peer.has == Some(copy.mark()) {
                    continue;
                }
            }
            next = Some(next.map_or(due, |n| n.min(due)));
        }
        next
    }

    /// Sleeps until an event or the next update of a standby. Returns true if it was ordered to
    /// end.
    fn sleep(&mut self, until: Option<Instant>) -> io::Result<bool> {
        let mut may_sleep = true;
        for peer in &mut self.peers {
            may_sleep &= peer.link.may_sleep();
        }
        let orders = self.orders.as_ref().map_or(-1, |o| o.as_raw_fd());
        let (door, due) = self.door.as_ref().map(Door::fds).unwrap_or_default();
        let silent = self.peers.iter().filter(|p| p.tenant.is_some() && p.hello.is_none());
        let until = [until, due, silent.map(|p| p.since + CALL_TIME).min()];
        let until = until.into_iter().flatten().min();
        let fds: Vec<(RawFd, bool)> = [self.signals, orders]
            .into_iter()
            .chain(door)
            .map(|fd| (fd, false))
            .chain(self.peers.iter().map(|p| (p.link.fd(), p.link.unsent())))
            .collect();
        let timeout_ms = if may_sleep { until.map_or(-1, left_ms) } else { 0 };
        let ready = orders::poll_with_room(&fds, timeout_ms)?;
        if ready[0] {
            return Ok(true);
        }
        for peer in &mut self.peers {
            // The peer's turn reports its end, after all its messages are read.
            let _ = peer.link.woken();
            if peer.link.unsent() {
                let _ = peer.link.flush();
            }
        }
        self.admit(ready[1])?;
        Ok(false)
    }

    fn admit(&mut self, ordered: bool) -> io::Result<()> {
        if ordered && let Some(orders) = &self.orders {
            match orders.receive(false) {
                Ok(mut order) => {
                    if let (Some(socket), Some(memory)) = (order.fds.pop(), order.fds.pop()) {
                        self.welcome(Box::new(Shared::open(&memory, socket, false)?), None);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.orders = None,
            }
        }
        let guests = self.door.as_mut().map(Door::attend).unwrap_or_default();
        guests.into_iter().for_each(|guest| self.receive(guest));
        Ok(())
    }

    fn welcome(&mut self, link: Box<dyn Transport>, tenant: Option<String>) {
        let keep = self.door.as_ref().map_or(ORPHAN, |door| door.bounds.orphan);
        self.copies.retain(|_, copy| copy.orphaned.is_none_or(|since| since.elapsed() < keep));
        self.peers.push(Peer {
            link,
            tenant,
            since: Instant::now(),
            hello: None,
            active: false,
            follows: None,
            takes: false,
            adopts: None,
            has: None,
        });
    }

    fn turn(&mut self, at: usize) -> Result<(), Parting> {
        let mut bytes = 0;
        for _ in 0..TURN {
            if bytes > TURN_BYTES {
                break;
            }
            let read = self.read(at)?;
            bytes += self.message.len();
            if !read {
                // A unit may write, and die, between the last look and this one. Its end counts
                // when all its messages are read.
                return match self.peers[at].link.woken() {
                    Err(end) if !self.read(at)? => Err(end.into()),
                    _ => Ok(()),
                };
            }
        }
        Ok(())
    }

    /// Handles the next message of a peer. Returns false if there is none.
    fn read(&mut self, at: usize) -> Result<bool, Parting> {
        let mut message = std::mem::take(&mut self.message);
        message.clear();
        let handled = match self.peers[at].link.receive(&mut message) {
            Ok(true) => self.handle(at, &message).map(|()| true),
            Ok(false) => Ok(false),
            Err(e) => Err(e.into()),
        };
        self.message = message;
        handled
    }

    fn handle(&mut self, at: usize, message: &[u8]) -> Result<(), Parting> {
        let mut reader = Reader(message);
        let kind = reader.u8()?;
        if kind == kind::HELLO {
            let (hello, peer) = (reader.hello()?, &mut self.peers[at]);
            let is_of = |tenant: &String| {
                hello.unit.strip_prefix(tenant.as_str()).is_some_and(|name| name.starts_with('/'))
            };
            if let Some(tenant) = peer.tenant.as_ref().filter(|tenant| !is_of(tenant)) {
                return Err(Parting::Foreign(tenant.clone(), hello.unit));
            }
            peer.hello = Some(hello);
            return Ok(());
        }
        let hello = self.peers[at].hello.clone().ok_or(Malformed)?;
        match kind {
            kind::CLEAR => self.begin(at, &hello),
            kind::ADOPT => self.adopt(at, reader.u8()? == 1),
            kind::END => {
                self.forget(&hello);
                Ok(())
            }
            kind::TAKE => self.hand_over(at, &hello),
            kind::GO_ON => {
                self.succeed(at, &hello)?;
                // The next standby may follow already.
                if !self.is_followed(&hello) {
                    self.copies.entry(hello.unit).and_modify(Copy::unfollow);
                }
                Ok(())
            }
            kind::FOLLOW => {
                self.follow(at, &hello);
                Ok(())
            }
            _ => {
                let copy = self
                    .copies
                    .get_mut(&hello.unit)
                    .filter(|_| self.peers[at].active)
                    .ok_or(Malformed)?;
                if copy.run != hello.run {
                    return Err(Parting::Succeeded);
                }
                if hello.epoch < copy.epoch {
                    return Err(Parting::Over(hello.epoch));
                }
                copy.apply(message)?;
                let link = &mut self.peers[at].link;
                copy.position = link.received_at();
                if kind == kind::BATCH && !link.keeps_at_once() {
                    link.send(&[&[kind::APPLIED][..], &copy.sequence.to_le_bytes()].concat())?;
                }
                Ok(())
            }
        }
    }

    /// Returns the peers of a unit that belong to the same run.
    fn of_unit<'a>(&'a self, hello: &'a Hello) -> impl Iterator<Item = usize> + 'a {
        let is_of = |h: &Hello| (h.run, &h.unit) == (hello.run, &hello.unit);
        (0..self.peers.len()).filter(move |&p| self.peers[p].hello.as_ref().is_some_and(is_of))
    }

    fn is_followed(&self, hello: &Hello) -> bool {
        self.of_unit(hello).any(|p| self.peers[p].follows.is_some())
    }

    /// Begins to send a standby all changes of its unit, from an empty state.
    fn follow(&mut self, at: usize, hello: &Hello) {
        // The standby that it replaces is gone, or will notice that it is.
        let others: Vec<usize> = self.of_unit(hello).collect();
        others.into_iter().for_each(|p| self.peers[p].follows = None);
        self.peers[at].follows = Some(Instant::now());
        if let Some(copy) = self.copies.get_mut(&hello.unit).filter(|c| c.run == hello.run) {
            copy.follow();
        }
    }

    /// Fails if a later unit or another run is at work: this peer's unit is dead, and its message
    /// came late, or its host was cut off.
    fn refuse_over(&self, hello: &Hello) -> Result<(), Parting> {
        let later = |p: usize| {
            self.peers[p].active
                && self.peers[p].hello.as_ref().is_some_and(|h| h.epoch > hello.epoch)
        };
        if self.copies.get(&hello.unit).is_some_and(|copy| copy.run != hello.run) {
            return Err(Parting::Succeeded);
        }
        if self.of_unit(hello).any(later) { Err(Parting::Over(hello.epoch)) } else { Ok(()) }
    }

    /// Starts a new copy: a unit is about to send its whole state.
    fn begin(&mut self, at: usize, hello: &Hello) -> Result<(), Parting> {
        self.refuse_over(hello)?;
        self.peers[at].active = true;
        let mut copy = Copy::of(hello);
        copy.apply(&[kind::CLEAR])?;
        if self.is_followed(hello) {
            copy.follow();
        }
        self.copies.insert(hello.unit.clone(), copy);
        Ok(())
    }

    /// Makes a standby the unit. Applies everything that dead units wrote, then ignores them.
    /// Returns whether the standby followed the unit.
    fn succeed(&mut self, at: usize, hello: &Hello) -> Result<bool, Parting> {
        self.refuse_over(hello)?;
        // A unit that lived shortly may have written all its messages, its GO_ON too, since the
        // log's last turn with it. The order of the peers is not the order of the units.
        (0..self.peers.len()).filter(|&p| p != at).for_each(|p| self.catch_up(p, hello));
        for other in self.of_unit(hello).collect::<Vec<_>>() {
            self.peers[other].active = other == at;
        }
        let copy = self.copies.entry(hello.unit.clone()).or_insert_with(|| Copy::of(hello));
        (copy.epoch, copy.position, copy.orphaned) = (copy.epoch.max(hello.epoch), None, None);
        Ok(self.peers[at].follows.take().is_some())
    }

    /// Reads the rest of a peer's messages if it is a unit before the one in `hello`. A dead unit
    /// left a finite number of messages. At a malformed one, those before it count.
    fn catch_up(&mut self, other: usize, hello: &Hello) {
        let mut message = Vec::new();
        let precedes = |peer: &Peer| {
            let is_of = |h: &Hello| (h.run, &h.unit) == (hello.run, &hello.unit);
            peer.hello.as_ref().is_none_or(|h| is_of(h) && h.epoch < hello.epoch)
        };
        while precedes(&self.peers[other])
            && matches!(self.peers[other].link.receive(&mut message), Ok(true))
            && self.handle(other, &message).is_ok()
        {
            message.clear();
        }
    }

    /// Prints a report about a unit, unless it printed the same one a moment ago.
    fn report(&mut self, words: String) {
        if self.reported.as_ref().is_some_and(|(w, at)| *w == words && at.elapsed() < REPORT_AGAIN)
        {
            return;
        }
        pando_walls::say!("{words}");
        self.reported = Some((words, Instant::now()));
    }

    /// Drops a peer. The copy stays for a standby that may still be on its way.
    fn part(&mut self, at: usize, parting: &Parting) {
        let peer = self.peers.swap_remove(at);
        let Some(hello) = peer.hello else { return };
        let closed = |e: &io::Error| {
            matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
        };
        if !matches!(parting, Parting::Io(e) if closed(e)) {
            let (unit, epoch) = (&hello.unit, hello.epoch);
            self.report(format!("unit {unit} (epoch {epoch}) is let go: {parting}"));
        }
        let followed = self.is_followed(&hello);
        let orphaned = self.of_unit(&hello).next().is_none();
        if let Some(copy) = self.copies.get_mut(&hello.unit).filter(|c| c.run == hello.run) {
            if !followed {
                copy.unfollow();
            } else if peer.takes {
                // It has got a part of the changes. The one that follows begins anew.
                copy.follow();
            }
            if orphaned {
                copy.orphaned = Some(Instant::now());
            }
        }
    }
}

/// Returns the milliseconds until `until`, rounded up so that a sleep does not end early.
fn left_ms(until: Instant) -> i32 {
    until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000) as i32
}

#[cfg(test)]
mod tests;
