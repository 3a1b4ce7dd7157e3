//! Units that die in unlucky moments, against a log that reads late.

use super::super::record::{self, Head};
use super::*;

const STATE_BYTES: usize = 4;

/// A unit's or standby's end of a link to the log.
fn call(server: &mut Server, epoch: u32) -> Shared {
    let (memory, unit, log) = Shared::make().unwrap();
    server.welcome(Box::new(Shared::open(&memory, log, false).unwrap()), None);
    let mut link = Shared::open(&memory, unit, true).unwrap();
    link.send(
        &Hello {
            run: 1,
            chain: 1,
            epoch,
            state_bytes: vec![STATE_BYTES],
            unit: "tenant/unit".into(),
        }
        .encode(),
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
        &Hello {
            run: 1,
            chain: 1,
            epoch: 1,
            state_bytes: vec![STATE_BYTES],
            unit: "tenant/unit".into(),
        }
        .encode(),
    )
    .unwrap();
    unit.send(&[kind::CLEAR]).unwrap();
    unit.send(&batch(1, 1, 1)).unwrap();
    server.welcome(
        Box::new(Sudden { link: Shared::open(&memory, log, false).unwrap(), unit: Some(unit) }),
        None,
    );
    let mut standby = call(&mut server, 2);
    turns(&mut server);
    assert_eq!(taken(&mut server, &mut standby), Some(2));
}

/// Returns the messages that a unit sends in its life: its state whole, then batches.
fn life(epoch: u32, sequence: u64) -> Vec<Vec<u8>> {
    let mut flows = vec![kind::FLOWS, 1, 0, 0, 0];
    let whole = batch(epoch, sequence, 1);
    // The flow of a batch stands behind its head.
    let mut reader = Reader(&whole[1..]);
    reader.head().unwrap();
    flows.extend_from_slice(reader.0);
    vec![vec![kind::CLEAR], flows, whole, batch(epoch, sequence + 1, 2)]
}

/// Returns a damaged message: cut off, with bytes changed, or of another kind.
fn damaged(message: &[u8], random: &mut u64) -> Vec<u8> {
    let mut dice = |sides: usize| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 33) as usize % sides
    };
    let mut message = message.to_vec();
    match dice(4) {
        0 => message.truncate(dice(message.len() + 1)),
        1 => message[0] = dice(16) as u8,
        2 => message.extend((0..dice(40)).map(|n| n as u8)),
        _ => {
            let at = dice(message.len());
            message[at] = dice(256) as u8;
        }
    }
    message
}

/// A unit that sends damaged messages is let go or read on. The log does not end, and the state of
/// another unit stays.
#[test]
fn damaged_messages_harm_no_other_unit() {
    for seed in 1..=20 {
        let mut random = seed;
        let mut server = Server::new(None, None, -1);
        let (memory, unit, log) = Shared::make().unwrap();
        server.welcome(Box::new(Shared::open(&memory, log, false).unwrap()), None);
        let mut other = Shared::open(&memory, unit, true).unwrap();
        let hello = Hello {
            run: 1,
            chain: 1,
            epoch: 1,
            state_bytes: vec![STATE_BYTES],
            unit: "another/unit".into(),
        };
        other.send(&hello.encode()).unwrap();
        life(1, 1).iter().for_each(|message| other.send(message).unwrap());
        turns(&mut server);
        let before = server.copies["another/unit"].last().to_vec();

        let mut hostile = call(&mut server, 1);
        let lived = life(1, 1);
        for n in 0..12usize {
            let message = &lived[n % lived.len()];
            let sent = if n % 3 == 0 { message.clone() } else { damaged(message, &mut random) };
            if hostile.send(&sent).is_err() {
                break;
            }
            turns(&mut server);
            server.tell_standbys();
        }
        assert_eq!(server.copies["another/unit"].last(), before, "seed {seed}");
        let hello = Hello { epoch: 2, ..hello };
        let mut standby = call(&mut server, 2);
        standby.send(&hello.encode()).unwrap();
        assert_eq!(taken(&mut server, &mut standby), Some(2), "seed {seed}");
    }
}

/// A message before the introduction, and one of a standby that is no unit, end their link only.
#[test]
fn a_stranger_is_let_go() {
    for message in [vec![kind::CLEAR], vec![kind::TAKE], batch(1, 1, 1), vec![], vec![99]] {
        let mut server = Server::new(None, None, -1);
        let (memory, unit, log) = Shared::make().unwrap();
        server.welcome(Box::new(Shared::open(&memory, log, false).unwrap()), None);
        let mut stranger = Shared::open(&memory, unit, true).unwrap();
        stranger.send(&message).unwrap();
        turns(&mut server);
        assert!(server.peers.is_empty() && server.copies.is_empty(), "{message:?}");
    }
    let mut server = Server::new(None, None, -1);
    let mut standby = call(&mut server, 1);
    standby.send(&batch(1, 1, 1)).unwrap();
    turns(&mut server);
    assert!(server.peers.is_empty(), "a batch of a unit that sent no whole state");
}

/// A standby with functions of other states gets no state.
#[test]
fn a_standby_of_another_chain_gets_no_state() {
    let mut server = Server::new(None, None, -1);
    let mut first = call(&mut server, 1);
    life(1, 1).iter().for_each(|message| first.send(message).unwrap());
    turns(&mut server);
    let mut standby = call(&mut server, 2);
    let hello = Hello {
        run: 1,
        chain: 1,
        epoch: 2,
        state_bytes: vec![STATE_BYTES, 8],
        unit: "tenant/unit".into(),
    };
    standby.send(&hello.encode()).unwrap();
    standby.send(&[kind::TAKE]).unwrap();
    turns(&mut server);
    let mut message = Vec::new();
    assert!(standby.receive(&mut message).unwrap());
    assert_eq!(message, [kind::TAKEN, 0, 0, 0, 0, 0]);
    message.clear();
    assert!(!standby.receive(&mut message).unwrap(), "{message:?}");
}

/// A batch is missing between two others. The log lets its unit go: it would hand over a state
/// that never was.
#[test]
fn a_gap_between_batches_is_refused() {
    for (epoch, sequence) in [(1, 4), (1, 2), (0, 3)] {
        let mut server = Server::new(None, None, -1);
        let mut unit = call(&mut server, 1);
        life(1, 1).iter().for_each(|message| unit.send(message).unwrap());
        unit.send(&batch(epoch, sequence, 9)).unwrap();
        turns(&mut server);
        assert!(server.peers.is_empty(), "batch {sequence} of epoch {epoch}");
        let mut standby = call(&mut server, 2);
        assert_eq!(taken(&mut server, &mut standby), Some(2));
    }
}

/// The copy of a unit waits for its standby after both have ended, and not for ever.
#[test]
fn a_copy_without_unit_and_standby_is_dropped_after_a_while() {
    let mut server = Server::new(None, None, -1);
    let mut unit = call(&mut server, 1);
    life(1, 1).iter().for_each(|message| unit.send(message).unwrap());
    turns(&mut server);
    drop(unit);
    turns(&mut server);
    let _other = call(&mut server, 2);
    let copy = server.copies.get_mut("tenant/unit").expect("it waits");
    assert!(copy.orphaned.is_some());
    copy.orphaned = Instant::now().checked_sub(ORPHAN);
    if copy.orphaned.is_some() {
        let _third = call(&mut server, 3);
        assert!(server.copies.is_empty());
    }
}
