//! The parts of the pager without a userfaultfd. The wrapped calls of the C library are left out:
//! they would replace those of the tests.

mod hosts;
mod hosts_lost;
mod parts;
mod port;
mod words;

#[path = "wrap/pieces.rs"]
mod pieces;

use crate::config::{Address, Config, HOSTS_MAX};
use memory_core::PAGE_BYTES;
use memory_core::prefetch::Kind;
use memory_core::wire::TOKEN_BYTES;
use memory_host::{Admission, Leases, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A test that waits for longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);
const TOKEN: [u8; TOKEN_BYTES] = [5; TOKEN_BYTES];

fn until(name: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "{name}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
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

/// A memory host in this process.
fn server(slots: u64) -> (Arc<Server>, SocketAddr) {
    let server = Arc::new(Server {
        leases: Arc::new(Leases::new(slots, slots)),
        admission: Admission::Shared(TOKEN),
        delay: Duration::ZERO,
        lie_every: 0,
    });
    let at = server.listen(&memory_host::Address::Tcp("127.0.0.1:0".into())).unwrap();
    (server, at.parse().unwrap())
}

/// Returns an address in the kernel's form.
fn address(at: SocketAddr, lease: u64) -> Address {
    let SocketAddr::V4(at) = at else { panic!("{at} is not of IPv4") };
    let mut bytes = [0; 110];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&at.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&at.ip().octets());
    Address { bytes, len: 16, lease }
}

/// Returns a configuration with these hosts.
fn config(hosts: &[Address], copies: usize, slots: u64, patience: Duration) -> Config {
    let none = Address { bytes: [0; 110], len: 0, lease: 0 };
    let mut all = [none; HOSTS_MAX];
    all[..hosts.len()].copy_from_slice(hosts);
    Config {
        exe: (0, 0),
        local_bytes: 16 << 20,
        slots,
        copies,
        patience_ns: patience.as_nanos() as u64,
        prefetch: Kind::None,
        sigbus: true,
        moves: true,
        seals: false,
        token: TOKEN,
        hosts: all,
        hosts_len: hosts.len(),
        stats: -1,
    }
}

/// Pages of memory for transfers.
struct Pages(Vec<[u8; PAGE_BYTES]>);

impl Pages {
    fn new(n: usize) -> Pages {
        Pages(vec![[0; PAGE_BYTES]; n])
    }

    /// Fills the first pages with bytes that depend on these tags.
    fn fill(&mut self, tags: &[u64]) {
        for (page, &tag) in self.0.iter_mut().zip(tags) {
            let mut numbers = Numbers(tag);
            page.chunks_mut(8)
                .for_each(|c| c.copy_from_slice(&numbers.below(1 << 40).to_le_bytes()));
        }
    }

    /// Whether the first pages have the bytes of these tags. 0 is a page of zeros.
    fn holds(&self, tags: &[u64]) -> bool {
        let mut expected = Pages::new(tags.len());
        expected.fill(tags);
        let zeros = |(page, &tag): (&mut [u8; PAGE_BYTES], &u64)| {
            if tag == 0 {
                page.fill(0);
            }
        };
        expected.0.iter_mut().zip(tags).for_each(zeros);
        expected.0.iter().zip(&self.0).all(|(a, b)| a == b)
    }

    /// Returns the addresses of the first pages.
    fn at(&mut self, n: usize) -> Vec<*mut u8> {
        self.0[..n].iter_mut().map(|page| page.as_mut_ptr()).collect()
    }
}
