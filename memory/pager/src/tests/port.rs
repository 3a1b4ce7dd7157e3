//! A port against a real memory host, and against hosts that answer anything.

use super::*;
use crate::port::Port;
use crate::transport::{Broken, Transport};
use memory_core::BATCH_PAGES_MAX;
use memory_core::wire::{Challenge, Hello, Reply, Request, Status, Welcome};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;

const HELLO: Hello = Hello { lease: 0, slots: 0, token: TOKEN, share: false, last: false };

fn port() -> Port {
    let mut port = Port::to(0);
    port.patience = DEADLINE.as_nanos() as u64;
    port
}

#[test]
fn pages_come_back_to_any_place_from_any_slots() {
    const SLOTS: u64 = 700;
    let (_server, at) = server(SLOTS);
    let mut port = port();
    let (welcome, memory) =
        port.open(&address(at, 0), &Hello { slots: SLOTS, ..HELLO }).expect("opens");
    assert_eq!((welcome.slots, memory), (SLOTS, -1), "TCP hands over no memory");
    assert!(port.is_open(welcome.lease) && !port.is_open(welcome.lease ^ 1));
    let (mut model, mut numbers) = (HashMap::new(), Numbers(4));
    let mut pages = Pages::new(BATCH_PAGES_MAX);
    for round in 1..80u64 {
        let count = if round % 20 == 0 { BATCH_PAGES_MAX } else { 1 + numbers.below(40) as usize };
        let first = numbers.below(SLOTS - count as u64 + 1) as u32;
        let step = if numbers.below(2) == 0 { 1 } else { SLOTS as u32 / count as u32 };
        let slots: Vec<u32> =
            (0..count as u32).map(|k| (first + k * step) % SLOTS as u32).collect();
        // The pages of the memory are adjacent, in reverse, or of both kinds.
        let mut places: Vec<*mut u8> = pages.at(count);
        let turned = numbers.below(count as u64 + 1) as usize;
        places[..turned].reverse();
        let tags: Vec<u64> = (0..count as u64).map(|k| round << 16 | k).collect();
        let mut by_place = tags.clone();
        by_place[..turned].reverse();
        if numbers.below(2) == 0 {
            pages.fill(&by_place);
            port.begin_write(&slots, &places).unwrap();
            port.end_write().unwrap();
            model.extend(slots.iter().copied().zip(tags));
        } else {
            port.begin_read(&slots).unwrap();
            port.end_read(&slots, &places).unwrap();
            let tag = |slot| model.get(slot).copied().unwrap_or(0);
            let mut expected: Vec<u64> = slots.iter().map(tag).collect();
            expected[..turned].reverse();
            assert!(pages.holds(&expected), "round {round}");
        }
    }
    port.close();
    assert!(!port.is_open(welcome.lease));
    assert_eq!(port.begin_read(&[0]), Err(Broken::Away));
    assert_eq!(port.end_write(), Err(Broken::Away));
}

/// A memory host that serves one connection with a function, which gets the stream after the
/// greeting.
fn host(serve: impl Fn(TcpStream) + Send + 'static) -> (Address, JoinHandle<()>) {
    host_of(1, serve)
}

/// A memory host that serves some connections, one after the other.
fn host_of(
    connections: usize,
    serve: impl Fn(TcpStream) + Send + 'static,
) -> (Address, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let served = std::thread::spawn(move || {
        for _ in 0..connections {
            let mut stream = listener.accept().unwrap().0;
            stream.set_nodelay(true).unwrap();
            stream.write_all(&Challenge { nonce: [5; 16] }.encode()).unwrap();
            stream.read_exact(&mut [0; Hello::BYTES]).unwrap();
            serve(stream);
        }
    });
    (address(at, 9), served)
}

/// Returns how often a port opens a connection that ends in this way.
fn tries(why: &Broken) -> usize {
    match why {
        Broken::Refused(Status::WrongVersion | Status::WrongToken) => 3,
        _ => 1,
    }
}

#[test]
fn a_host_that_begins_otherwise_gets_no_greeting() {
    for (begin, why) in [
        (vec![b'x'; Challenge::BYTES], Broken::Refused(Status::WrongVersion)),
        (b"PANDOFM2 and its first answer".to_vec(), Broken::Refused(Status::WrongVersion)),
        (Challenge { nonce: [5; 16] }.encode()[..23].to_vec(), Broken::Away),
        (vec![], Broken::Away),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let connections = tries(&why);
        let served = std::thread::spawn(move || {
            let mut sent = vec![];
            for _ in 0..connections {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(&begin).unwrap();
                // A port that left a byte unread has reset the connection already.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut sent);
            }
            sent
        });
        let mut port = port();
        assert_eq!(port.open(&address(at, 9), &HELLO), Err(why));
        assert_eq!(served.join().unwrap(), [], "nothing of the token");
    }
}

