//! Units that die in unlucky moments, against a log that reads late.

use super::super::record::{self, Head};
use super::*;

const STATE_BYTES: usize = 4;

/// A unit's or standby's end of a link to the log.
fn call(server: &mut Server, epoch: u32) -> Shared {
    let (memory, unit, log) = Shared::make().unwrap();
    server.welcome(Box::new(Shared::open(&memory, log, false).unwrap()));
    let mut link = Shared::open(&memory, unit, true).unwrap();
    link.send(
        &Hello { epoch, state_bytes: vec![STATE_BYTES], unit: "tenant/unit".into() }.encode(),
    )
    .unwrap();
    link
}

/// Returns the message about a batch that left this state in the only flow.
fn batch(epoch: u32, sequence: u64, state: u8) -> Vec<u8> {
    let mut message = Vec::new();
    let at = record::put_head(&mut message, &Head { epoch, sequence, ..Head::default() });
    let key = pando_flow::FlowKey::from_bytes([7; pando_flow::FlowKey::LENGTH_BYTES]);
    let flow = record::FlowHead {
        key,
        alias: None,
        up: true,
        valid: 1,
        taken: 0,
        changed: 1,
        leases: Default::default(),
        ends: Default::default(),
    };
    record::put_flow(&mut message, &flow);
    record::put_state(&mut message, &[state; STATE_BYTES]);
    record::set_counts(&mut message, at, [0, 1, 0]);
    message
}

/// Gives each peer its turn, as the log does after a sleep.
fn turns(server: &mut Server) {
    let mut at = 0;
    while at < server.peers.len() {
        match server.turn(at) {
            Ok(()) => at += 1,
            Err(parting) => server.part(at, &parting),
        }
    }
}

/// Returns the number of the last batch that the log hands to a standby that asks.
fn taken(server: &mut Server, standby: &mut Shared) -> Option<u64> {
    standby.send(&[kind::TAKE]).unwrap();
    turns(server);
    let mut message = Vec::new();
    while standby.receive(&mut message).unwrap() {
        let mut reader = Reader(&message);
        if reader.u8() == Ok(kind::BATCH) {
            return Some(reader.head().unwrap().0.sequence);
        }
        message.clear();
    }
    None
}

#[test]
fn a_unit_that_lived_shortly_is_read_before_its_standby_gets_the_state() {
    let mut server = Server::new(None, None, -1);
    let mut first = call(&mut server, 1);
    first.send(&[kind::CLEAR]).unwrap();
    first.send(&batch(1, 1, 1)).unwrap();
    turns(&mut server);
    // While the log sleeps, the unit dies, the next one works and dies, and the third asks. The
    // end of the first moves the third before the second in the list of peers.
    let (mut second, mut third) = (call(&mut server, 2), call(&mut server, 3));
    drop(first);
    second.send(&[kind::GO_ON]).unwrap();
    second.send(&batch(2, 2, 2)).unwrap();
    drop(second);
    assert_eq!(taken(&mut server, &mut third), Some(2));
}

/// Returns the kinds of the messages that a standby gets, up to its first mark.
fn followed(server: &mut Server, standby: &mut Shared) -> Vec<u8> {
    let (mut kinds, mut message) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(10);
    while kinds.last() != Some(&kind::EVEN) && Instant::now() < deadline {
        server.tell_standbys();
        message.clear();
        if standby.receive(&mut message).unwrap() {
            kinds.push(message[0]);
        }
    }
    kinds
}

#[test]
fn a_standby_that_follows_before_its_unit_goes_on_is_sent_the_state() {
    for order in [kind::GO_ON, kind::TAKE] {
        let mut server = Server::new(None, None, -1);
        let mut first = call(&mut server, 1);
        first.send(&[kind::CLEAR]).unwrap();
        first.send(&batch(1, 1, 1)).unwrap();
        turns(&mut server);
        let (mut second, mut third) = (call(&mut server, 2), call(&mut server, 3));
        drop(first);
        second.send(&[order]).unwrap();
        third.send(&[kind::FOLLOW]).unwrap();
        turns(&mut server);
        assert_eq!(
            followed(&mut server, &mut third),
            [kind::CLEAR, kind::FLOWS, kind::EVEN],
            "after {order}"
        );
    }
}

#[test]
fn a_late_message_of_a_dead_unit_changes_nothing() {
    let mut server = Server::new(None, None, -1);
    let (mut first, mut second, mut third) =
        (call(&mut server, 1), call(&mut server, 2), call(&mut server, 3));
    first.send(&[kind::CLEAR]).unwrap();
    first.send(&batch(1, 1, 1)).unwrap();
    turns(&mut server);
    assert_eq!(taken(&mut server, &mut third), Some(1));
    second.send(&[kind::GO_ON]).unwrap();
    second.send(&batch(2, 2, 2)).unwrap();
    third.send(&batch(3, 2, 3)).unwrap();
    turns(&mut server);
    let copy = &server.copies["tenant/unit"];
    assert_eq!((copy.epoch, copy.sequence), (3, 2));
    assert!(server.peers.iter().any(|p| p.active), "the third unit keeps its link");
}

#[test]
fn a_unit_that_writes_and_dies_after_the_last_look_is_read_to_its_end() {
    /// A link whose unit writes its last batch and dies as soon as the log finds it empty.
    struct Sudden {
        link: Shared,
        unit: Option<Shared>,
    }
    impl Transport for Sudden {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            self.link.send(message)
        }
        fn has_room(&self, bytes: usize) -> bool {
            self.link.has_room(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.link.flush()
        }
        fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
            let received = self.link.receive(into)?;
            if !received && let Some(mut unit) = self.unit.take() {
                unit.send(&batch(1, 2, 2)).unwrap();
            }
            Ok(received)
        }
        fn may_sleep(&mut self) -> bool {
            self.link.may_sleep()
        }
        fn woken(&mut self) -> io::Result<()> {
            self.link.woken()
        }
        fn fd(&self) -> RawFd {
            self.link.fd()
        }
        fn keeps_at_once(&self) -> bool {
            true
        }
        fn received_at(&self) -> Option<u64> {
            self.link.received_at()
        }
    }
    let mut server = Server::new(None, None, -1);
    let (memory, unit, log) = Shared::make().unwrap();
    let mut unit = Shared::open(&memory, unit, true).unwrap();
    unit.send(
        &Hello { epoch: 1, state_bytes: vec![STATE_BYTES], unit: "tenant/unit".into() }.encode(),
    )
    .unwrap();
    unit.send(&[kind::CLEAR]).unwrap();
    unit.send(&batch(1, 1, 1)).unwrap();
    server.welcome(Box::new(Sudden {
        link: Shared::open(&memory, log, false).unwrap(),
        unit: Some(unit),
    }));
    let mut standby = call(&mut server, 2);
    turns(&mut server);
    assert_eq!(taken(&mut server, &mut standby), Some(2));
}
