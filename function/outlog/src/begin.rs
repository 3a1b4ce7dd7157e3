//! The first unit of a run takes up the state that another run left in the log.
//!
//! ```text
//!   no log yet ──order──► asked ──► the log has a state of the same functions: its last batch
//!       ▲  │                │  │    leaves again, and the unit serves
//!       │  │                │  └──► it has none: the unit serves, and fills it
//!       │  │                └─ the link ended
//!       └──┼────────────────┘
//!          └─ patience is over: the unit serves without the state
//! ```
//!
//! The host of that run is gone, or it was cut off: the log answers when the run has no link any
//! more, and refuses its messages from then on. A batch in the log never is processed again; its
//! packets leave once more, because they may not have left before. A batch that is
//! not in the log was lost with the ring of the host, and has left no state and no packet.

use std::io::{self, ErrorKind};
use std::time::Instant;

use pando_abi::executor::Executor;
use pando_chain::Chain;
use pando_net::port::Port;

use super::answer::{Answer, Taken, malformed};
use super::journal::{Done, Journal};
use super::link::Link;
use super::record::kind;
use super::vitals::Count;

impl Journal {
    /// Reports whether this is the first unit of its run and waits for the log. It serves no packet
    /// then.
    pub fn begins(&self) -> bool {
        let vitals = &self.vitals;
        self.takes_up && !self.alone && vitals.appended() == 0 && vitals.sent() == 0
    }

    /// Goes on with the beginning of the run: reads orders and the answer of the log. Call it while
    /// [`Journal::begins`], after each sleep.
    pub fn start<E: Executor>(
        &mut self,
        chain: &mut Chain<E>,
        ports: &mut [Port],
    ) -> io::Result<()> {
        self.vitals.beat();
        match self.orders.as_ref().map(|orders| orders.receive(false)) {
            Some(Ok(order)) => {
                self.answer = Answer::default();
                self.greet(order, Some(&[kind::ADOPT, 1]));
            }
            Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => {}
            _ => return Err(io::Error::other("the process that watches this unit is gone")),
        }
        match self.hear(chain) {
            Ok(Some(taken)) => self.take_up(chain, ports, taken),
            Ok(None) if self.leaves_alone(0) => {
                self.link.take().iter().for_each(|l| self.tell(&format!("unlinked {}", l.number)));
                chain.release_all();
            }
            Ok(None) => {}
            Err(_) => {
                chain.release_all();
                self.lose();
            }
        }
        Ok(())
    }

    /// Begins in place of a unit that died before it served a packet. Its standby has no state, and
    /// gets a link of its own.
    pub fn begin_again(&mut self, link: Option<Link>, noticed: Instant) {
        let number = link.map_or(0, |link| link.number);
        self.vitals.add(Count::Takeovers, 1);
        self.report(&format!("unlinked {number}"));
        self.report(r#"{"taken_over":{"epoch":0,"totals":[]}}"#);
        self.go_on(0, None, noticed);
    }

    /// Reads the answer of the log, as far as it has come.
    fn hear<E: Executor>(&mut self, chain: &mut Chain<E>) -> io::Result<Option<Taken>> {
        let Some(link) = &mut self.link else { return Ok(None) };
        loop {
            self.message.clear();
            if !link.way.receive(&mut self.message)? {
                return link.way.woken().map(|()| None);
            }
            let read = self.answer.read(chain, &self.message);
            if let Some(taken) = read.map_err(malformed)? {
                return Ok(Some(taken));
            }
        }
    }

    fn take_up<E: Executor>(&mut self, chain: &mut Chain<E>, ports: &mut [Port], taken: Taken) {
        let Some((head, packets)) = taken.last else {
            let nothing = Done { positions: [0; 2], port: 0, frames: &[], forgotten: &[] };
            return self.fill(chain, &nothing);
        };
        chain.flows.see_all(pando_net::clock::now().as_nanos() as u64);
        let frames: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        ports[usize::from(head.port) % ports.len()].send(&frames);
        // The last batch has positions in the rings of a host that is gone. A standby needs those
        // of this one.
        self.sequence = head.sequence + 1;
        let positions = std::array::from_fn(|n| ports.get(n).map_or(0, Port::position));
        self.encode(chain, &Done { positions, port: 0, frames: &[], forgotten: &[] }, &[]);
        if self.hand_over().is_err() {
            chain.release_all();
            return self.lose();
        }
        self.vitals.set_sent(self.sequence);
        self.vitals.add(Count::TakenUp, taken.flows as u64);
        self.vitals.add(Count::SentAgain, frames.len() as u64);
        self.found();
        pando_walls::say!(
            "the state of {} flows is taken up from the run before, up to its batch {}, and the {} \
             packets of that batch leave again",
            taken.flows,
            head.sequence,
            frames.len()
        );
    }

    /// Lets the log forget the state, at the end of a run by an order of the operator.
    pub fn end(&mut self) {
        if let Some(link) = self.link.as_mut().filter(|_| self.takes_up) {
            // A log that does not get this keeps the state for a while.
            let _ = link.way.send(&[kind::END]).and_then(|()| link.way.flush());
        }
    }
}
