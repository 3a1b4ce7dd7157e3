//! Connections. Each has a blocking thread, which is enough for the few pagers that share a memory
//! host.

use crate::admission::Admission;
use crate::inbox::Inbox;
use crate::lease::{Lease, Leases, random};
use memory_core::wire::{Challenge, Hello, Op, Reply, Status, TCP_RTO_MAX_MS, WIDE, Welcome};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(s: &str) -> Result<Address, String> {
        match s.strip_prefix("unix:") {
            Some("") => Err("unix: wants a path".into()),
            Some(path) => Ok(Address::Unix(path.into())),
            None if s
                .rsplit_once(':')
                .is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok()) =>
            {
                Ok(Address::Tcp(s.into()))
            }
            None => Err(format!("{s:?} is neither HOST:PORT nor unix:PATH")),
        }
    }
}

/// A connection without a greeting is closed after this time.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// A memory host that does not listen yet.
pub struct Server {
    /// The leases of the host.
    pub leases: Arc<Leases>,
    /// The borrowers that it serves.
    pub admission: Admission,
    /// For experiments: delay of every answer to a read or write, like a longer wire.
    pub delay: Duration,
    /// For tests of the checksum: one bit is flipped in every n-th page that is read. 0 = none.
    pub lie_every: u64,
}

/// The other end of a connection.
struct From {
    /// Its name in messages.
    name: String,
    /// The borrower that its memory is counted for: its name, or else its machine or its user on
    /// this machine.
    owner: String,
}

impl From {
    /// Returns the other end as a borrower with a token of its own.
    fn named(self, borrower: &str) -> From {
        From { name: format!("{borrower} ({})", self.name), owner: format!("borrower {borrower}") }
    }
}

/// Greets a memory host as a borrower: reads its challenge, and sends the greeting. The answer
/// follows. `InvalidData`: it is no memory host of this version.
pub fn greet(stream: &mut (impl Read + Write + ?Sized), hello: &Hello) -> io::Result<()> {
    let mut b = [0; Challenge::BYTES];
    stream.read_exact(&mut b)?;
    let challenge =
        Challenge::decode(&b).map_err(|s| io::Error::new(ErrorKind::InvalidData, s.text()))?;
    stream.write_all(&hello.encode(&challenge))
}

trait Stream: Read + Write + AsRawFd + Send + 'static {}
impl<T: Read + Write + AsRawFd + Send + 'static> Stream for T {}

impl Server {
    /// Listens at `address` in a separate thread; returns the address with its actual port.
    pub fn listen(self: &Arc<Self>, address: &Address) -> io::Result<String> {
        let me = self.clone();
        match address {
            Address::Tcp(a) => {
                let listener = TcpListener::bind(a)?;
                let bound = listener.local_addr()?.to_string();
                std::thread::spawn(move || {
                    for stream in listener.incoming() {
                        let Some(stream) = accepted(stream) else { continue };
                        let _ = stream.set_nodelay(true);
                        widen(stream.as_raw_fd());
                        keep_alive(stream.as_raw_fd());
                        // Gone already: its greeting cannot come.
                        let Ok(peer) = stream.peer_addr() else { continue };
                        let from = From { name: peer.to_string(), owner: peer.ip().to_string() };
                        me.clone().attend(stream, false, from);
                    }
                });
                Ok(bound)
            }
            Address::Unix(path) => {
                // Remove a socket file without a listener. Any other file stays.
                let is_socket =
                    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if is_socket
                    && UnixStream::connect(path)
                        .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
                {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)?;
                std::thread::spawn(move || {
                    for stream in listener.incoming() {
                        let Some(stream) = accepted(stream) else { continue };
                        let from = borrower(stream.as_raw_fd());
                        me.clone().attend(stream, true, from);
                    }
                });
                Ok(format!("unix:{}", path.display()))
            }
        }
    }

