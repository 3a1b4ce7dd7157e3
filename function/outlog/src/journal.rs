//! The unit's side of the output log. No packet leaves before its batch is in the log.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use pando_abi::executor::Executor;
use pando_chain::Chain;
use pando_chain::flows::FlowId;
use pando_flow::FlowKey;

use super::Positions;
use super::answer::Answer;
use super::link::{Link, PATIENCE};
use super::orders::{self, Order, Orders};
use super::record::{self, Head, Hello, Reader, kind};
use super::vitals::{Count, Vitals};

/// The longest sleep of the unit while the log still has a batch to read.
const LAG: Duration = Duration::from_millis(1);
/// Room for most messages: a batch of packets of 1,434 bytes, or a part of a whole state.
const MESSAGE_BYTES: usize = 128 << 10;
/// A live unit beats this often.
const BEAT: Duration = Duration::from_millis(100);

/// The unit's connection to its log.
pub struct Journal {
    pub(super) link: Option<Link>,
    pub(super) orders: Option<Orders>,
    /// Shared with the watching process.
    pub vitals: Vitals,
    pub(super) hello: Hello,
    pub(super) sequence: u64,
    /// The message that was sent or received last.
    pub(super) message: Vec<u8>,
    lag: Lag,
    /// The longest wait for a log. After it, packets leave without one. `None` waits for ever.
    pub patience: Option<Duration>,
    /// The log may have the state of a run before, so the first unit asks it. Set it before the
    /// unit serves.
    pub takes_up: bool,
    /// The progress of the answer of the first log.
    pub(super) answer: Answer,
    /// Since when there is no log.
    pub(super) lost: Option<Instant>,
    /// The loss of the log has been reported.
    missed: bool,
    /// Packets leave without a log, and this has been reported.
    pub(super) alone: bool,
    /// When the death of the previous unit was noticed; `None` after the first packet has left.
    noticed: Option<Instant>,
}

/// Batches that the log may not have read yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lag {
    None,
    /// A batch was written since the unit's last sleep.
    Fresh,
    /// The unit has slept since, briefly.
    Quiet,
}

/// The reason why a batch did not go into a log.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The unit was ordered to end while it waited for a log.
    #[error("told to end while it waited for a log")]
    Told,
    /// The log is gone, and so is the process that could start another.
    #[error(
        "the output log is gone, and so is the process that would start another: start the unit \
         again"
    )]
    Unwatched,
    /// An error that waiting cannot cure.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// The results of a batch that the chain does not hold.
pub struct Done<'a> {
    /// Positions in the rings of the devices after the batch.
    pub positions: Positions,
    /// The device that sends the packets.
    pub port: usize,
    /// The packets.
    pub frames: &'a [&'a [u8]],
    /// Flows that the batch forgot.
    pub forgotten: &'a [FlowKey],
}

impl Journal {
    /// Returns a journal without a log.
    pub fn new(orders: Orders, vitals: Vitals, hello: Hello) -> Journal {
        // Touch the pages here so that neither a takeover nor the first batch waits for them.
        let mut message = vec![1; MESSAGE_BYTES];
        message.clear();
        Journal {
            link: None,
            orders: Some(orders),
            vitals,
            hello,
            sequence: 0,
            message,
            lag: Lag::None,
            patience: None,
            takes_up: false,
            answer: Answer::default(),
            lost: None,
            missed: false,
            alone: false,
            noticed: None,
        }
    }

    /// Continues after the batch `sequence` of a dead unit, over the standby's own link.
    pub fn go_on(&mut self, sequence: u64, link: Option<Link>, noticed: Instant) {
        (self.sequence, self.noticed) = (sequence, Some(noticed));
        self.link = link;
    }

    /// Returns the epoch of this unit.
    pub fn epoch(&self) -> u32 {
        self.hello.epoch
    }

    /// Returns the source of orders.
    pub fn orders(&self) -> Option<&Orders> {
        self.orders.as_ref()
    }

    /// Returns the unit's introduction to the log.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Reports `text` to the watching process and prints it.
    pub fn report(&self, text: &str) {
        self.tell(text);
        pando_walls::say!("{text}");
    }

