//! A unit that waits for another unit's death. Its module is compiled, its devices are open, its
//! memory is touched. Its flow state is a few milliseconds old, so a takeover only adds the latest
//! changes.
//!
//! ```text
//!   standing by ──"serve"──► serving                      (the first unit of a run)
//!        │  ▲
//!        ├──┘ the log sends changes: flows restored
//!        │
//!        ├─ the unit ended on order ──► ended
//!        │
//!        └─ the unit died ──► its last writes, from memory ──┬──► send the last batch again
//!                                │ not possible              │    if it may not have left
//!                                └─► ask the log ────────────┤         │
//!                                     │                      ▼         ▼
//!                                     └─ no log: ───────► serving, from the next frame
//!                                        state lost, counted           of the ring
//! ```

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use pando_abi::executor::Executor;
use pando_chain::Chain;
use pando_net::port::Port;

use super::Positions;
use super::answer::{Answer, Taken, follow, malformed, now_ns};
use super::hold::Watcher;
use super::journal::Journal;
use super::link::{Link, PATIENCE, Shared, Transport};
use super::record::{Head, Hello, Mark, kind};
use super::ring::Ring;
use super::vitals::{Count, Vitals};
use super::{orders, tail};

/// Flows with state memory touched in advance.
pub const WARM_FLOWS: usize = 4096;
/// Deaths on one batch after which it is dropped: it would kill a third unit.
const DEATHS_MAX: u64 = 2;

/// A standby's knowledge of its unit, apart from the flows.
#[derive(Default)]
pub struct Followed {
    /// The unit's writes to its log, and those to the log before, if that memory still exists.
    memory: [Option<Ring>; 2],
    /// The last batch that the flows contain; `None` while they are between two batches.
    mark: Option<Mark>,
    /// Number of the link that delivered the mark.
    told_by: u64,
}

impl Followed {
    /// Reads the log's messages about the unit. If the log dies, its earlier messages stay valid.
    fn hear<E: Executor>(
        &mut self,
        link: &mut Link,
        chain: &mut Chain<E>,
        message: &mut Vec<u8>,
        vitals: &Vitals,
    ) -> io::Result<()> {
        message.clear();
        while link.way.receive(message)? {
            (self.mark, self.told_by) = (None, link.number);
            self.mark = follow(chain, message).map_err(malformed)?;
            self.mark.iter().for_each(|mark| vitals.set_followed(mark.sequence));
            message.clear();
        }
        link.way.woken()
    }

    /// Applies the unit's later writes to the flows; returns the last batch.
    fn replay<E: Executor>(
        &self,
        chain: &mut Chain<E>,
        appended: u64,
    ) -> Option<(Head, Vec<Vec<u8>>)> {
        let mark = self.mark?;
        self.memory
            .iter()
            .flatten()
            .find_map(|memory| tail::replay(memory, &mark, appended, chain, now_ns()))
    }
}

/// The reason for the end of the wait.
pub enum Call {
    /// It is the first unit; its log comes with an order.
    Serve,
    /// The unit before it died; the death was noticed at this time.
    TakeOver(Option<Link>, Followed, Instant),
    /// It is not needed.
    End,
}

/// Waits for a call, and follows the unit through the log meanwhile.
pub fn wait<E: Executor>(
    chain: &mut Chain<E>,
    journal: &mut Journal,
    signals: RawFd,
    watcher: Watcher,
) -> io::Result<Call> {
    let mut message = std::mem::take(&mut journal.message);
    let call = waited(chain, journal, [signals, watcher.as_raw_fd()], &mut message);
    journal.message = message;
    if matches!(call, Ok(Call::Serve | Call::TakeOver(..))) {
        watcher.end();
        journal.vitals.hold()?;
    }
    call
}