    fn attend(self: Arc<Self>, mut stream: impl Stream, local: bool, from: From) {
        // Without a thread the connection closes, like one without a greeting: other borrowers wait
        // for its memory.
        let _ = std::thread::Builder::new().spawn(move || {
            patience(stream.as_raw_fd(), HELLO_WITHIN);
            let admitted = self.admit(&mut stream, local, from);
            patience(stream.as_raw_fd(), Duration::ZERO);
            if let Some(lease) = admitted {
                // A borrower ends by closing its connection, so this error is no news.
                let _ = self.serve(&mut stream, &lease);
                self.leases.leave(lease.id);
            }
        });
    }

    fn admit(&self, stream: &mut impl Stream, local: bool, from: From) -> Option<Arc<Lease>> {
        let challenge = Challenge { nonce: random().ok()? };
        stream.write_all(&challenge.encode()).ok()?;
        let mut b = [0; Hello::BYTES];
        stream.read_exact(&mut b).ok()?;
        let (status, lease, slots, share) = match self.admission.admit(&b, &challenge) {
            Err(status) => (status, None, 0, false),
            Ok((hello, name)) => self.answer(&hello, name, local, from),
        };
        let welcome = Welcome { status, lease: lease.as_ref().map_or(0, |l| l.id), slots }.encode();
        let sent = match &lease {
            Some(l) if share => send_with_fd(stream.as_raw_fd(), &welcome, l.fd()),
            _ => stream.write_all(&welcome),
        };
        if sent.is_err() {
            if let Some(l) = &lease {
                self.leases.leave(l.id);
            }
            return None;
        }
        lease
    }

    /// Returns the answer to a greeting: its result, the lease, slots, and whether the lease's
    /// memory is passed on. A lease of a named borrower is of this borrower alone.
    fn answer(
        &self,
        hello: &Hello,
        name: Option<String>,
        local: bool,
        from: From,
    ) -> (Status, Option<Arc<Lease>>, u64, bool) {
        let from = match name {
            Some(name) => {
                let from = from.named(&name);
                // The number of a lease travels in the clear.
                if hello.lease != 0 && self.leases.is_of_another(hello.lease, &from.owner) {
                    return (Status::NoSuchLease, None, 0, false);
                }
                from
            }
            None => from,
        };
        if hello.lease != 0 && hello.slots == 0 {
            return match self.leases.join(hello.lease, hello.last) {
                Some(l) => (Status::Ok, Some(l.clone()), l.slots, hello.share),
                None => (Status::NoSuchLease, None, 0, false),
            };
        }
        match self.lend(hello, &from.owner) {
            Ok(Ok(l)) => {
                self.leases.lent_to(l.id, from.name);
                if local {
                    l.populate();
                }
                (Status::Ok, Some(l.clone()), l.slots, hello.share)
            }
            Ok(Err(free)) => (Status::TooSmall, None, free, false),
            Err(_) => (Status::TooSmall, None, 0, false),
        }
    }

    fn lend(&self, hello: &Hello, owner: &str) -> io::Result<Result<Arc<Lease>, u64>> {
        if hello.lease != 0 {
            self.leases.replace(hello.lease, hello.slots, owner)
        } else {
            self.leases.open(hello.slots, owner)
        }
    }

