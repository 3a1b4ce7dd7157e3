//! Leases memory before the program starts, so that errors are reported before anything runs.

use crate::refusal::{self, Refusal};
use memory_core::PAGE_BYTES;
use memory_core::wire::{Hello, Status, TOKEN_BYTES, Welcome};
use memory_host::Address;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a memory host may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A lease and the address of its host, in the kernel's form, in hexadecimal.
pub struct Lease {
    pub address: String,
    pub id: u64,
    pub slots: u64,
    /// The host and the token. None for a spare, which has not lent memory yet.
    lender: Option<(Address, [u8; TOKEN_BYTES])>,
}

/// A refused start gives back its leases. A successful one becomes the program and drops nothing.
impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((from, token)) = &self.lender {
            let hello = Hello { lease: self.id, slots: 0, token: *token, share: false, last: true };
            // A host that does not answer lets the lease expire.
            let _ = reach(from, "").and_then(|(_, mut stream)| {
                let said = memory_host::greet(&mut *stream, &hello)
                    .and_then(|()| stream.read_exact(&mut [0; Welcome::BYTES]));
                said.map_err(away(""))
            });
        }
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn away(name: &str) -> impl Fn(std::io::Error) -> Refusal + '_ {
    move |e| {
        refusal::away(format!(
            "memory host {name} does not answer ({e}); start it there: pando mem serve --size 8GiB \
             --listen {name}"
        ))
    }
}

/// Returns the addresses of a name: at least one.
fn resolve(a: &str, name: &str) -> Result<Vec<SocketAddr>, Refusal> {
    let all: Vec<SocketAddr> = a
        .to_socket_addrs()
        .map_err(|e| refusal::not_found(format!("memory host {name}: {e}")))?
        .collect();
    if all.is_empty() {
        return Err(refusal::not_found(format!("memory host {name} has no address")));
    }
    Ok(all)
}

/// Connects to the first of these addresses that answers. `localhost` often has one of IPv6 before
/// the one that a host listens at.
fn connect(all: &[SocketAddr]) -> std::io::Result<(SocketAddr, TcpStream)> {
    let mut failed = ErrorKind::AddrNotAvailable.into();
    for &to in all {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => return Ok((to, stream)),
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// Connects to a memory host; returns its raw address and the connection.
fn reach(from: &Address, name: &str) -> Result<(String, Box<dyn Stream>), Refusal> {
    let away = away(name);
    match from {
        Address::Tcp(a) => {
            let (to, stream) = connect(&resolve(a, name)?).map_err(&away)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(&away)?;
            Ok((hex(&raw_ip(&to)), Box::new(stream)))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(&away)?;
            // The host takes all of the memory before it answers.
            stream.set_read_timeout(Some(PATIENCE * 20)).map_err(&away)?;
            let mut raw = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
            raw.extend_from_slice(path.as_os_str().as_bytes());
            raw.push(0);
            Ok((hex(&raw), Box::new(stream)))
        }
    }
}

/// Leases `slots` slots (0 = all that are free) from a memory host.
pub fn open(
    from: &Address,
    name: &str,
    token: &[u8; TOKEN_BYTES],
    slots: u64,
) -> Result<Lease, Refusal> {
    let (address, mut stream) = reach(from, name)?;
    let hello = Hello { lease: 0, slots, token: *token, share: false, last: false };
    let mut b = [0; Welcome::BYTES];
    memory_host::greet(&mut *stream, &hello).and_then(|()| stream.read_exact(&mut b)).map_err(
        |e| match e.kind() {
            ErrorKind::InvalidData => refusal::invalid(format!("memory host {name}: {e}")),
            _ => refusal::invalid(format!("{name} is no memory host, or of another release")),
        },
    )?;
    let welcome = Welcome::decode(&b)
        .map_err(|s| refusal::invalid(format!("memory host {name}: {}", s.text())))?;
    match welcome.status {
        Status::Ok if welcome.slots == 0 || slots != 0 && welcome.slots != slots => {
            Err(refusal::invalid(format!(
                "memory host {name} lends {} pages instead of {slots}: install the same release on \
                 both sides",
                welcome.slots
            )))
        }
        Status::Ok => Ok(Lease {
            address,
            id: welcome.lease,
            slots: welcome.slots,
            lender: Some((from.clone(), *token)),
        }),
        Status::TooSmall => Err(refusal::refused(format!(
            "memory host {name} has only {} free for this borrower; lower --far, or start it with \
             a larger --size or --most-each",
            crate::size::show(welcome.slots * PAGE_BYTES as u64)
        ))),
        status => Err(refusal::refused(format!("memory host {name}: {}", status.text()))),
    }
}

fn raw_ip(to: &SocketAddr) -> Vec<u8> {
    let mut raw = vec![];
    match to {
        SocketAddr::V4(a) => {
            raw.extend((libc::AF_INET as u16).to_ne_bytes());
            raw.extend(a.port().to_be_bytes());
            raw.extend(a.ip().octets());
            raw.extend([0; 8]);
        }
        SocketAddr::V6(a) => {
            raw.extend((libc::AF_INET6 as u16).to_ne_bytes());
            raw.extend(a.port().to_be_bytes());
            raw.extend(a.flowinfo().to_be_bytes());
            raw.extend(a.ip().octets());
            raw.extend(a.scope_id().to_ne_bytes());
        }
    }
    raw
}

/// Returns a spare host, without a request to it: its raw address, and a random number for its
/// future lease.
pub fn spare(from: &Address, name: &str) -> Result<Lease, Refusal> {
    let mut id = [0; 8];
    if unsafe { libc::getrandom(id.as_mut_ptr().cast(), 8, 0) } != 8 {
        let e = std::io::Error::last_os_error();
        return Err(refusal::of(&e, format!("no random number: {e}")));
    }
    match from {
        Address::Tcp(a) => Ok(Lease {
            address: hex(&raw_ip(&resolve(a, name)?[0])),
            id: u64::from_le_bytes(id) | 1,
            slots: 0,
            lender: None,
        }),
        Address::Unix(_) => {
            Err(refusal::invalid(format!("memory host {name}: a spare is named as HOST:PORT")))
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
