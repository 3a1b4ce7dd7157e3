//! The transport over a TCP or unix socket.

use crate::config::Address;
use crate::sys::follow;
use crate::transport::{Broken, LONG, Transport, Watch};
use crate::{descriptor, mode, sys};
use memory_core::poll::Poll;
use memory_core::wire::{
    Challenge, Hello, Op, Reply, Request, Status, TCP_RTO_MAX_MS, WIDE, Welcome,
};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};

/// Sockets time out after this, so that silence is counted in steps.
const TICK_US: i64 = 5_000;
/// A longer step counts as this long: the process itself was not running.
const STEP_MAX_NS: u64 = 12_000_000;
/// Once a write has waited for this long, the tender probes the other hosts.
const SLOW: u64 = LONG / 4;
/// A transfer that crawls counts as silent above this time per byte, ns: 13 MB/s.
const CRAWL_NS: u64 = 76;
/// How long a thread of the program polls for an answer: about the cost of a sleep and a wake-up.
/// It does not yield meanwhile, because a thread that only computes would keep the processor.
const POLL_NS: u64 = 60_000;
/// TCP_USER_TIMEOUT, ms. The kernel never gives up a connection: the pager counts the silence
/// itself.
const NEVER_MS: i32 = i32::MAX;

/// The silence of a host during one operation, and its limit.
struct Silence {
    watch: Option<&'static dyn Watch>,
    host: usize,
    counted_ns: u64,
    patience_ns: u64,
    since_ns: u64,
    begun_ns: u64,
    /// See [`Port::spares`].
    spares: bool,
}

impl Silence {
    /// Counts a step without enough data. Returns whether the port stops waiting.
    fn is_over(&mut self) -> bool {
        follow::heed();
        let now = sys::now_ns();
        let step = (now - self.since_ns).min(STEP_MAX_NS);
        (self.counted_ns, self.since_ns) = (self.counted_ns + step, now);
        if let Some(watch) = self.watch {
            watch.waits(self.host, self.counted_ns);
            if self.spares && self.counted_ns >= SLOW {
                watch.waits_to_write(self.host);
            }
        }
        if self.counted_ns < self.patience_ns || !self.spares {
            return self.counted_ns >= self.patience_ns;
        }
        self.watch.is_none_or(|watch| watch.gives_up(self.host, self.begun_ns, self.counted_ns))
    }

    /// Returns the cause of a failed call on a socket, from its error. 0 = the connection ended.
    fn ended_by(&self, error: isize) -> Broken {
        match -error as i32 {
            0 | libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE | libc::ENOENT => Broken::Away,
            _ => Broken::Silent(self.counted_ns),
        }
    }
}

/// A connection of one lane to one host.
#[derive(Default)]
pub struct Port {
    /// Descriptor + 1; 0 is closed.
    fd: i32,
    /// The file of the descriptor.
    file: u64,
    serial: u64,
    /// The lease that this port reads and writes.
    lease: u64,
    /// The number of the host.
    pub host: usize,
    /// Receives the waits of this port. Without one, a write waits no longer than `patience`.
    pub watch: Option<&'static dyn Watch>,
    /// Silence after which the connection counts as broken, ns.
    pub patience: u64,
    /// Waits for a silent host even longer, as long as no other host answers.
    pub spares: bool,
    poll: Poll,
}

impl Port {
    /// Returns a closed port to the host of this number.
    pub fn to(host: usize) -> Port {
        Port { host, ..Port::default() }
    }

    /// Returns the descriptor of an open connection.
    #[cfg(test)]
    pub fn socket(&self) -> i32 {
        self.fd - 1
    }

    /// Whether the port is connected to this lease. A host that was given up and came back may
    /// still serve its old lease.
    pub fn is_open(&self, lease: u64) -> bool {
        self.fd > 0 && self.lease == lease && self.is_there()
    }

