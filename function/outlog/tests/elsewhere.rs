//! A log with a door: units and strangers of other hosts, over real connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pando_outlog::keys::{self, Key, Keys};
use pando_outlog::link::Transport;
use pando_outlog::record::{self, FlowHead, Head, Hello, Parts, Reader, kind};
use pando_outlog::sealed;
use pando_outlog::server::{Bounds, Door, Server};
use pando_outlog::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(20);
const STATE_BYTES: usize = 4;
/// The largest state.
const LARGE: usize = 4096;
const BLUE: Key = [1; 32];
const RED: Key = [2; 32];

/// A log that ends with the test.
struct Log {
    address: SocketAddr,
    end: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Log {
    fn start(bounds: Bounds) -> Log {
        let text = format!("{}\n{}\n", keys::line("blue", &BLUE), keys::line("red", &RED));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (end, signals) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let door = Door::new(listener, Keys::parse(&text).unwrap(), bounds)?;
            Server::new(None, Some(door), signals.as_raw_fd()).run()
        });
        Log { address, end: Some(end), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Calls as a tenant; the link has no introduction yet.
    fn call(&self, tenant: &str, key: &Key) -> io::Result<Stream> {
        let socket = self.connect();
        let session = sealed::call(&socket, tenant, key, PATIENCE)?;
        Stream::of_unit(socket, &session)
    }

    /// Calls as the first unit of a run of blue's NAT, on a new host.
    fn run(&self, run: u64, chain: u64) -> Stream {
        let mut link = self.call("blue", &BLUE).unwrap();
        let (state_bytes, unit) = (vec![STATE_BYTES], "blue/nat".into());
        link.send(&Hello { run, chain, epoch: 1, state_bytes, unit }.encode()).unwrap();
        link
    }

    /// Calls as a unit of blue.
    fn unit(&self, name: &str, epoch: u32) -> Stream {
        let mut link = self.call("blue", &BLUE).unwrap();
        introduce(&mut link, &format!("blue/{name}"), epoch, STATE_BYTES);
        link
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.thread.take().unwrap().join();
        assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
    }
}

fn introduce(link: &mut Stream, unit: &str, epoch: u32, state_bytes: usize) {
    let state_bytes = vec![state_bytes];
    let hello = Hello { run: 1, chain: 1, epoch, state_bytes, unit: unit.into() };
    link.send(&hello.encode()).unwrap();
}

/// Returns the message about a batch that left this state in a flow.
fn batch(sequence: u64, flow: u64, state: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    let at = record::put_head(&mut message, &Head { sequence, epoch: 1, ..Head::default() });
    let mut key = [0; pando_flow::FlowKey::LENGTH_BYTES];
    key[..8].copy_from_slice(&flow.to_le_bytes());
    let key = pando_flow::FlowKey::from_bytes(key);
    let (leases, ends) = Default::default();
    let (alias, up, valid, taken, changed) = (None, true, 1, 0, 1);
    record::put_flow(
        &mut message,
        &FlowHead { key, alias, up, valid, taken, changed, leases, ends },
    );
    record::put_state(&mut message, state);
    record::set_counts(&mut message, at, [0, 1, 0]);
    message
}

/// Waits until the log has applied a batch.
fn applied(link: &mut Stream, sequence: u64) -> io::Result<()> {
    let mut message = Vec::new();
    link.receive_by(&mut message, Instant::now() + PATIENCE)?;
    assert_eq!(message, [&[kind::APPLIED][..], &sequence.to_le_bytes()].concat());
    Ok(())
}

/// Fills the copy of a unit with one flow.
fn fill(link: &mut Stream, state: u8) {
    link.send(&[kind::CLEAR]).unwrap();
    link.send(&batch(1, 7, &[state; STATE_BYTES])).unwrap();
    applied(link, 1).unwrap();
}

/// Returns the last batch that the log hands to a standby.
fn taken(link: &mut Stream) -> io::Result<Option<u64>> {
    link.send(&[kind::TAKE])?;
    handed(link)
}

/// Returns the last batch of the state that the log hands over.
fn handed(link: &mut Stream) -> io::Result<Option<u64>> {
    let mut whole = false;
    loop {
        let mut message = Vec::new();
        link.receive_by(&mut message, Instant::now() + PATIENCE)?;
        match message[0] {
            kind::TAKEN if message[1] == 0 => return Ok(None),
            kind::TAKEN => whole = true,
            kind::BATCH if whole => {
                return Ok(Some(Reader(&message[1..]).head().unwrap().0.sequence));
            }
            _ => {}
        }
    }
}

/// Waits for the end of a link.
fn end_of(link: &mut Stream) -> ErrorKind {
    link.receive_by(&mut Vec::new(), Instant::now() + PATIENCE).unwrap_err().kind()
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Callers without the key, in the clear, with another tenant's key, and under a foreign name take
/// and clear nothing. The unit works on.
#[test]
fn a_caller_without_the_key_takes_and_clears_nothing() {
    let log = Log::start(Bounds::default());
    let mut unit = log.unit("nat", 1);
    fill(&mut unit, 1);

    let refused = log.call("blue", &RED).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    assert!(refused.to_string().contains("it refuses the key of tenant blue"), "{refused}");
    assert!(log.call("green", &RED).is_err(), "a tenant that the log does not know");

    // The talk of a release before this one, in the clear.
    let mut plain = log.connect();
    let (state_bytes, name) = (vec![STATE_BYTES], "blue/nat".into());
    let hello = Hello { run: 1, chain: 1, epoch: 9, state_bytes, unit: name };
    for message in [hello.encode(), vec![kind::CLEAR]] {
        let length = (message.len() as u32).to_le_bytes();
        let _ = plain.write_all(&[&length[..], &message].concat());
    }
    assert!(matches!(plain.read(&mut [0; 64]), Ok(0) | Err(_)), "it gets no answer");

    // Another tenant, under the name of the unit.
    let mut red = log.call("red", &RED).unwrap();
    introduce(&mut red, "blue/nat", 9, STATE_BYTES);
    let _ = red.send(&[kind::CLEAR]);
    assert!(is_closed(end_of(&mut red)));
    let mut red = log.call("red", &RED).unwrap();
    introduce(&mut red, "red/nat", 9, STATE_BYTES);
    assert_eq!(taken(&mut red).unwrap(), None, "it has no state of its own");

    unit.send(&batch(2, 7, &[2; STATE_BYTES])).unwrap();
    applied(&mut unit, 2).unwrap();
    let mut standby = log.unit("nat", 2);
    assert_eq!(taken(&mut standby).unwrap(), Some(2));
}

/// A recorded talk that is sent again, and a talk that is changed on its way, end their link only.
#[test]
fn a_talk_that_is_repeated_or_changed_is_refused() {
    let log = Log::start(Bounds::default());
    let mut unit = log.unit("nat", 1);
    fill(&mut unit, 1);
    // Somebody between a unit and the log, which changes one bit after the handshake.
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(between.local_addr().unwrap()).unwrap();
    let (mut inner, mut outer) = (between.accept().unwrap().0, log.connect());
    let relay = std::thread::spawn(move || {
        let mut call = vec![0; 2 + 1 + "blue".len() + 48];
        inner.read_exact(&mut call).unwrap();
        outer.write_all(&call).unwrap();
        let mut answer = [0; 50];
        outer.read_exact(&mut answer).unwrap();
        inner.write_all(&answer).unwrap();
        let mut record = vec![0; 40];
        inner.read_exact(&mut record).unwrap();
        record[20] ^= 1;
        outer.write_all(&record).unwrap();
        (call, outer)
    });
    let session = sealed::call(&near, "blue", &BLUE, PATIENCE).unwrap();
    let mut changed = Stream::of_unit(near, &session).unwrap();
    introduce(&mut changed, "blue/nat", 9, STATE_BYTES);
    let (call, mut outer) = relay.join().unwrap();
    outer.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(outer.read(&mut [0; 64]), Ok(0) | Err(_)), "a changed record ends the link");

    let mut again = log.connect();
    again.write_all(&call).unwrap();
    let mut answer = [0; 50];
    again.read_exact(&mut answer).unwrap();
    again.write_all(&[40, 0]).unwrap();
    again.write_all(&[7; 40]).unwrap();
    assert!(matches!(again.read(&mut [0; 64]), Ok(0) | Err(_)), "the keys of a talk are its own");
    let mut standby = log.unit("nat", 2);
    assert_eq!(taken(&mut standby).unwrap(), Some(1));
}

/// A peer sends batches and reads no answer. The log lets it go, and serves another one meanwhile.
#[test]
fn a_peer_that_does_not_read_is_let_go_and_stalls_no_other() {
    let log = Log::start(Bounds::default());
    let (mut other, mut deaf) = (log.unit("other", 1), log.unit("deaf", 1));
    fill(&mut other, 1);
    let room = 4096i32;
    // SAFETY: the option takes an int, which lives during the call.
    let set = unsafe {
        let bytes = size_of_val(&room) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
        libc::setsockopt(deaf.fd(), level, option, (&raw const room).cast(), bytes)
    };
    assert_eq!(set, 0);
    deaf.send(&[kind::CLEAR]).unwrap();
    let (until, mut sequence) = (Instant::now() + 6 * PATIENCE, 0);
    // Its answers fill the buffers of the kernel, and then the log's queue.
    while Instant::now() < until {
        sequence += 1;
        if deaf.send(&batch(sequence, 7, &[1; STATE_BYTES])).is_err() {
            break;
        }
        if sequence % 1000 == 0 {
            let next = 1 + sequence / 1000;
            other.send(&batch(next, 7, &[2; STATE_BYTES])).unwrap();
            applied(&mut other, next).unwrap();
        }
    }
    assert!(Instant::now() < until, "the log still answers after {sequence} batches");
    let mut standby = log.unit("other", 2);
    assert_eq!(taken(&mut standby).unwrap(), Some(1 + (sequence - 1) / 1000));
}

/// A standby takes over a state that is larger than all buffers, and reads late.
#[test]
fn a_large_state_is_handed_over_in_parts() {
    let log = Log::start(Bounds::default());
    let mut unit = log.call("blue", &BLUE).unwrap();
    introduce(&mut unit, "blue/large", 1, LARGE);
    unit.send(&[kind::CLEAR]).unwrap();
    for n in 1..=2000 {
        unit.send(&batch(n, n, &[n as u8; LARGE])).unwrap();
        applied(&mut unit, n).unwrap();
    }
    let mut standby = log.call("blue", &BLUE).unwrap();
    introduce(&mut standby, "blue/large", 2, LARGE);
    standby.send(&[kind::TAKE]).unwrap();
    let mut other = log.unit("other", 1);
    fill(&mut other, 1);
    assert_eq!(taken(&mut standby).unwrap(), Some(2000));
}

/// Names, messages, callers, connections and memory have bounds.
#[test]
fn what_a_tenant_may_hold_has_bounds() {
    let bounds = Bounds { tenant_bytes: 1 << 20, tenant_links: 4, ..Bounds::default() };
    let log = Log::start(bounds);
    let mut other = log.call("red", &RED).unwrap();
    introduce(&mut other, "red/small", 1, STATE_BYTES);
    fill(&mut other, 1);

    let mut long = log.call("blue", &BLUE).unwrap();
    introduce(&mut long, &format!("blue/{}", "n".repeat(128)), 1, STATE_BYTES);
    assert!(is_closed(end_of(&mut long)), "a long name");

    // The copy of a unit that left goes first, then the unit that came last.
    let mut gone = log.unit("gone", 1);
    fill(&mut gone, 1);
    drop(gone);
    let mut first = log.unit("first", 1);
    fill(&mut first, 1);
    let mut large = log.call("blue", &BLUE).unwrap();
    introduce(&mut large, "blue/large", 1, LARGE);
    large.send(&[kind::CLEAR]).unwrap();
    let filled = (1..1000).find(|&n| {
        let sent = large.send(&batch(n, n, &[7; LARGE]));
        sent.and_then(|()| applied(&mut large, n)).is_err()
    });
    assert!(filled.is_some_and(|n| (50..300).contains(&n)), "{filled:?} flows of 4 kB in 1 MiB");
    first.send(&batch(2, 7, &[2; STATE_BYTES])).unwrap();
    applied(&mut first, 2).unwrap();
    assert_eq!(taken(&mut log.unit("gone", 2)).unwrap(), None, "its copy went first");

    let mut links: Vec<Stream> = Vec::new();
    let refused = (0..8).find_map(|n| {
        let mut link = log.call("blue", &BLUE).unwrap();
        let unit = format!("blue/{n}");
        let hello = Hello { run: 1, chain: 1, epoch: 1, state_bytes: vec![], unit };
        let ended = link.send(&hello.encode()).and_then(|()| link.send(&[kind::TAKE]));
        let ended = ended
            .and_then(|()| link.receive_by(&mut Vec::new(), Instant::now() + PATIENCE).map(drop));
        links.push(link);
        ended.err().map(|e| (n, e.kind()))
    });
    assert!(refused.is_some_and(|(n, e)| n <= 4 && is_closed(e)), "{refused:?}");
    other.send(&batch(2, 7, &[2; STATE_BYTES])).unwrap();
    applied(&mut other, 2).unwrap();
}

/// Many strangers connect and stay silent. Units come in.
#[test]
fn silent_callers_make_room_for_units() {
    let log = Log::start(Bounds::default());
    let silent: Vec<TcpStream> = (0..200).map(|_| log.connect()).collect();
    let mut unit = log.unit("nat", 1);
    fill(&mut unit, 1);
    let closed = |mut s: &TcpStream| matches!(s.read(&mut [0; 1]), Ok(0) | Err(_));
    assert!(silent.iter().all(closed), "each is let go, the last ones by time");
    unit.send(&batch(2, 7, &[2; STATE_BYTES])).unwrap();
    applied(&mut unit, 2).unwrap();
}

/// The host of a unit is gone. A unit that starts on another one gets the state of all flows, when
/// the log has read all that the other one wrote. A host that was only cut off changes nothing any
/// more.
#[test]
fn a_new_run_takes_up_the_state_of_the_run_before() {
    let log = Log::start(Bounds::default());
    let (mut first, mut standby) = (log.run(1, 7), log.run(1, 7));
    fill(&mut first, 1);
    standby.send(&[kind::FOLLOW]).unwrap();
    let mut next = log.run(2, 7);
    next.send(&[kind::ADOPT, 1]).unwrap();
    // Without the question, another run clears nothing.
    let mut rude = log.run(3, 7);
    rude.send(&[kind::CLEAR]).unwrap();
    assert!(is_closed(end_of(&mut rude)));
    first.send(&batch(2, 7, &[2; STATE_BYTES])).unwrap();
    applied(&mut first, 2).unwrap();
    drop(first);
    // The standby of the old run is there, and may take over.
    assert_eq!(taken(&mut standby).unwrap(), Some(2));
    standby.send(&batch(3, 7, &[3; STATE_BYTES])).unwrap();
    applied(&mut standby, 3).unwrap();
    drop(standby);
    assert_eq!(handed(&mut next).unwrap(), Some(3));
    next.send(&batch(4, 7, &[4; STATE_BYTES])).unwrap();
    applied(&mut next, 4).unwrap();

    for message in [vec![kind::CLEAR], vec![kind::TAKE], vec![kind::GO_ON], batch(4, 7, &[9; 4])] {
        let mut late = log.run(1, 7);
        late.send(&message).unwrap();
        assert!(is_closed(end_of(&mut late)), "{message:?}");
    }
    let mut late = log.run(1, 7);
    late.send(&[kind::END]).unwrap();
    drop(late);
    next.send(&batch(5, 7, &[5; STATE_BYTES])).unwrap();
    applied(&mut next, 5).unwrap();
    // Its answer is lost, so it asks again.
    let mut again = log.run(2, 7);
    again.send(&[kind::ADOPT, 1]).unwrap();
    assert_eq!(handed(&mut again).unwrap(), Some(5));
}

/// No state is taken up by other functions, by a unit with a newer state, after an order to end,
/// and after the time of a copy without a unit.
#[test]
fn a_run_that_cannot_use_a_state_gets_none() {
    let bounds = [Bounds::default(), Bounds { orphan: Duration::ZERO, ..Bounds::default() }];
    let cases: [(usize, u64, &[u8], &[u8]); 4] = [
        (0, 8, &[kind::FOLLOW], &[kind::ADOPT, 1]),
        (0, 7, &[kind::FOLLOW], &[kind::ADOPT, 0]),
        (0, 7, &[kind::END], &[kind::ADOPT, 1]),
        (1, 7, &[kind::FOLLOW], &[kind::ADOPT, 1]),
    ];
    for (n, (bound, chain, last, first)) in cases.into_iter().enumerate() {
        let log = Log::start(bounds[bound]);
        let mut unit = log.run(1, 7);
        fill(&mut unit, 1);
        unit.send(last).unwrap();
        drop(unit);
        if bound == 1 {
            // The log looks at the time when a unit comes, after it has noticed the end.
            let mut other = log.unit("other", 1);
            fill(&mut other, 1);
        }
        let mut next = log.run(2, chain);
        next.send(first).unwrap();
        assert_eq!(handed(&mut next).unwrap(), None, "case {n}");
        fill(&mut next, 2);
    }
}
