//! The door of a log for units of other hosts: callers, their keys, and the bounds of a tenant.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::super::keys::Keys;
use super::super::sealed::{self, CALL_BYTES_MAX, Refused};
use super::super::stream::Stream;
use super::super::transport;

/// Callers that have not proved a key. The oldest leaves for a new one.
pub(super) const CALLERS_MAX: usize = 64;
/// A caller proves its key and introduces itself within this time.
pub(super) const CALL_TIME: Duration = Duration::from_secs(5);
/// After a failed accept, for lack of descriptors for example, the door stays shut this long.
const SHUT: Duration = Duration::from_millis(100);
/// Refusals are reported at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How much the units of other hosts may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Memory of a tenant's copies and connections, in bytes. Beyond it, copies without a unit go,
    /// then the unit that came last.
    pub tenant_bytes: usize,
    /// Connections of a tenant.
    pub tenant_links: usize,
    /// Connections of all.
    pub links: usize,
    /// How long a copy waits for a new run after its unit is gone. It is looked at when a
    /// connection comes.
    pub orphan: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let orphan = Duration::from_secs(3600);
        Bounds { tenant_bytes: 512 << 20, tenant_links: 256, links: 4096, orphan }
    }
}

/// A caller that has not proved a key.
struct Caller {
    socket: TcpStream,
    address: SocketAddr,
    arrived: Vec<u8>,
    since: Instant,
}

/// The door.
pub struct Door {
    listener: TcpListener,
    keys: Keys,
    pub(super) bounds: Bounds,
    callers: VecDeque<Caller>,
    shut: Option<Instant>,
    refused: Refusals,
}

/// A caller that came in: its link, and its tenant.
pub(super) struct Guest {
    pub(super) link: Stream,
    pub(super) tenant: String,
}

impl Door {
    /// Opens the door to all that have a key.
    pub fn new(listener: TcpListener, keys: Keys, bounds: Bounds) -> io::Result<Door> {
        listener.set_nonblocking(true)?;
        let (callers, refused) = (VecDeque::new(), Refusals::default());
        Ok(Door { listener, keys, bounds, callers, shut: None, refused })
    }

    /// Returns the descriptors to sleep on, and the longest sleep.
    pub(super) fn fds(&self) -> (Vec<RawFd>, Option<Instant>) {
        let listener = if self.shut.is_some() { -1 } else { self.listener.as_raw_fd() };
        let fds = [listener].into_iter();
        let fds = fds.chain(self.callers.iter().map(|c| c.socket.as_raw_fd())).collect();
        (fds, self.shut.into_iter().chain(self.callers.front().map(|c| c.since + CALL_TIME)).min())
    }

    /// Accepts callers and listens to them. Returns those that have proved a key.
    pub(super) fn attend(&mut self) -> Vec<Guest> {
        if self.shut.is_none_or(|until| until <= Instant::now()) {
            self.shut = None;
            self.accept();
        }
        let mut guests = Vec::new();
        for _ in 0..self.callers.len() {
            let Some(mut caller) = self.callers.pop_front() else { break };
            match caller.listen(&self.keys) {
                Ok(Some(tenant)) => match caller.guest(tenant) {
                    Ok(guest) => guests.push(guest),
                    Err((address, e)) => self.refused.note(address, &e.to_string()),
                },
                Ok(None) if caller.since.elapsed() < CALL_TIME => self.callers.push_back(caller),
                Ok(None) => self.refused.note(caller.address, "it sent no call within 5 s"),
                Err(why) => self.refused.note(caller.address, &why),
            }
        }
        self.refused.report();
        guests
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, address)) => {
                    if self.callers.len() >= CALLERS_MAX
                        && let Some(oldest) = self.callers.pop_front()
                    {
                        self.refused.note(oldest.address, "too many others call");
                    }
                    let (arrived, since) = (Vec::new(), Instant::now());
                    self.callers.push_back(Caller { socket, address, arrived, since });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // A caller that has already left.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    pando_walls::say!("the output log accepts no connection for a while: {e}");
                    self.shut = Some(Instant::now() + SHUT);
                    return;
                }
            }
        }
    }
}

impl Caller {
    /// Reads the call, and answers it when it is whole. Returns the session and the tenant then.
    fn listen(&mut self, keys: &Keys) -> Result<Option<(sealed::Session, String)>, String> {
        let mut bytes = [0; 2 + CALL_BYTES_MAX + 1];
        match transport::receive(&self.socket, &mut bytes) {
            Ok(Some(0)) => return Err("it left".to_owned()),
            Ok(length) => self.arrived.extend_from_slice(&bytes[..length.unwrap_or(0)]),
            Err(e) => return Err(e.to_string()),
        }
        let answered = sealed::answer(&self.arrived, keys).map_err(|e: Refused| e.to_string())?;
        let Some((answer, session, tenant)) = answered else { return Ok(None) };
        // A new connection has room for these few bytes.
        match transport::send(&self.socket, &answer) {
            Ok(sent) if sent == answer.len() => Ok(Some((session, tenant))),
            Ok(_) => Err("it has no room for an answer".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    fn guest(
        self,
        (session, tenant): (sealed::Session, String),
    ) -> Result<Guest, (SocketAddr, io::Error)> {
        let link = Stream::of_log(self.socket, &session).map_err(|e| (self.address, e))?;
        Ok(Guest { link, tenant })
    }
}

/// Reports refused callers, a line for all of a second.
#[derive(Default)]
struct Refusals {
    count: u64,
    last: String,
    reported: Option<Instant>,
}

impl Refusals {
    fn note(&mut self, address: SocketAddr, why: &str) {
        self.count += 1;
        self.last = format!("{address}: {why}");
    }

    fn report(&mut self) {
        if self.count == 0 || self.reported.is_some_and(|at| at.elapsed() < REPORT_EVERY) {
            return;
        }
        pando_walls::say!("callers refused: {}; the last: {}", self.count, self.last);
        (self.count, self.reported) = (0, Some(Instant::now()));
    }
}

/// Adds up the bytes of each tenant.
pub(super) fn sums<'a>(parts: impl Iterator<Item = (&'a str, usize)>) -> HashMap<&'a str, usize> {
    parts.fold(HashMap::new(), |mut sums, (tenant, bytes)| {
        *sums.entry(tenant).or_default() += bytes;
        sums
    })
}