    /// Whether the descriptor still refers to the connection. In sigbus mode it is in the program's
    /// table, and the program may have closed it by a raw system call.
    fn is_there(&self) -> bool {
        !mode::is_sigbus() || unsafe { descriptor::file(self.fd - 1) } == self.file
    }

    /// Drops the parent's connection, in a forked child. In thread mode the child did not inherit
    /// it.
    pub fn forget(&mut self) {
        if mode::is_sigbus() {
            self.close();
        }
        self.fd = 0;
    }

    /// Ends the connection, if there is one.
    pub fn close(&mut self) {
        // Clear the number first: after a fork in between, it may refer to another file in the
        // child.
        let there = self.fd > 0 && self.is_there();
        let fd = core::mem::take(&mut self.fd);
        if there {
            unsafe { descriptor::close(fd - 1) };
        }
    }

    /// Whether data arrives, or the connection ends, within this time.
    pub fn answers_within(&self, ns: u64) -> bool {
        let mut p = libc::pollfd { fd: self.fd - 1, events: libc::POLLIN, revents: 0 };
        let t = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        self.fd <= 0 || unsafe { sys!(libc::SYS_ppoll, &raw mut p, 1, &raw const t, 0, 0) } == 1
    }

    /// Connects and answers the host's challenge with the greeting. Returns the lease, its slots,
    /// and the memory file if `share` is set.
    ///
    /// A program may close this connection by a bare system call meanwhile, and another one of the
    /// pager may get its number. Both then read parts of each other's messages. So a refusal of the
    /// version or the token is believed at the third time.
    pub fn open(&mut self, to: &Address, hello: &Hello) -> Result<(Welcome, i32), Broken> {
        for _ in 0..2 {
            match self.greet(to, hello) {
                Err(Broken::Refused(Status::WrongVersion | Status::WrongToken)) => {}
                answer => return answer,
            }
        }
        self.greet(to, hello)
    }

    /// Connects and greets the host once.
    fn greet(&mut self, to: &Address, hello: &Hello) -> Result<(Welcome, i32), Broken> {
        self.close();
        let fd = unsafe {
            sys!(libc::SYS_socket, to.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
        };
        if fd < 0 {
            return Err(Broken::Silent(0));
        }
        let fd = unsafe { descriptor::adopt(fd as i32) };
        self.file = unsafe { descriptor::file(fd) };
        self.fd = fd + 1;
        self.serial = 0;
        let wait = libc::timeval { tv_sec: 0, tv_usec: TICK_US };
        unsafe {
            sys!(
                libc::SYS_setsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_SNDTIMEO,
                &raw const wait,
                size_of::<libc::timeval>()
            );
            sys!(
                libc::SYS_setsockopt,
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                &raw const wait,
                size_of::<libc::timeval>()
            );
            for (option, bytes) in WIDE {
                sys!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const bytes, 4);
            }
            if to.family() != libc::AF_UNIX {
                for (option, value) in
                    [(libc::TCP_NODELAY, 1), (libc::TCP_USER_TIMEOUT, NEVER_MS), TCP_RTO_MAX_MS]
                {
                    sys!(libc::SYS_setsockopt, fd, libc::IPPROTO_TCP, option, &raw const value, 4);
                }
            }
        }
        self.connect(to)?;
        let mut bytes = [0; Challenge::BYTES];
        let memory = self.message(&mut bytes)?;
        let challenge = match Challenge::decode(&bytes) {
            Ok(challenge) if memory < 0 => challenge,
            _ => return self.refuse(memory, Broken::Refused(Status::WrongVersion)),
        };
        let hello = hello.encode(&challenge);
        let mut piece = [libc::iovec { iov_base: hello.as_ptr() as *mut _, iov_len: hello.len() }];
        self.all(libc::SYS_sendmsg, &mut piece, false)?;
        self.welcome()
    }

