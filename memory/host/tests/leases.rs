//! The leases of a memory host against a plain model, and the addresses it listens at.

use memory_host::{Address, Lease, Leases};
use std::collections::BTreeMap;
use std::sync::Arc;

const SLOTS: u64 = 40;

/// A generator of test data: the same sequence on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A lease as the model has it.
struct Loan {
    lease: Arc<Lease>,
    connections: usize,
    last: bool,
    replaces: u64,
}

struct World {
    leases: Leases,
    model: BTreeMap<u64, Loan>,
    /// Leases that have ended.
    ended: Vec<Arc<Lease>>,
}

impl World {
    fn free(&self) -> u64 {
        SLOTS - self.model.values().map(|loan| loan.lease.slots).sum::<u64>()
    }

    fn opened(&mut self, got: Result<Arc<Lease>, u64>, slots: u64, replaces: u64) {
        let free = self.free();
        let want = if slots == 0 { free } else { slots };
        if want == 0 || want > free {
            assert_eq!(got.err(), Some(free), "{slots} slots of {free}");
            return;
        }
        let lease = got.unwrap_or_else(|free| panic!("{slots} slots are refused, {free} free"));
        assert!(lease.slots == want && !lease.is_ended() && lease.id != 0);
        let loan = Loan { lease: lease.clone(), connections: 1, last: false, replaces };
        assert!(self.model.insert(lease.id, loan).is_none(), "a number is given twice");
    }

    fn replace(&mut self, old: u64, slots: u64) {
        let got = self.leases.replace(old, slots, "a").unwrap();
        let again = |loan: &&mut Loan| loan.replaces == old && loan.lease.slots == slots;
        if let Some(loan) = self.model.values_mut().find(again) {
            loan.connections += 1;
            assert_eq!(got.map(|l| l.id), Ok(loan.lease.id), "a repeated request");
            return;
        }
        if let Some(loan) = self.model.remove(&old) {
            assert!(loan.lease.is_ended(), "its borrower has given it up");
            self.ended.push(loan.lease);
        }
        self.opened(got, slots, old);
    }

    fn leave(&mut self, id: u64) {
        let loan = self.model.get_mut(&id).expect("a lease of the model");
        // A lease without connections would end by the clock, which the model does not have.
        if loan.connections == 1 && !loan.last {
            return;
        }
        self.leases.leave(id);
        loan.connections -= 1;
        if loan.connections == 0 {
            self.ended.extend(self.model.remove(&id).map(|loan| loan.lease));
        }
    }

    fn check(&self) {
        assert_eq!(self.leases.usage(), (SLOTS - self.free(), SLOTS));
        let loans = self.leases.loans();
        assert!(loans.is_sorted_by(|a, b| a.slots >= b.slots) && loans.len() == self.model.len());
        let connections: usize = loans.iter().map(|loan| loan.connections).sum();
        assert_eq!(connections, self.model.values().map(|loan| loan.connections).sum::<usize>());
        assert!(self.model.values().all(|loan| !loan.lease.is_ended()));
        assert!(self.ended.iter().all(|lease| self.leases.join(lease.id, false).is_none()));
    }
}

#[test]
fn leases_never_hold_more_than_there_is_and_end_once() {
    let mut numbers = Numbers(5);
    let mut world =
        World { leases: Leases::new(SLOTS, SLOTS), model: BTreeMap::new(), ended: vec![] };
    for _ in 0..3000 {
        let any = numbers.below(100) as usize;
        let id = world.model.keys().nth(any % world.model.len().max(1)).copied();
        let slots = numbers.below(13);
        match (numbers.below(6), id) {
            (0, _) => {
                let got = world.leases.open(slots, "a").unwrap();
                world.opened(got, slots, 0);
            }
            (1, Some(id)) => world.replace(id, 1 + slots),
            // A number that was never issued, as a spare has.
            (1, None) => world.replace(9 + slots, 1 + slots),
            (2, Some(id)) => {
                let last = slots < 6;
                let lease = world.leases.join(id, last).expect("it lives");
                let loan = world.model.get_mut(&lease.id).expect("a lease of the model");
                loan.connections += 1;
                loan.last |= last;
            }
            (3, _) => world.leases.sweep(),
            (_, Some(id)) => world.leave(id),
            _ => {}
        }
        world.check();
        if world.ended.len() > 20 {
            world.ended.drain(..10);
        }
    }
}

#[test]
fn a_lease_that_is_unknown_has_no_connection_to_leave() {
    let leases = Leases::new(SLOTS, SLOTS);
    leases.leave(7);
    leases.lent_to(7, "a borrower".into());
    assert!(leases.join(7, true).is_none() && leases.loans().is_empty());
    let lease = leases.open(3, "a").unwrap().unwrap();
    let mut pieces = vec![];
    assert!(lease.pieces(&[0, 1, 2], &mut pieces).is_some() && pieces.len() == 1, "one run");
    assert!(lease.pieces(&[2, 1, 0], &mut pieces).is_some() && pieces.len() == 3);
    assert!(lease.pieces(&[0, 0], &mut pieces).is_some() && pieces.len() == 2);
    assert!(lease.pieces(&[3], &mut pieces).is_none());
}

#[test]
fn an_address_is_printed_as_it_is_written() {
    for text in ["127.0.0.1:7070", "[::1]:1", "host.example:65535", "unix:/run/a b", "unix:x"] {
        let address: Address = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(address.to_string(), text);
        assert_eq!(matches!(address, Address::Unix(_)), text.starts_with("unix:"));
    }
    for bad in
        ["", ":", ":7070", "host", "host:", "host:65536", "host:-1", "host:x", "unix:", "7070"]
    {
        assert!(bad.parse::<Address>().is_err(), "{bad}");
    }
}