    fn serve(&self, stream: &mut impl Stream, lease: &Lease) -> io::Result<()> {
        let mut slots = vec![0u32; BATCH_PAGES_MAX];
        let mut pieces = Vec::with_capacity(BATCH_PAGES_MAX + 1);
        let mut served = 0u64;
        if !self.delay.is_zero() {
            // Otherwise a sleep of microseconds takes 50 longer.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        }
        let mut inbox = Inbox::new(stream.as_raw_fd());
        loop {
            let Ok(request) = inbox.next(&mut slots)? else {
                return refuse(stream, 0);
            };
            let wanted = &slots[..request.count as usize];
            if lease.is_ended() || lease.pieces(wanted, &mut pieces).is_none() {
                return refuse(stream, request.serial);
            }
            let reply = Reply { status: Status::Ok, serial: request.serial }.encode();
            if request.op == Op::Write {
                put(inbox.more(wanted.len() * PAGE_BYTES), &mut pieces);
                all(&mut pieces, |p| unsafe {
                    libc::readv(stream.as_raw_fd(), p.as_ptr(), p.len() as i32)
                })?;
            }
            if !self.delay.is_zero() {
                std::thread::sleep(self.delay);
            }
            if request.op == Op::Write {
                stream.write_all(&reply)?;
                continue;
            }
            served += wanted.len() as u64;
            if self.lie_every > 0 && served % self.lie_every < wanted.len() as u64 {
                unsafe { *pieces[0].iov_base.cast::<u8>() ^= 1 };
            }
            pieces.insert(
                0,
                libc::iovec { iov_base: reply.as_ptr() as *mut _, iov_len: reply.len() },
            );
            all(&mut pieces, |p| unsafe {
                libc::writev(stream.as_raw_fd(), p.as_ptr(), p.len() as i32)
            })?;
        }
    }
}

fn refuse(stream: &mut impl Stream, serial: u64) -> io::Result<()> {
    stream.write_all(&Reply { status: Status::BadRequest, serial }.encode())
}

/// Returns a connection. On an error, such as a lack of descriptors, pauses before the next
/// attempt.
fn accepted<S>(stream: io::Result<S>) -> Option<S> {
    stream.map_err(|_| std::thread::sleep(Duration::from_millis(10))).ok()
}

/// Returns the process at the other end of a unix socket.
fn borrower(fd: RawFd) -> From {
    let (mut who, mut len) =
        (libc::ucred { pid: 0, uid: 0, gid: 0 }, size_of::<libc::ucred>() as u32);
    unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len)
    };
    From {
        name: format!("process {} of this machine", who.pid),
        owner: format!("user {} of this machine", who.uid),
    }
}

/// Sets how long a read may last. Zero = without limit.
fn patience(fd: RawFd, most: Duration) {
    let most = libc::timeval { tv_sec: most.as_secs() as i64, tv_usec: 0 };
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const most).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
}

/// Ends the connection of a vanished borrower after 5 minutes, whether an answer is under way or
/// not.
fn keep_alive(fd: RawFd) {
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 30),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 300_000),
        (libc::IPPROTO_TCP, TCP_RTO_MAX_MS.0, TCP_RTO_MAX_MS.1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1i32),
    ] {
        unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), 4) };
    }
}

/// Copies into the first pieces, and shortens the list to the rest.
fn put(mut bytes: &[u8], pieces: &mut [libc::iovec]) {
    for piece in pieces {
        let n = bytes.len().min(piece.iov_len);
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.iov_base.cast(), n) };
        (piece.iov_base, piece.iov_len) = (piece.iov_base.wrapping_byte_add(n), piece.iov_len - n);
        bytes = &bytes[n..];
    }
}

/// Calls a vectored read or write until all pieces are done.
fn all(
    pieces: &mut [libc::iovec],
    mut call: impl FnMut(&[libc::iovec]) -> isize,
) -> io::Result<()> {
    let mut from = 0;
    while from < pieces.len() {
        let to = pieces.len().min(from + libc::UIO_MAXIOV as usize);
        let n = call(&pieces[from..to]);
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if n < 0 {
            let e = io::Error::last_os_error();
            if e.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(e);
        }
        let mut n = n as usize;
        while from < pieces.len() && n >= pieces[from].iov_len {
            n -= pieces[from].iov_len;
            from += 1;
        }
        if n > 0 {
            let p = &mut pieces[from];
            p.iov_base = p.iov_base.cast::<u8>().wrapping_add(n).cast();
            p.iov_len -= n;
        }
    }
    Ok(())
}

/// Makes the socket buffers hold a whole batch, so that one answer is one wake-up. Only root may:
/// for other users the kernel sizes the buffers itself.
fn widen(fd: RawFd) {
    for (option, bytes) in WIDE {
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
    }
}

fn send_with_fd(socket: RawFd, bytes: &[u8], fd: RawFd) -> io::Result<()> {
    let mut control = [0u64; 4];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let c = libc::CMSG_FIRSTHDR(&message);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c).cast::<i32>().write_unaligned(fd);
        if libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) != bytes.len() as isize {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