    fn connect(&mut self, to: &Address) -> Result<(), Broken> {
        let mut silence = self.silence(self.patience);
        loop {
            match unsafe { sys!(libc::SYS_connect, self.fd - 1, to.bytes.as_ptr(), to.len) } {
                0 => return Ok(()),
                e if [libc::EINPROGRESS, libc::EALREADY, libc::EINTR].contains(&(-e as i32))
                    && !silence.is_over() => {}
                e => return self.fail(silence.ended_by(e)),
            }
        }
    }

    fn silence(&self, patience_ns: u64) -> Silence {
        let now = sys::now_ns();
        Silence {
            watch: self.watch,
            host: self.host,
            counted_ns: 0,
            patience_ns,
            since_ns: now,
            begun_ns: now,
            spares: self.spares,
        }
    }

    /// Receives the answer to the greeting.
    fn welcome(&mut self) -> Result<(Welcome, i32), Broken> {
        let mut bytes = [0; Welcome::BYTES];
        let memory = self.message(&mut bytes)?;
        match Welcome::decode(&bytes) {
            Ok(w) if w.status == Status::Ok => {
                self.lease = w.lease;
                Ok((w, memory))
            }
            Ok(w) => self.refuse(memory, Broken::Refused(w.status)),
            Err(status) => self.refuse(memory, Broken::Refused(status)),
        }
    }

    /// Receives a message, which may come in pieces. Returns the memory file that came with it, or
    /// -1.
    fn message(&mut self, bytes: &mut [u8]) -> Result<i32, Broken> {
        let mut memory = -1;
        let mut silence = self.silence(self.patience);
        let mut len = 0;
        while len < bytes.len() {
            let n = unsafe { self.receive(&mut bytes[len..], &mut memory) };
            len += n.max(0) as usize;
            let waits = n > 0 || [libc::EAGAIN, libc::EINTR].contains(&(-n as i32));
            if len < bytes.len() && (!waits || silence.is_over()) {
                return self.refuse(memory, silence.ended_by(if waits { TIMEOUT } else { n }));
            }
        }
        Ok(memory)
    }

    /// Receives bytes, and perhaps a descriptor, which it stores in `memory`.
    unsafe fn receive(&mut self, bytes: &mut [u8], memory: &mut i32) -> isize {
        let mut control = [0u64; 4];
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        (m.msg_iov, m.msg_iovlen, m.msg_control, m.msg_controllen) =
            (&mut piece, 1, control.as_mut_ptr().cast(), 32);
        let flags = libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;
        let n = unsafe { sys!(libc::SYS_recvmsg, self.fd - 1, &raw mut m, flags) };
        if n > 0 && m.msg_controllen >= 20 && *memory < 0 {
            *memory = unsafe { descriptor::adopt((control.as_ptr() as *const i32).add(4).read()) };
        }
        n
    }

    /// Closes the connection, and the memory file that came with it.
    fn refuse<T>(&mut self, memory: i32, why: Broken) -> Result<T, Broken> {
        if memory >= 0 {
            unsafe { descriptor::close(memory) };
        }
        self.fail(why)
    }

    fn fail<T>(&mut self, why: Broken) -> Result<T, Broken> {
        self.close();
        Err(why)
    }

