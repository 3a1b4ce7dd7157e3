//! A memory host over real sockets: its memory against a plain model, its greetings, and requests
//! that are cut, malformed or for memory that is gone.

use memory_core::wire::{
    Challenge, Hello, MAGIC, Op, Reply, Request, Status, TOKEN_BYTES, Welcome,
};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};
use memory_host::{Address, Admission, Leases, Server};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const TOKEN: [u8; TOKEN_BYTES] = [7; TOKEN_BYTES];
/// A test that waits for longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A memory host in this process.
struct Host {
    server: Arc<Server>,
    address: String,
}

fn host(slots: u64) -> Host {
    host_at(slots, &Address::Tcp("127.0.0.1:0".into()))
}

fn host_at(slots: u64, address: &Address) -> Host {
    host_of(Leases::new(slots, slots), address)
}

fn host_of(leases: Leases, address: &Address) -> Host {
    host_for(Admission::Shared(TOKEN), leases, address)
}

fn host_for(admission: Admission, leases: Leases, address: &Address) -> Host {
    let server = Arc::new(Server {
        leases: Arc::new(leases),
        admission,
        delay: Duration::ZERO,
        lie_every: 0,
    });
    let address = server.listen(address).expect("listens");
    Host { server, address }
}

fn until(name: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "{name}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A socket file in a folder of its own, which is removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Socket {
        let dir = format!("pando-host-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        Socket(dir.join("socket"))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

const HELLO: Hello = Hello { lease: 0, slots: 0, token: TOKEN, share: false, last: false };

/// A borrower's connection.
struct Borrower<S: Read + Write> {
    stream: S,
    welcome: Welcome,
    serial: u64,
}

fn borrow(host: &Host, hello: Hello) -> Borrower<TcpStream> {
    let stream = TcpStream::connect(&host.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_nodelay(true).unwrap();
    greet(stream, &hello)
}

fn greet<S: Read + Write>(mut stream: S, hello: &Hello) -> Borrower<S> {
    memory_host::greet(&mut stream, hello).unwrap();
    welcomed(stream)
}

/// Sends a greeting that is changed by a function.
fn changed(host: &Host, change: impl Fn(&mut [u8; Hello::BYTES])) -> Welcome {
    let mut stream = TcpStream::connect(&host.address).unwrap();
    let mut b = [0; Challenge::BYTES];
    stream.read_exact(&mut b).unwrap();
    let mut hello = HELLO.encode(&Challenge::decode(&b).unwrap());
    change(&mut hello);
    stream.write_all(&hello).unwrap();
    welcomed(stream).welcome
}

fn welcomed<S: Read + Write>(mut stream: S) -> Borrower<S> {
    let mut b = [0; Welcome::BYTES];
    stream.read_exact(&mut b).unwrap();
    Borrower { stream, welcome: Welcome::decode(&b).unwrap(), serial: 0 }
}

impl<S: Read + Write> Borrower<S> {
    fn send(&mut self, op: Op, slots: &[u32], pages: &[u8]) {
        self.serial += 1;
        let mut b =
            Request { op, count: slots.len() as u32, serial: self.serial }.encode().to_vec();
        b.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
        b.extend(pages);
        self.stream.write_all(&b).unwrap();
    }

    fn reply(&mut self) -> Reply {
        let mut b = [0; Reply::BYTES];
        self.stream.read_exact(&mut b).unwrap();
        Reply::decode(&b).unwrap()
    }

    fn is_ok(&mut self) {
        assert_eq!(self.reply(), Reply { status: Status::Ok, serial: self.serial });
    }

    fn write(&mut self, slots: &[u32], pages: &[u8]) {
        self.send(Op::Write, slots, pages);
        self.is_ok();
    }

    fn read(&mut self, slots: &[u32]) -> Vec<u8> {
        self.send(Op::Read, slots, &[]);
        self.is_ok();
        let mut pages = vec![0; slots.len() * PAGE_BYTES];
        self.stream.read_exact(&mut pages).unwrap();
        pages
    }

    /// Whether the host refuses the last bytes, and then ends the connection.
    fn is_refused(&mut self, serial: u64) {
        assert_eq!(self.reply(), Reply { status: Status::BadRequest, serial });
        assert!(self.has_ended(), "a refused connection stays open");
    }

    fn has_ended(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// A generator of test data: the same sequence on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn page(tag: u64) -> Vec<u8> {
    let mut numbers = Numbers(tag);
    (0..PAGE_BYTES / 8).flat_map(|_| numbers.below(u64::MAX).to_le_bytes()).collect()
}

#[test]
fn every_slot_reads_as_it_was_last_written_by_any_connection() {
    const SLOTS: u64 = 600;
    let host = host(SLOTS);
    let first = borrow(&host, Hello { slots: SLOTS, ..HELLO });
    let lease = first.welcome.lease;
    let mut all = vec![first];
    all.extend((0..2).map(|_| borrow(&host, Hello { lease, ..HELLO })));
    let (mut model, mut numbers) = (HashMap::new(), Numbers(1));
    for round in 0..150u64 {
        let at = &mut all[numbers.below(3) as usize];
        // A request of neighbours, of scattered slots, or of the most slots that fit.
        let count = if round % 29 == 0 { BATCH_PAGES_MAX as u64 } else { 1 + numbers.below(24) };
        let from = numbers.below(SLOTS - count + 1);
        let slots: Vec<u32> = match round % 2 {
            0 => (from..from + count).map(|s| s as u32).collect(),
            _ => (0..count).map(|_| numbers.below(SLOTS) as u32).collect(),
        };
        if numbers.below(2) == 0 {
            let tags: Vec<u64> = slots.iter().zip(round << 20..).map(|(_, tag)| tag).collect();
            at.write(&slots, &tags.iter().flat_map(|&tag| page(tag)).collect::<Vec<_>>());
            // A slot that stands twice in a request keeps the later page.
            model.extend(slots.iter().copied().zip(tags));
        } else {
            let read = at.read(&slots);
            for (slot, bytes) in slots.iter().zip(read.chunks(PAGE_BYTES)) {
                let expected = model.get(slot).map_or(vec![0; PAGE_BYTES], |&tag| page(tag));
                assert!(bytes == expected, "slot {slot} in round {round}");
            }
        }
    }
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let host = host(64);
    let mut b = borrow(&host, Hello { slots: 64, ..HELLO });
    // Several requests are on the way before the first answer is read.
    for slot in 0..40u32 {
        b.send(Op::Write, &[slot], &page(slot as u64));
    }
    for serial in 1..=40 {
        assert_eq!(b.reply(), Reply { status: Status::Ok, serial });
    }
    for slot in 0..40u32 {
        assert!(b.read(&[slot]) == page(slot as u64));
    }
}

#[test]
fn a_request_beyond_the_lease_is_refused_and_changes_nothing() {
    let host = host(64);
    let lease = borrow(&host, Hello { slots: 8, ..HELLO });
    let id = lease.welcome.lease;
    let mut other = borrow(&host, Hello { slots: 8, ..HELLO });
    other.write(&[0], &page(5));
    for slots in [&[8u32][..], &[0, 8], &[0, u32::MAX], &[7, 8, 9]] {
        for op in [Op::Read, Op::Write] {
            let mut b = borrow(&host, Hello { lease: id, ..HELLO });
            b.send(op, slots, &[]);
            b.is_refused(1);
        }
    }
    let mut b = borrow(&host, Hello { lease: id, ..HELLO });
    assert!(b.read(&[0, 7]).iter().all(|&b| b == 0));
    assert!(other.read(&[0]) == page(5), "another lease is untouched");
}

/// Silent connections would take all threads of the host.
#[test]
fn a_connection_without_a_greeting_is_closed() {
    let host = host(8);
    let mut silent: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(&host.address).unwrap()).collect();
    for stream in &mut silent {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("closed, and not silent for ever");
        assert_eq!(rest.len(), Challenge::BYTES);
    }
    borrow(&host, HELLO);
}

#[test]
fn a_malformed_request_ends_its_connection_only() {
    let host = host(16);
    let mut good = borrow(&host, Hello { slots: 16, ..HELLO });
    let lease = good.welcome.lease;
    let mut numbers = Numbers(3);
    for round in 0..60 {
        let mut head = Request { op: Op::Read, count: 1, serial: 9 }.encode();
        match round % 4 {
            0 => head[0] = 3 + numbers.below(250) as u8,
            1 => head[1 + numbers.below(3) as usize] = 1 + numbers.below(250) as u8,
            2 => head[4..8].fill(0),
            _ => head[4..8].copy_from_slice(&(513 + numbers.below(1 << 31) as u32).to_le_bytes()),
        }
        let mut b = borrow(&host, Hello { lease, ..HELLO });
        b.stream.write_all(&head).unwrap();
        b.is_refused(0);
    }
    good.write(&[3], &page(1));
    assert!(good.read(&[3]) == page(1));
    until("the refused connections are gone", || host.server.leases.loans()[0].connections == 1);
}

#[test]
fn a_write_that_is_cut_leaves_the_other_slots_as_they_were() {
    let host = host(16);
    let mut good = borrow(&host, Hello { slots: 16, ..HELLO });
    let lease = good.welcome.lease;
    let slots: Vec<u32> = (0..16).collect();
    for cut in [1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 100] {
        let old: Vec<u8> = (0..16).flat_map(|k| page(100 + k)).collect();
        let new: Vec<u8> = (0..16).flat_map(|k| page(200 + k)).collect();
        good.write(&slots, &old);
        let mut b = borrow(&host, Hello { lease, ..HELLO });
        b.send(Op::Write, &slots, &new[..cut]);
        b.stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The host has taken all that came once it has closed its end.
        assert!(b.has_ended());
        let read = good.read(&slots);
        let (begun, rest) = (cut.div_ceil(PAGE_BYTES) * PAGE_BYTES, &read[cut..]);
        assert!(read[..cut] == new[..cut], "the bytes that came, in order");
        assert!(rest[..begun - cut] == old[cut..begun] && rest[begun - cut..] == old[begun..]);
    }
}

#[test]
fn a_lease_that_was_replaced_is_read_no_more_and_its_successor_is_empty() {
    let host = host(10);
    let mut old = borrow(&host, Hello { slots: 10, ..HELLO });
    old.write(&[0, 9], &[page(1), page(2)].concat());
    let id = old.welcome.lease;
    let mut new = borrow(&host, Hello { lease: id, slots: 10, ..HELLO });
    assert!(new.welcome.status == Status::Ok && new.welcome.lease != id);
    assert!(new.read(&[0, 9]).iter().all(|&b| b == 0), "the bytes of the old lease are gone");
    new.write(&[0], &page(3));
    old.send(Op::Write, &[0], &page(4));
    old.is_refused(3 - 1);
    assert!(new.read(&[0]) == page(3));
    let joins = borrow(&host, Hello { lease: id, ..HELLO }).welcome;
    assert_eq!((joins.status, joins.lease), (Status::NoSuchLease, 0));
    // The same request again, as after a late answer, returns the same lease and its bytes.
    let mut again = borrow(&host, Hello { lease: id, slots: 10, ..HELLO });
    assert_eq!(again.welcome.lease, new.welcome.lease);
    assert!(again.read(&[0]) == page(3));
}

#[test]
fn a_greeting_is_answered_by_its_cause() {
    let host = host(10);
    let mut wrong = HELLO;
    for at in [0, 15, TOKEN_BYTES - 1] {
        wrong.token = TOKEN;
        wrong.token[at] ^= 0x80;
        assert_eq!(borrow(&host, wrong).welcome.status, Status::WrongToken, "byte {at}");
    }
    let old = changed(&host, |b| b[MAGIC.len() - 1] = b'1');
    assert_eq!(old.status, Status::WrongVersion);
    for at in 56..Hello::BYTES {
        assert_eq!(changed(&host, |b| b[at] = 2).status, Status::BadRequest, "byte {at}");
    }
    let recorded = HELLO.encode(&Challenge { nonce: [1; 16] });
    let repeated = changed(&host, |b| *b = recorded);
    assert_eq!(repeated.status, Status::WrongToken, "the greeting of another connection");
    let much = borrow(&host, Hello { slots: 11, ..HELLO }).welcome;
    assert_eq!((much.status, much.slots), (Status::TooSmall, 10), "the slots that are free");
    let endless = borrow(&host, Hello { slots: u64::MAX, ..HELLO }).welcome;
    assert_eq!((endless.status, endless.slots), (Status::TooSmall, 10));
    let all = borrow(&host, HELLO);
    assert_eq!((all.welcome.status, all.welcome.slots), (Status::Ok, 10), "0 is all that is free");
    assert_eq!(borrow(&host, HELLO).welcome.status, Status::TooSmall);
    assert_eq!(host.server.leases.usage(), (10, 10), "no refused greeting holds memory");
}

/// All borrowers of a machine share one quota.
#[test]
fn a_machine_gets_no_more_than_its_quota() {
    let host = host_of(Leases::new(20, 8), &Address::Tcp("127.0.0.1:0".into()));
    let refused = borrow(&host, Hello { slots: 9, ..HELLO }).welcome;
    assert_eq!((refused.status, refused.slots), (Status::TooSmall, 8));
    let first = borrow(&host, Hello { slots: 5, ..HELLO });
    assert_eq!(first.welcome.status, Status::Ok);
    let rest = borrow(&host, HELLO);
    assert_eq!((rest.welcome.status, rest.welcome.slots), (Status::Ok, 3), "0 is all the rest");
    assert_eq!(borrow(&host, HELLO).welcome.status, Status::TooSmall);
    assert_eq!(host.server.leases.usage(), (8, 20));
}

/// Returns a borrower with a token of these bytes.
fn named(name: &str, byte: u8) -> memory_host::Borrower {
    memory_host::Borrower { name: name.into(), token: [byte; TOKEN_BYTES] }
}

/// Each borrower has a token and a share of its own, and no lease of another one, although their
/// connections come from one machine.
#[test]
fn a_borrower_with_a_token_of_its_own_has_its_own_leases() {
    let both = Admission::Each(RwLock::new(vec![named("shop", 7), named("bank", 8)]));
    let host = host_for(both, Leases::new(20, 8), &Address::Tcp("127.0.0.1:0".into()));
    let other = Hello { token: [8; TOKEN_BYTES], ..HELLO };
    let mut shop = borrow(&host, HELLO);
    assert_eq!((shop.welcome.status, shop.welcome.slots), (Status::Ok, 8));
    shop.write(&[0], &page(1));
    assert_eq!(borrow(&host, HELLO).welcome.status, Status::TooSmall, "its share is lent");
    let bank = borrow(&host, Hello { slots: 5, ..other });
    assert_eq!(bank.welcome.status, Status::Ok);
    let id = shop.welcome.lease;
    // A lease of another borrower is neither joined nor replaced, nor is the lease in its place.
    let joins = borrow(&host, Hello { lease: id, ..other }).welcome;
    let takes = borrow(&host, Hello { lease: id, slots: 1, ..other }).welcome;
    assert_eq!((joins.status, takes.status), (Status::NoSuchLease, Status::NoSuchLease));
    assert!(borrow(&host, Hello { lease: id, ..HELLO }).read(&[0]) == page(1));
    assert_eq!(borrow(&host, Hello { lease: id, slots: 8, ..HELLO }).welcome.status, Status::Ok);
    let takes = borrow(&host, Hello { lease: id, slots: 8, ..other }).welcome;
    assert_eq!(takes.status, Status::NoSuchLease);
    let none = borrow(&host, Hello { token: [9; TOKEN_BYTES], ..HELLO }).welcome;
    assert_eq!(none.status, Status::WrongToken);
    let loans = host.server.leases.loans();
    assert!(loans.iter().any(|l| l.borrower.starts_with("bank (127.0.0.1:")), "by its name");
}

/// A borrower that left the list keeps its memory, and opens no more.
#[test]
fn the_list_of_borrowers_changes_while_the_host_runs() {
    let admission = Admission::Each(RwLock::new(vec![named("shop", 7)]));
    let host = host_for(admission, Leases::new(20, 20), &Address::Tcp("127.0.0.1:0".into()));
    let mut shop = borrow(&host, Hello { slots: 4, ..HELLO });
    shop.write(&[3], &page(3));
    host.server.admission.replace(vec![named("bank", 8)]);
    assert_eq!(borrow(&host, HELLO).welcome.status, Status::WrongToken);
    let bank = borrow(&host, Hello { token: [8; TOKEN_BYTES], ..HELLO }).welcome;
    assert_eq!((bank.status, bank.slots), (Status::Ok, 16));
    assert!(shop.read(&[3]) == page(3), "an open connection stays");
}

#[test]
fn a_lease_ends_with_the_last_connection_of_a_borrower_that_has_ended() {
    let host = host(10);
    let first = borrow(&host, Hello { slots: 4, ..HELLO });
    let last = borrow(&host, Hello { lease: first.welcome.lease, last: true, ..HELLO });
    drop(last);
    until("the last greeting's connection ends", || {
        host.server.leases.loans().iter().all(|loan| loan.connections == 1)
    });
    assert_eq!(host.server.leases.usage(), (4, 10), "another connection holds it");
    drop(first);
    until("the lease ends", || host.server.leases.usage() == (0, 10));
}

/// Greets over a unix socket with `share`; returns the answer and the memory file.
fn share(path: &PathBuf, slots: u64) -> (UnixStream, Welcome, OwnedFd) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    memory_host::greet(&mut stream, &Hello { slots, share: true, ..HELLO }).unwrap();
    let (mut bytes, mut control) = ([0u8; Welcome::BYTES], [0u64; 4]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let fd = unsafe {
        let mut m: libc::msghdr = std::mem::zeroed();
        (m.msg_iov, m.msg_iovlen) = (&mut piece, 1);
        (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), 32);
        let n = libc::recvmsg(stream.as_raw_fd(), &mut m, libc::MSG_CMSG_CLOEXEC);
        assert_eq!(n, Welcome::BYTES as isize);
        let head = libc::CMSG_FIRSTHDR(&m);
        assert!(!head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<i32>().read_unaligned())
    };
    (stream, Welcome::decode(&bytes).unwrap(), fd)
}

#[test]
fn shared_memory_is_the_lease_itself_and_can_neither_grow_nor_shrink() {
    let socket = Socket::new("share");
    let host = host_at(10, &Address::Unix(socket.0.clone()));
    assert_eq!(host.address, format!("unix:{}", socket.0.display()));
    let (_stream, welcome, memory) = share(&socket.0, 6);
    assert_eq!((welcome.status, welcome.slots), (Status::Ok, 6));
    let file = std::fs::File::from(memory);
    assert_eq!(file.metadata().unwrap().len(), 6 * PAGE_BYTES as u64);
    assert!(file.set_len(5 * PAGE_BYTES as u64).is_err(), "a borrower shrinks its lease");
    assert!(file.set_len(7 * PAGE_BYTES as u64).is_err(), "a borrower grows its lease");
    use std::os::unix::fs::FileExt;
    file.write_all_at(&page(8), 5 * PAGE_BYTES as u64).unwrap();
    let mut joined =
        greet(UnixStream::connect(&socket.0).unwrap(), &Hello { lease: welcome.lease, ..HELLO });
    assert!(joined.read(&[5]) == page(8), "the same memory by either way");
    let borrower = format!("process {} of this machine", std::process::id());
    assert_eq!(host.server.leases.loans()[0].borrower, borrower);
}

#[test]
fn a_file_at_the_sockets_path_is_left_alone_and_a_dead_socket_is_replaced() {
    let socket = Socket::new("path");
    let address = Address::Unix(socket.0.clone());
    let server = host(4).server;
    std::fs::write(&socket.0, b"a file of a user").unwrap();
    assert!(server.listen(&address).is_err());
    assert_eq!(std::fs::read(&socket.0).unwrap(), b"a file of a user");
    std::fs::remove_file(&socket.0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket.0).unwrap());
    server.listen(&address).expect("no process listens there");
    let living = server.listen(&address).unwrap_err();
    assert_eq!(living.kind(), ErrorKind::AddrInUse, "another memory host lives there");
    assert!(UnixStream::connect(&socket.0).is_ok());
}

#[test]
fn a_lying_host_flips_one_bit_in_every_nth_page() {
    let server = Arc::new(Server {
        leases: Arc::new(Leases::new(8, 8)),
        admission: Admission::Shared(TOKEN),
        delay: Duration::from_micros(50),
        lie_every: 4,
    });
    let address = server.listen(&Address::Tcp("127.0.0.1:0".into())).unwrap();
    let host = Host { server, address };
    let mut b = borrow(&host, Hello { slots: 8, ..HELLO });
    let mut lies = 0;
    for _ in 0..20 {
        b.write(&[2], &page(1));
        let differ: Vec<u8> = b.read(&[2]).iter().zip(page(1)).map(|(a, b)| a ^ b).collect();
        lies += differ.iter().map(|d| d.count_ones()).sum::<u32>();
    }
    assert_eq!(lies, 5);
}