const WELCOME: Welcome = Welcome { status: Status::Ok, lease: 9, slots: 8 };

/// Sends bytes in pieces. A pause after each lets the port's wait end early.
fn dribble(stream: &mut TcpStream, bytes: &[u8], piece: usize) {
    for part in bytes.chunks(piece) {
        stream.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(8));
    }
}

#[test]
fn answers_in_pieces_are_answers() {
    let (at, served) = host(|mut stream| {
        dribble(&mut stream, &WELCOME.encode(), 9);
        let mut request = [0; Request::BYTES + 4];
        stream.read_exact(&mut request).unwrap();
        let mut answer = Reply { status: Status::Ok, serial: 1 }.encode().to_vec();
        answer.extend([7; PAGE_BYTES]);
        dribble(&mut stream, &answer, 1000);
    });
    let mut port = port();
    assert_eq!(port.open(&at, &HELLO), Ok((WELCOME, -1)));
    let mut pages = Pages::new(1);
    port.begin_read(&[3]).unwrap();
    port.end_read(&[3], &pages.at(1)).unwrap();
    assert!(pages.0[0] == [7; PAGE_BYTES]);
    served.join().unwrap();
}

#[test]
fn a_greeting_that_is_not_answered_well_leaves_the_port_closed() {
    let statuses = [
        Status::WrongVersion,
        Status::WrongToken,
        Status::TooSmall,
        Status::NoSuchLease,
        Status::BadRequest,
    ];
    let mut cases: Vec<(Vec<u8>, Broken)> = statuses
        .iter()
        .map(|&s| (Welcome { status: s, ..WELCOME }.encode().to_vec(), Broken::Refused(s)))
        .collect();
    let mut odd = WELCOME.encode().to_vec();
    odd[8..12].fill(0xff);
    cases.push((odd, Broken::Refused(Status::BadRequest)));
    cases.push((vec![b'x'; Welcome::BYTES], Broken::Refused(Status::WrongVersion)));
    cases.push((vec![], Broken::Away));
    cases.push((WELCOME.encode()[..31].to_vec(), Broken::Away));
    for (answer, why) in cases {
        let sent = answer.clone();
        let (at, served) = host_of(tries(&why), move |mut stream| stream.write_all(&sent).unwrap());
        let mut port = port();
        assert_eq!(port.open(&at, &HELLO), Err(why), "{answer:?}");
        assert!(!port.is_open(9));
        served.join().unwrap();
    }
}

/// The program closed a descriptor by a bare system call, and its number went to another connection
/// of the pager.
#[test]
fn parts_of_another_connection_are_no_refusal() {
    let mut refusal = Challenge { nonce: [6; 16] }.encode().to_vec();
    refusal.extend(Welcome { status: Status::WrongToken, ..WELCOME }.encode());
    for begin in [vec![b'x'; Challenge::BYTES], refusal] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let mut first = listener.accept().unwrap().0;
            first.write_all(&begin).unwrap();
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(&Challenge { nonce: [5; 16] }.encode()).unwrap();
            stream.read_exact(&mut [0; Hello::BYTES]).unwrap();
            stream.write_all(&WELCOME.encode()).unwrap();
        });
        assert_eq!(port().open(&address(at, 9), &HELLO), Ok((WELCOME, -1)));
        served.join().unwrap();
    }
}

