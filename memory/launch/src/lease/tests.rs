//! A lease from hosts that answer anything, and its return when the start is refused.

use super::*;
use memory_core::wire::Challenge;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::thread::JoinHandle;

const TOKEN: [u8; TOKEN_BYTES] = [9; TOKEN_BYTES];

/// A memory host that sends one answer to each connection, and then closes it. Returns its name and
/// the greetings that it received.
fn host(answers: Vec<Vec<u8>>) -> (String, JoinHandle<Vec<Hello>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let serve = |answer: Vec<u8>| {
            let mut stream = listener.accept().unwrap().0;
            let challenge = Challenge { nonce: [3; 16] };
            stream.write_all(&challenge.encode()).unwrap();
            let mut hello = [0; Hello::BYTES];
            stream.read_exact(&mut hello).unwrap();
            stream.write_all(&answer).unwrap();
            Hello::decode(&hello, &challenge, &TOKEN).unwrap()
        };
        answers.into_iter().map(serve).collect()
    });
    (name, served)
}

fn welcome(status: Status, lease: u64, slots: u64) -> Vec<u8> {
    Welcome { status, lease, slots }.encode().to_vec()
}

/// An address that no process listens at, and that none can take meanwhile.
fn closed() -> (SocketAddr, std::fs::File) {
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let mut at: libc::sockaddr_in = std::mem::zeroed();
        at.sin_family = libc::AF_INET as u16;
        at.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let mut len = size_of_val(&at) as u32;
        assert_eq!(libc::bind(fd, (&raw const at).cast(), len), 0);
        assert_eq!(libc::getsockname(fd, (&raw mut at).cast(), &mut len), 0);
        let port = u16::from_be(at.sin_port);
        (SocketAddr::from(([127, 0, 0, 1], port)), std::fs::File::from_raw_fd(fd))
    }
}

#[test]
fn a_lease_is_given_back_with_a_last_greeting() {
    let answers = vec![welcome(Status::Ok, 77, 100), welcome(Status::Ok, 77, 100)];
    let (name, served) = host(answers);
    let lease = open(&name.parse().unwrap(), &name, &TOKEN, 100).unwrap();
    assert_eq!((lease.id, lease.slots), (77, 100));
    drop(lease);
    let plain = Hello { lease: 0, slots: 100, token: TOKEN, share: false, last: false };
    let last = Hello { lease: 77, slots: 0, last: true, ..plain };
    assert_eq!(served.join().unwrap(), [plain, last]);
}

#[test]
fn every_other_answer_is_a_reason_with_its_code() {
    let garbage = b"HTTP/1.1 400 Bad Request, try again with another request".to_vec();
    let mut odd = welcome(Status::Ok, 1, 1);
    odd[8] = 99;
    for (answer, code, part) in [
        (welcome(Status::TooSmall, 0, 256), 5, "has only 1.0 MiB free"),
        (welcome(Status::WrongToken, 0, 0), 5, "--token-file"),
        (welcome(Status::NoSuchLease, 0, 0), 5, "restarted"),
        (welcome(Status::WrongVersion, 0, 0), 5, "same release"),
        (welcome(Status::Ok, 7, 99), 3, "99"),
        (welcome(Status::Ok, 7, 101), 3, "101"),
        (welcome(Status::Ok, 7, u64::MAX), 3, "lends"),
        (welcome(Status::Ok, 7, 0), 3, "lends"),
        (garbage, 3, "same release"),
        (odd, 3, "same release"),
        (vec![], 3, "no memory host"),
        (welcome(Status::Ok, 1, 1)[..31].to_vec(), 3, "no memory host"),
    ] {
        let (name, served) = host(vec![answer.clone()]);
        let refusal = open(&name.parse().unwrap(), &name, &TOKEN, 100).err().expect("a refusal");
        assert_eq!(refusal.code, code, "{}", refusal.words);
        assert!(refusal.words.contains(part) && refusal.words.contains(&name), "{refusal}");
        served.join().unwrap();
    }
}

#[test]
fn all_that_is_free_is_never_nothing() {
    let (name, served) = host(vec![welcome(Status::Ok, 7, 0)]);
    assert_eq!(open(&name.parse().unwrap(), &name, &TOKEN, 0).err().map(|e| e.code), Some(3));
    served.join().unwrap();
    let answers = vec![welcome(Status::Ok, 7, 12345), welcome(Status::NoSuchLease, 0, 0)];
    let (name, served) = host(answers);
    assert_eq!(open(&name.parse().unwrap(), &name, &TOKEN, 0).map(|l| l.slots), Ok(12345));
    served.join().unwrap();
}

#[test]
fn a_name_with_several_addresses_is_reached_at_the_one_that_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap();
    let (shut, _reserved) = closed();
    for all in [&[shut, open][..], &[open, shut], &[shut, shut, open]] {
        assert_eq!(connect(all).map(|(to, _)| to).unwrap(), open, "{all:?}");
    }
    assert_eq!(connect(&[shut]).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let refusal = super::open(&Address::Tcp(shut.to_string()), "far", &TOKEN, 1).err().unwrap();
    assert!(refusal.code == 8 && refusal.words.contains("--listen far"), "{refusal}");
}

#[test]
fn spares_have_numbers_of_their_own_and_no_socket_file() {
    let name = "127.0.0.1:7070";
    let spares: Vec<Lease> =
        (0..20).map(|_| spare(&name.parse().unwrap(), name).unwrap()).collect();
    let mut ids: Vec<u64> = spares.iter().map(|s| s.id).collect();
    ids.sort();
    ids.dedup();
    assert!(ids.len() == 20 && ids.iter().all(|id| id % 2 == 1), "random, and never 0");
    assert_eq!(spare(&Address::Unix("/run/x".into()), "unix:/run/x").err().unwrap().code, 3);
}