fn waited<E: Executor>(
    chain: &mut Chain<E>,
    journal: &Journal,
    [signals, died]: [RawFd; 2],
    message: &mut Vec<u8>,
) -> io::Result<Call> {
    let (hello, vitals) = (journal.hello(), &journal.vitals);
    let orders = journal.orders().ok_or(ErrorKind::NotConnected)?;
    let (mut unit, mut link): (Option<OwnedFd>, Option<Link>) = (None, None);
    let (mut watched, mut followed) = (true, Followed::default());
    loop {
        let fds = [
            signals,
            if watched { orders.as_raw_fd() } else { -1 },
            unit.as_ref().map_or(-1, |u| u.as_raw_fd()),
            link.as_ref().map_or(-1, |l| l.way.fd()),
            died,
        ];
        let may_sleep = link.as_mut().is_none_or(|l| l.way.may_sleep());
        let ready = orders::poll(&fds, if may_sleep { -1 } else { 0 })?;
        if ready[0] || !watched && unit.is_none() {
            return Ok(Call::End);
        }
        // Read orders first: a link to the log counts even if the unit died before the order was
        // read.
        if ready[1] {
            match orders.receive(false) {
                Ok(order) if order.text == "serve" => return Ok(Call::Serve),
                Ok(order) if order.text == "watch" => {
                    let mut fds = order.fds.into_iter();
                    unit = fds.next();
                    followed.memory.swap(0, 1);
                    followed.memory[0] =
                        fds.next().and_then(|memory| Shared::written(&memory).ok());
                }
                Ok(order) => {
                    let number = Link::number_of(&order);
                    link = Link::open(order).and_then(|l| greet(l, hello)).ok();
                    if link.is_none() {
                        let _ = orders.send(&format!("unlinked {number}"), &[]);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => watched = false,
            }
            continue;
        }
        // Its working thread died, or the whole process.
        if ready[2] || ready[4] {
            let noticed = Instant::now();
            return Ok(if vitals.stopped() {
                Call::End
            } else {
                Call::TakeOver(link, followed, noticed)
            });
        }
        if (ready[3] || !may_sleep)
            && link.as_mut().is_some_and(|l| followed.hear(l, chain, message, vitals).is_err())
        {
            let _ = orders.send(&format!("unlinked {}", link.take().map_or(0, |l| l.number)), &[]);
        }
    }
}

fn greet(mut link: Link, hello: &Hello) -> io::Result<Link> {
    link.way.send(&hello.encode())?;
    link.way.send(&[kind::FOLLOW])?;
    link.way.flush()?;
    Ok(link)
}

/// Turns the standby into the unit, after the death of the unit before it.
pub fn take_over<E: Executor>(
    chain: &mut Chain<E>,
    ports: &mut [Port],
    journal: &mut Journal,
    call: (Option<Link>, Followed),
    noticed: Instant,
) -> io::Result<()> {
    let (mut link, mut followed) = call;
    let number = link.as_ref().map_or(0, |l| l.number);
    let taken = take(&mut link, chain, journal, &mut followed)
        .and_then(|taken| taken.newest(journal.vitals.sent()));
    if !taken.as_ref().is_ok_and(|t| t.last.is_some()) {
        // The followed state may be older than the packets that the unit has sent.
        chain.release_all();
    }
    chain.flows.see_all(now_ns());
    let vitals = &journal.vitals;
    vitals.add(Count::Takeovers, 1);
    vitals.set(Count::TransferNs, noticed.elapsed().as_nanos() as u64);
    let (positions, sequence, again) = match &taken {
        Ok(Taken { last: Some((head, packets)), .. }) => {
            let appended = head.sequence > vitals.sent();
            if appended {
                vitals.set_at_work(0, 0);
            }
            let unsent = if appended { packets.as_slice() } else { &[] };
            let frames: Vec<&[u8]> = unsent.iter().map(Vec::as_slice).collect();
            if !frames.is_empty() {
                ports[usize::from(head.port) % ports.len()].send(&frames);
                vitals.add(Count::SentAgain, frames.len() as u64);
            }
            vitals.set_sent(head.sequence);
            (head.positions, head.sequence, frames.len())
        }
        lost => {
            let why =
                lost.as_ref().err().map_or("the log had none".to_owned(), io::Error::to_string);
            pando_walls::say!(
                "the state of all flows is lost: unit and output log died together ({why})"
            );
            vitals.add(Count::StateLost, 1);
            (vitals.positions(), vitals.sent(), 0)
        }
    };
    let skipped = resume(ports, vitals, positions);
    let flows = taken.as_ref().map_or(0, |t| t.flows);
    // A log without state receives it over a new link.
    let link = link.filter(|_| taken.as_ref().is_ok_and(|t| t.last.is_some()));
    if link.is_none() {
        journal.report(&format!("unlinked {number}"));
    }
    let totals: Vec<[u64; 4]> = match &taken {
        Ok(Taken { last: Some((head, _)), .. }) => {
            head.totals.iter().map(|w| [w.packets, w.bytes, w.fuel, w.trapped]).collect()
        }
        _ => Vec::new(),
    };
    let epoch = taken.as_ref().ok().and_then(|t| t.last.as_ref()).map_or(0, |(head, _)| head.epoch);
    let transfer_ns = vitals.count(Count::TransferNs);
    let said = serde_json::json!({
        "taken_over": {"flows": flows, "epoch": epoch, "sequence": sequence, "totals": totals,
            "transfer_ns": transfer_ns, "sent_again": again, "dropped": skipped}
    });
    // The dead unit's bill is settled before the first packet of this unit can be billed.
    journal.report(&said.to_string());
    journal.go_on(sequence, link, noticed);
    Ok(())
}

/// Takes the unit's writes that the log has not delivered yet.
fn take<E: Executor>(
    link: &mut Option<Link>,
    chain: &mut Chain<E>,
    journal: &mut Journal,
    followed: &mut Followed,
) -> io::Result<Taken> {
    let (vitals, message) = (&journal.vitals, &mut journal.message);
    link.take_if(|l| followed.hear(l, chain, message, vitals).is_err());
    let replayed = followed.replay(chain, vitals.appended());
    if replayed.is_some() {
        // A log other than the sender of the mark lacks that state. The log is not woken here: it
        // would compete with the waiting packets for a processor. It reads this message with the
        // next batch or at the end of the unit's link.
        link.take_if(|l| l.number != followed.told_by || l.way.send(&[kind::GO_ON]).is_err());
        return Ok(Taken { flows: chain.flows.len(), last: replayed });
    }
    vitals.add(Count::Asked, 1);
    ask(link.as_mut().ok_or(ErrorKind::NotConnected)?.way.as_mut(), chain, message)
}

/// Asks the log for the missing changes and the last batch.
fn ask<E: Executor>(
    link: &mut dyn Transport,
    chain: &mut Chain<E>,
    message: &mut Vec<u8>,
) -> io::Result<Taken> {
    link.send(&[kind::TAKE])?;
    link.flush()?;
    let deadline = Instant::now() + PATIENCE;
    let mut answer = Answer::default();
    loop {
        message.clear();
        link.receive_by(message, deadline)?;
        if let Some(taken) = answer.read(chain, message).map_err(malformed)? {
            return Ok(taken);
        }
    }
}

/// Moves to the frame that the dead unit had reached. Drops a batch on which two units died.
/// Returns the number of dropped packets.
fn resume(ports: &mut [Port], vitals: &Vitals, positions: Positions) -> usize {
    let released = vitals.positions();
    for (n, port) in ports.iter_mut().enumerate() {
        port.resume(released[n], positions[n]);
    }
    let mut skipped = 0;
    if let Some((port, packets)) = vitals.at_work().filter(|&(port, _)| port < ports.len())
        && vitals.died_at(positions[port] << 1 | port as u64) >= DEATHS_MAX
    {
        pando_walls::say!(
            "two units died on the same {packets} packets of {}: they are dropped",
            ports[port].device()
        );
        ports[port].release(packets);
        vitals.add(Count::Dropped, packets as u64);
        skipped = packets;
    }
    ports.iter().enumerate().for_each(|(n, port)| vitals.set_position(n, port.position()));
    vitals.set_at_work(0, 0);
    skipped
}