    /// Returns the descriptors to sleep on in addition to the devices.
    pub fn fds(&self) -> [RawFd; 2] {
        [
            self.orders.as_ref().map_or(-1, |o| o.as_raw_fd()),
            self.link.as_ref().map_or(-1, |l| l.way.fd()),
        ]
    }

    /// Beats, before the unit looks for packets. Returns the longest sleep, in milliseconds.
    pub fn idle(&mut self, sleeps: bool) -> i32 {
        self.vitals.beat();
        if !sleeps {
            return 0;
        }
        match (self.lag, &mut self.link) {
            // Wake the log after a short idle time, not between two packets.
            (Lag::Fresh, Some(_)) => {
                self.lag = Lag::Quiet;
                LAG.as_millis() as i32
            }
            (Lag::Quiet, Some(link)) => {
                self.lag = Lag::None;
                // The sleep on its socket reports a dead log.
                let _ = link.way.flush();
                BEAT.as_millis() as i32
            }
            _ => BEAT.as_millis() as i32,
        }
    }

    /// Reads the event that woke the unit: an order, or the end of the log.
    pub fn attend<E: Executor>(&mut self, chain: &Chain<E>, done: &Done) -> io::Result<()> {
        if let Some(link) = &mut self.link
            && orders::poll(&[link.way.fd()], 0)?[0]
            && link.way.woken().and_then(|()| link.way.receive(&mut Vec::new())).is_err()
        {
            self.lose();
        }
        match self.orders.as_ref().map(|o| o.receive(false)) {
            Some(Ok(order)) => self.refill(chain, order, done),
            Some(Err(e)) if e.kind() != ErrorKind::WouldBlock => {
                pando_walls::say!(
                    "nobody watches this unit any more: it serves on, and its log is not renewed"
                );
                self.orders = None;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn tell(&self, text: &str) {
        if let Some(orders) = &self.orders {
            // Reading orders reports a dead watching process.
            let _ = orders.send(text, &[]);
        }
    }

    pub(super) fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            self.tell(&format!("lost {}", link.number));
            if std::mem::replace(&mut self.missed, true) {
                return;
            }
            let then = match self.patience {
                Some(patience) => format!("packets wait for another at most {patience:?}"),
                None => "nothing leaves until another has the state".to_owned(),
            };
            pando_walls::say!("the output log is gone: {then}");
        }
    }

    /// Sends a new log the whole state and the packets that wait to leave. Nothing leaves before
    /// the log has both.
    fn refill<E: Executor>(&mut self, chain: &Chain<E>, order: Order, done: &Done) {
        // A run without a log until now has a newer state than the run before it left.
        let anew = self.takes_up && self.vitals.appended() == 0;
        if self.greet(order, anew.then_some(&[kind::ADOPT, 0])) {
            self.fill(chain, done);
        }
    }

    /// Opens the link of an order and introduces the unit. Returns whether it has a link.
    pub(super) fn greet(&mut self, order: Order, then: Option<&[u8; 2]>) -> bool {
        let number = Link::number_of(&order);
        let Ok(link) = Link::open(order) else {
            self.tell(&format!("unlinked {number}"));
            return false;
        };
        let way = &mut self.link.insert(link).way;
        let said = way.send(&self.hello.encode());
        if said.and_then(|()| then.map_or(Ok(()), |then| way.send(then))).is_err() {
            self.lose();
        }
        self.link.is_some()
    }

    /// Sends the whole state over a new link.
    pub(super) fn fill<E: Executor>(&mut self, chain: &Chain<E>, done: &Done) {
        self.sequence += 1;
        let mut filled = || {
            self.link.as_mut().ok_or(ErrorKind::NotConnected)?.way.send(&[kind::CLEAR])?;
            self.send_flows(chain)?;
            self.encode(chain, done, &[]);
            self.hand_over()
        };
        if filled().is_err() {
            return self.lose();
        }
        if done.frames.is_empty() {
            self.vitals.set_sent(self.sequence);
        }
        self.vitals.add(Count::Refills, 1);
        self.found();
    }

    /// Notes that a log has the state of all flows.
    pub(super) fn found(&mut self) {
        (self.lost, self.missed) = (None, false);
        if std::mem::take(&mut self.alone) {
            pando_walls::say!("an output log has the state of all flows again");
        }
    }

    fn send_flows<E: Executor>(&mut self, chain: &Chain<E>) -> io::Result<()> {
        let ids: Vec<FlowId> = chain.flows.ids().collect();
        let link = self.link.as_mut().ok_or(ErrorKind::NotConnected)?;
        for some in ids.chunks(64) {
            self.message.clear();
            self.message.push(kind::FLOWS);
            self.message.extend_from_slice(&(some.len() as u32).to_le_bytes());
            for &id in some {
                chain.put_flow(&mut self.message, id, chain.flows.flow(id).valid);
            }
            link.way.send(&self.message)?;
        }
        Ok(())
    }

    /// Puts a batch into the log, and returns when the log keeps it. It waits for a log that is
    /// away, at most for [`Journal::patience`].
    pub fn append<E: Executor>(
        &mut self,
        chain: &Chain<E>,
        done: &Done,
        signals: RawFd,
    ) -> Result<(), Ended> {
        self.sequence += 1;
        self.encode(chain, done, &chain.changed);
        if self.link.is_some() && self.hand_over().is_ok() {
            return Ok(());
        }
        self.lose();
        let since = Instant::now();
        while self.link.is_none() {
            self.vitals.beat();
            if self.leaves_alone(done.frames.len()) {
                break;
            }
            let Some(orders) = &self.orders else { return Err(Ended::Unwatched) };
            if orders::poll(&[signals, orders.as_raw_fd()], BEAT.as_millis() as i32)?[0] {
                return Err(Ended::Told);
            }
            self.attend(chain, done)?;
        }
        self.vitals.add(Count::HeldNs, since.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// Reports whether packets leave without a log, and counts them then.
    pub(super) fn leaves_alone(&mut self, packets: usize) -> bool {
        let lost = *self.lost.get_or_insert_with(Instant::now);
        if self.patience.is_none_or(|patience| lost.elapsed() < patience) {
            return false;
        }
        if !std::mem::replace(&mut self.alone, true) {
            pando_walls::say!(
                "packets leave without an output log: the death of this unit would cost the state \
                 of all flows"
            );
        }
        self.vitals.add(Count::Unlogged, packets as u64);
        true
    }

    pub(super) fn encode<E: Executor>(
        &mut self,
        chain: &Chain<E>,
        done: &Done,
        changed: &[FlowId],
    ) {
        let message = &mut self.message;
        message.clear();
        let head = Head {
            epoch: self.hello.epoch,
            sequence: self.sequence,
            positions: done.positions,
            port: done.port as u8,
            totals: chain.work().collect(),
        };
        let counts = record::put_head(message, &head);
        done.forgotten.iter().for_each(|key| message.extend_from_slice(key.as_bytes()));
        for &id in changed {
            chain.put_flow(message, id, chain.flows.flow(id).changed());
        }
        done.frames.iter().for_each(|frame| record::put_packet(message, frame));
        record::set_counts(
            message,
            counts,
            [done.forgotten.len(), changed.len(), done.frames.len()],
        );
    }

    /// Sends the encoded message; returns when the log keeps it.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        let link = self.link.as_mut().ok_or(ErrorKind::NotConnected)?.way.as_mut();
        link.send(&self.message)?;
        self.lag = Lag::Fresh;
        if link.keeps_at_once() {
            self.vitals.set_appended(self.sequence);
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut answer = Vec::new();
        loop {
            answer.clear();
            link.receive_by(&mut answer, deadline)?;
            let mut reader = Reader(&answer);
            if reader.u8() == Ok(kind::APPLIED) && reader.u64() == Ok(self.sequence) {
                self.vitals.set_appended(self.sequence);
                return Ok(());
            }
        }
    }

    /// Notes the start of a batch of at most `packets` from a device.
    pub fn begin(&self, port: usize, packets: usize) {
        self.vitals.set_at_work(port, packets);
    }

    /// Notes that the batch has left.
    pub fn sent(&mut self) {
        if let Some(noticed) = self.noticed.take() {
            self.vitals.set(Count::FirstPacketNs, noticed.elapsed().as_nanos() as u64);
        }
        self.vitals.set_sent(self.sequence);
        self.vitals.set_at_work(0, 0);
        self.vitals.survived();
    }
}