    /// Sends or receives all pieces. With `awake`, polls for [`POLL_NS`] before it sleeps.
    fn all(&mut self, nr: i64, pieces: &mut [libc::iovec], mut awake: bool) -> Result<(), Broken> {
        let mut from = 0;
        let bytes: usize = pieces.iter().map(|p| p.iov_len).sum();
        let mut silence = self.silence(self.patience + bytes as u64 * CRAWL_NS);
        let awake_until = if awake { sys::now_ns() + POLL_NS } else { 0 };
        while from < pieces.len() {
            let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
            m.msg_iov = &mut pieces[from];
            m.msg_iovlen = (pieces.len() - from).min(libc::UIO_MAXIOV as usize) as _;
            let flags = match awake {
                true => libc::MSG_DONTWAIT,
                false if nr == libc::SYS_sendmsg => libc::MSG_NOSIGNAL,
                false => libc::MSG_WAITALL,
            };
            let n = unsafe { sys!(nr, self.fd - 1, &raw mut m, flags) };
            if n == -(libc::EINTR as isize) {
                continue;
            }
            if awake && n == -(libc::EAGAIN as isize) {
                awake = sys::now_ns() < awake_until;
                if !awake {
                    self.poll.lost(POLL_NS);
                }
                continue;
            }
            if n <= 0 && n != -(libc::EAGAIN as isize) {
                return self.fail(silence.ended_by(n));
            }
            let mut n = n.max(0) as usize;
            while from < pieces.len() && n >= pieces[from].iov_len {
                n -= pieces[from].iov_len;
                from += 1;
            }
            if n > 0 {
                pieces[from].iov_base = pieces[from].iov_base.cast::<u8>().wrapping_add(n).cast();
                pieces[from].iov_len -= n;
            }
            // The socket's timeout ended the call early.
            if from < pieces.len() && silence.is_over() {
                return self.fail(Broken::Silent(silence.counted_ns));
            }
        }
        if awake {
            self.poll.came();
        }
        Ok(())
    }

    fn request(&mut self, op: Op, slots: &[u32], from: &[*mut u8]) -> Result<(), Broken> {
        if self.fd <= 0 {
            return Err(Broken::Away);
        }
        self.serial += 1;
        let head = Request { op, count: slots.len() as u32, serial: self.serial }.encode();
        let mut pieces = [NO_PIECE; BATCH_PAGES_MAX + 2];
        pieces[0] = libc::iovec { iov_base: head.as_ptr() as *mut _, iov_len: head.len() };
        pieces[1] = libc::iovec { iov_base: slots.as_ptr() as *mut _, iov_len: slots.len() * 4 };
        let n = 2 + join(from, &mut pieces[2..]);
        self.all(libc::SYS_sendmsg, &mut pieces[..n], false)
    }

    fn reply(&mut self, into: &[*mut u8], awake: bool) -> Result<(), Broken> {
        if !self.is_there() {
            return self.fail(Broken::Away);
        }
        let mut head = [0u8; Reply::BYTES];
        let mut pieces = [NO_PIECE; BATCH_PAGES_MAX + 1];
        pieces[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        let n = 1 + join(into, &mut pieces[1..]);
        self.all(libc::SYS_recvmsg, &mut pieces[..n], awake)?;
        match Reply::decode(&head) {
            Ok(r) if r.status == Status::Ok && r.serial == self.serial => Ok(()),
            Ok(r) if r.status != Status::Ok => self.fail(Broken::Refused(r.status)),
            _ => self.fail(Broken::Refused(Status::BadRequest)),
        }
    }
}

/// The error of a call that the timeout of its socket ended.
const TIMEOUT: isize = -(libc::EAGAIN as isize);
const NO_PIECE: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// Makes one piece for each run of adjacent pages; returns how many.
fn join(pages: &[*mut u8], out: &mut [libc::iovec]) -> usize {
    let mut n = 0;
    for &page in pages {
        if n > 0 && out[n - 1].iov_base.cast::<u8>().wrapping_add(out[n - 1].iov_len) == page {
            out[n - 1].iov_len += PAGE_BYTES;
        } else {
            out[n] = libc::iovec { iov_base: page.cast(), iov_len: PAGE_BYTES };
            n += 1;
        }
    }
    n
}

impl Transport for Port {
    fn begin_read(&mut self, slots: &[u32]) -> Result<(), Broken> {
        self.request(Op::Read, slots, &[])
    }

    fn end_read(&mut self, _: &[u32], into: &[*mut u8]) -> Result<(), Broken> {
        let awake = self.poll.now();
        self.reply(into, awake)
    }

    fn begin_write(&mut self, slots: &[u32], from: &[*mut u8]) -> Result<(), Broken> {
        self.request(Op::Write, slots, from)
    }

    fn end_write(&mut self) -> Result<(), Broken> {
        if self.fd <= 0 {
            return Err(Broken::Away);
        }
        self.reply(&[], false)
    }
}