#[test]
fn an_answer_to_another_request_or_of_another_kind_breaks_the_connection() {
    let fine = Reply { status: Status::Ok, serial: 1 };
    let page = |head: Reply| [&head.encode()[..], &[0; PAGE_BYTES]].concat();
    let mut odd = page(fine);
    odd[0] = 200;
    let refused = Broken::Refused(Status::BadRequest);
    for (answer, why) in [
        (page(Reply { serial: 2, ..fine }), refused),
        (page(Reply { serial: 0, ..fine }), refused),
        (page(Reply { serial: 1 << 32 | 1, ..fine }), refused),
        (page(Reply { status: Status::NoSuchLease, ..fine }), Broken::Refused(Status::NoSuchLease)),
        (odd, refused),
        (page(fine)[..PAGE_BYTES].to_vec(), Broken::Away),
        (fine.encode().to_vec(), Broken::Away),
        (vec![], Broken::Away),
    ] {
        let sent = answer.clone();
        let (at, served) = host(move |mut stream| {
            stream.write_all(&WELCOME.encode()).unwrap();
            stream.read_exact(&mut [0; Request::BYTES + 4]).unwrap();
            stream.write_all(&sent).unwrap();
        });
        let (mut port, mut pages) = (port(), Pages::new(1));
        port.open(&at, &HELLO).unwrap();
        port.begin_read(&[0]).unwrap();
        assert_eq!(
            port.end_read(&[0], &pages.at(1)),
            Err(why),
            "{:?}",
            &answer[..answer.len().min(16)]
        );
        assert!(!port.is_open(9), "a late answer would be taken for the next one");
        assert_eq!(port.begin_read(&[0]), Err(Broken::Away));
        served.join().unwrap();
    }
}

/// An address that no process listens at, and that none can take meanwhile.
fn closed() -> (SocketAddr, OwnedFd) {
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let fd = OwnedFd::from_raw_fd(fd);
        let mut at: libc::sockaddr_in = std::mem::zeroed();
        at.sin_family = libc::AF_INET as u16;
        at.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let mut len = size_of_val(&at) as u32;
        assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const at).cast(), len), 0);
        assert_eq!(libc::getsockname(fd.as_raw_fd(), (&raw mut at).cast(), &mut len), 0);
        (SocketAddr::from(([127, 0, 0, 1], u16::from_be(at.sin_port))), fd)
    }
}

#[test]
fn a_silent_host_is_silent_and_not_gone() {
    // The kernel accepts the connection, and no process answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = address(listener.local_addr().unwrap(), 9);
    let mut port = port();
    port.patience = 20_000_000;
    assert!(matches!(port.open(&at, &HELLO), Err(Broken::Silent(ns)) if ns >= 20_000_000));
    assert!(!port.is_open(9));
    let (gone, _reserved) = closed();
    assert_eq!(port.open(&address(gone, 9), &HELLO), Err(Broken::Away), "no process listens");
}

#[test]
fn a_write_that_no_one_takes_ends_when_the_patience_ends() {
    let (at, served) = host(|mut stream| {
        stream.write_all(&WELCOME.encode()).unwrap();
        // Takes nothing until the port has closed the connection.
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut all = vec![];
        stream.read_to_end(&mut all).unwrap();
        assert!(all.starts_with(&[2, 0, 0, 0]), "a write");
    });
    let (mut port, mut pages) = (port(), Pages::new(4));
    port.open(&at, &HELLO).unwrap();
    port.patience = 20_000_000;
    port.begin_write(&[0, 1, 2, 3], &pages.at(4)).unwrap();
    assert!(!port.answers_within(0) && !port.answers_within(1_000_000));
    assert!(matches!(port.end_write(), Err(Broken::Silent(ns)) if ns >= 20_000_000));
    assert!(!port.is_open(9));
    served.join().unwrap();
}

/// Takes CAP_NET_ADMIN from the calling thread.
fn drop_net_admin() {
    let (head, mut sets) = ([0x2008_0522u32, 0], [[0u32; 3]; 2]);
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, head.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0][0] &= !(1 << 12);
        assert_eq!(libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()), 0);
    }
}

/// Returns the value of an option of a port's socket.
fn option(port: &Port, name: i32) -> i32 {
    let (mut value, mut len) = (0i32, 4u32);
    let at = (&raw mut value).cast();
    let r = unsafe { libc::getsockopt(port.socket(), libc::SOL_SOCKET, name, at, &raw mut len) };
    assert_eq!(r, 0);
    value
}

#[test]
fn buffers_hold_a_batch_for_root_and_grow_by_themselves_for_users() {
    const SO_BUF_LOCK: i32 = 72;
    let (_server, at) = server(16);
    let open = move || {
        let mut port = port();
        port.open(&address(at, 0), &Hello { slots: 1, ..HELLO }).expect("opens");
        port
    };
    if unsafe { libc::geteuid() } == 0 {
        let port = open();
        assert!([libc::SO_RCVBUF, libc::SO_SNDBUF].iter().all(|o| option(&port, *o) >= 8 << 20));
    }
    let user = std::thread::spawn(move || {
        drop_net_admin();
        option(&open(), SO_BUF_LOCK)
    });
    assert_eq!(user.join().unwrap(), 0, "the kernel sizes both buffers");
}
