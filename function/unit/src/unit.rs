//! The unit's loop: takes packets from a ring, runs the chain and sends the outputs. One thread,
//! one core.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use pando_abi::BATCH_PACKETS;
use pando_abi::executor::Executor;
use pando_chain::{Arrival, Chain, Fate};
use pando_meter::latency::Latencies;
use pando_meter::{Billed, Meter, Unserved};
use pando_net::clock::{Moment, now};
use pando_net::offload;
use pando_net::packet::Slot;
use pando_net::port::Port;
use pando_outlog::journal::{Done, Ended, Journal};
use pando_outlog::{Durability, Positions};
use pando_rules::Force;
use pando_walls::cgroup::Limits;
use pando_wasm::Function;

use crate::events::Events;
use crate::status::{HandoverStatus, Status};

/// A unit with all its resources open.
pub struct Unit {
    /// Name of the unit.
    pub name: String,
    /// The tenant that pays.
    pub tenant: String,
    /// The functions that packets pass.
    pub chain: Chain<Function>,
    /// One device, or two with packets between them.
    pub ports: Vec<Port>,
    /// The meter of the unit.
    pub meter: Meter,
    /// The control socket, which does not block.
    pub control: UnixListener,
    /// Descriptor that reports SIGTERM and SIGINT.
    pub signals: OwnedFd,
    /// Limits of its process, if any.
    pub limits: Option<Limits>,
    /// Number of its rules in force, if it has an IDS.
    pub rules: Option<Force>,
    /// The connection to the output log, if there is one.
    pub journal: Option<Journal>,
    /// Counts of its handovers with the other units of its group, if any.
    pub(crate) handover: Option<HandoverStatus>,
    pub(crate) counters: Counters,
    events: Events,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) fates: [u64; Fate::ALL.len()],
    lost: u64,
    /// Packets that reached a unit of a group after their assignment ended.
    refused: u64,
    pub(crate) unsent: u64,
    pub(crate) latencies: Latencies,
    pub(crate) started: Option<Duration>,
}

impl Counters {
    fn unserved(&self) -> Unserved {
        Unserved { lost: self.lost + self.refused, unsent: self.unsent }
    }
}

/// Blocks SIGTERM and SIGINT for the process. Returns a descriptor that reports them.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: a zeroed signal set is valid to be emptied; the calls only read and write it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

impl Unit {
    /// Returns a unit that has processed no packet.
    pub fn new(
        name: String,
        tenant: String,
        chain: Chain<Function>,
        ports: Vec<Port>,
        meter: Meter,
        control: UnixListener,
        signals: OwnedFd,
    ) -> Unit {
        assert!((1..=2).contains(&ports.len()), "a unit has one device or two");
        let counters = Counters::default();
        Unit {
            name,
            tenant,
            chain,
            ports,
            meter,
            control,
            signals,
            limits: None,
            rules: None,
            journal: None,
            handover: None,
            counters,
            events: Events::default(),
        }
    }

    /// Serves until a signal or a request on the control socket stops it.
    pub fn run(&mut self) -> io::Result<()> {
        self.counters.started = Some(now());
        while self.journal.as_ref().is_some_and(Journal::begins) {
            if self.begin()? {
                return Ok(());
            }
        }
        let mut slots = Vec::with_capacity(BATCH_PACKETS);
        let mut since_turn = 0;
        loop {
            let mut worked = false;
            for port in 0..self.ports.len() {
                slots.clear();
                self.ports[port].receive(BATCH_PACKETS, &mut slots);
                worked |= !slots.is_empty();
                since_turn += slots.len();
                self.note_lost(false);
                self.batch(port, &slots)?;
            }
            self.print_events();
            // Under load, check the socket and the signals only after as many packets as one batch
            // may have. For single packets, this check would be a third of all system calls. A
            // journal gets its turn every round.
            if worked && since_turn < BATCH_PACKETS && self.journal.is_none() {
                continue;
            }
            since_turn = 0;
            // Wait only when there is nothing to do.
            let behind = || self.ports.iter().any(Port::is_behind);
            let idle_ms = if worked {
                0
            } else if behind() {
                1
            } else {
                1000
            };
            let sleep_ms = self.journal.as_mut().map_or(idle_ms, |j| j.idle(!worked));
            let ready = self.poll(sleep_ms, true)?;
            if ready.journal {
                self.attend()?;
            }
            if self.is_over(&ready)? {
                return Ok(());
            }
        }
    }

    /// Waits once for the output log, which may have a state for this unit. Packets wait in the
    /// rings.
    /// Returns whether a signal or a request stopped the unit.
    fn begin(&mut self) -> io::Result<bool> {
        let sleep_ms = self.journal.as_mut().map_or(0, |journal| journal.idle(true));
        let ready = self.poll(sleep_ms, false)?;
        if let Some(journal) = &mut self.journal {
            journal.start(&mut self.chain, &mut self.ports)?;
        }
        self.is_over(&ready)
    }

    /// Answers requests. Returns whether one of them or a signal stops the unit.
    fn is_over(&mut self, ready: &Ready) -> io::Result<bool> {
        let asked = ready.control && self.answer()?;
        let over = ready.signalled || asked;
        if let Some(journal) = self.journal.as_mut().filter(|_| over) {
            journal.vitals.stop();
            // After a signal, as at the end of its host, another unit may continue.
            if asked {
                journal.end();
            }
        }
        Ok(over)
    }

    fn poll(&self, timeout_ms: i32, packets: bool) -> io::Result<Ready> {
        let fds = [self.signals.as_raw_fd(), self.control.as_raw_fd()];
        let journal = self.journal.as_ref().map_or([-1; 2], Journal::fds);
        let ports = self.ports.iter().filter(|_| packets).flat_map(Port::fds);
        let mut polled: Vec<libc::pollfd> = fds
            .into_iter()
            .chain(journal)
            .chain(ports)
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: polled is a valid array.
        let result =
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
        if result < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        Ok(Ready {
            signalled: polled[0].revents != 0,
            control: polled[1].revents != 0,
            journal: polled[2].revents | polled[3].revents != 0,
        })
    }

    fn attend(&mut self) -> io::Result<()> {
        let done = Done { positions: positions(&self.ports), port: 0, frames: &[], forgotten: &[] };
        self.journal.as_mut().map_or(Ok(()), |j| j.attend(&self.chain, &done))
    }

    fn batch(&mut self, from: usize, slots: &[Slot]) -> io::Result<()> {
        let to = (from + 1) % self.ports.len();
        let mut done = 0;
        let moment = Moment::read();
        while done < slots.len() {
            let port = &self.ports[from];
            let arrivals: Vec<Arrival> = slots[done..]
                .iter()
                .map(|slot| {
                    let received = port.frame(slot);
                    let time_ns = moment.of_stamp(received.time_ns);
                    Arrival { frame: received.frame, time_ns, outer: from == 1, steered: None }
                })
                .collect();
            if let Some(journal) = &self.journal {
                journal.begin(from, arrivals.len());
            }
            let count = self.chain.process(&arrivals);
            let forgotten = self.chain.forgotten.as_mut().map(std::mem::take).unwrap_or_default();
            let mut outputs: Vec<Cow<[u8]>> = Vec::with_capacity(count);
            for ((fate, out), slot) in self.chain.outputs(&arrivals).zip(&slots[done..]) {
                self.counters.fates[fate as usize] += 1;
                out.iter().for_each(|frame| whole_or_cut(frame, slot.segment, &mut outputs));
            }
            let frames: Vec<&[u8]> = outputs.iter().map(Cow::as_ref).collect();
            if let Some(journal) = &mut self.journal {
                let mut positions = positions(&self.ports);
                positions[from] += count as u64;
                let done = Done { positions, port: to, frames: &frames, forgotten: &forgotten };
                match journal.append(&self.chain, &done, self.signals.as_raw_fd()) {
                    // The unit was stopped. These packets never leave, and the run ends at the next
                    // check of the signals.
                    Err(Ended::Told) => return Ok(()),
                    result => result.map_err(io::Error::other)?,
                }
            }
            // Bill first, then send: a crash in between leaves no work unbilled.
            self.meter.commit(self.chain.work());
            let sent = self.ports[to].send(&frames);
            if let Some(journal) = &mut self.journal {
                journal.sent();
            }
            if sent < frames.len() {
                self.counters.unsent += (frames.len() - sent) as u64;
                self.meter.note(self.counters.unserved());
            }
            let now_ns = now().as_nanos() as u64;
            arrivals[..count]
                .iter()
                .for_each(|a| self.counters.latencies.record(now_ns.saturating_sub(a.time_ns)));
            self.ports[from].release(count);
            if let Some(journal) = &self.journal {
                journal.vitals.set_position(from, self.ports[from].position());
            }
            done += count;
        }
        Ok(())
    }

    /// Counts packets without room in the rings, and stores the count in the meter, which outlives
    /// the unit. `all` includes losses that no frame has reported yet.
    pub(crate) fn note_lost(&mut self, all: bool) {
        let lost = self
            .ports
            .iter_mut()
            .map(|port| if all { port.lost() } else { port.noticed() })
            .sum::<u64>();
        if lost > 0 || all {
            self.counters.lost += lost;
            self.meter.note(self.counters.unserved());
        }
    }

    /// Counts the packets that a unit of a group has refused so far, and stores the count in the
    /// meter.
    pub(crate) fn note_refused(&mut self, refused: u64) {
        if std::mem::replace(&mut self.counters.refused, refused) != refused {
            self.meter.note(self.counters.unserved());
        }
    }

    /// Returns the current status.
    pub fn status(&mut self) -> Status {
        self.note_lost(true);
        let names: Vec<String> = self.chain.names().map(str::to_owned).collect();
        let functions = names.iter().zip(self.chain.work()).map(|(name, w)| Billed {
            function: name.clone(),
            packets: w.packets,
            bytes: w.bytes,
            fuel: w.fuel,
            trapped: w.trapped,
        });
        let mut fates = self.counters.fates;
        fates[Fate::Incomplete as usize] += self.chain.fragments_expired();
        let quantile = |share| self.counters.latencies.quantile_ns(share);
        Status {
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            pid: std::process::id(),
            epoch: self.meter.epoch,
            devices: self.ports.iter().map(|p| p.device().to_owned()).collect(),
            ways: self.ports.iter().map(Port::to_string).collect(),
            limits: self.limits,
            rules: self.rules.clone(),
            seconds: (now() - self.counters.started.unwrap_or_default()).as_secs_f64(),
            functions: functions.collect(),
            fates: Fate::ALL.iter().map(|f| (f.word().to_owned(), fates[*f as usize])).collect(),
            lost: self.counters.unserved().lost,
            unsent: self.counters.unsent,
            flows: self.chain.flows.len(),
            replaced: self.chain.replaced,
            latency_ns: [quantile(0.5), quantile(0.75), quantile(0.99)],
            traps: names
                .iter()
                .zip(self.chain.last_traps())
                .filter_map(|(n, t)| Some(format!("{n}: {}", t?)))
                .collect(),
            durability: self.journal.as_ref().map(|j| Durability::read(&j.vitals)),
            handover: self.handover,
            group: None,
        }
    }

    /// Answers all waiting clients of the control socket. Returns whether one of them asked for a
    /// stop.
    pub(crate) fn answer(&mut self) -> io::Result<bool> {
        let mut stop = false;
        while let Ok((mut client, _)) = self.control.accept() {
            client.set_read_timeout(Some(Duration::from_millis(100)))?;
            client.set_write_timeout(Some(Duration::from_millis(100)))?;
            let mut request = [0; 16];
            let length = client.read(&mut request).unwrap_or(0);
            let answer = match request[..length].trim_ascii() {
                b"status" => serde_json::to_string(&self.status()).expect("a status is JSON"),
                b"stop" => {
                    stop = true;
                    serde_json::to_string(&self.status()).expect("a status is JSON")
                }
                b"digest" => format!("\"{:016x}\"", self.chain.flows.digest()),
                b"states" => serde_json::to_string(&self.states()).expect("words are JSON"),
                _ => r#"{"error":"ask for status, digest, states or stop"}"#.to_owned(),
            };
            // A client that does not read its answer must not stop the unit.
            let _ = client.write_all(answer.as_bytes());
        }
        Ok(stop)
    }

    /// Returns the flows of this unit by key, each with the data for a handover. Both are
    /// hexadecimal.
    fn states(&self) -> BTreeMap<String, String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let keys = self.chain.flows.ids().map(|id| self.chain.flows.flow(id).key);
        keys.map(|key| (hex(key.as_bytes()), hex(&self.chain.export(&key)))).collect()
    }

    /// Logs events and printed text of functions, one JSON line each.
    pub(crate) fn print_events(&mut self) {
        let now_ns = now().as_nanos() as u64;
        if !self.chain.events.is_empty() {
            let names: Vec<String> = self.chain.names().map(str::to_owned).collect();
            let moment = Moment::read();
            for e in self.chain.events.drain(..) {
                let line = serde_json::json!({
                    "time_ns": moment.wall_of(e.time_ns), "function": names[e.stage],
                    "flow": format!("{:?}", e.key), "event": e.code
                });
                self.events.add(now_ns, &line);
            }
        }
        for function in self.chain.executors_mut() {
            let printed = function.take_printed();
            if !printed.is_empty() {
                // As JSON, printed text cannot look like other log lines or control a terminal.
                let name = &function.descriptor().name;
                let line = serde_json::json!({"function": name, "printed": spelled(&printed)});
                self.events.add(now_ns, &line);
            }
        }
        self.events.write(now_ns);
    }
}

/// Adds a frame that leaves, or the pieces into which its sender wanted it cut.
pub(crate) fn whole_or_cut<'a>(frame: &'a [u8], segment: u16, into: &mut Vec<Cow<'a, [u8]>>) {
    match offload::cut(frame, segment) {
        Some(pieces) => into.extend(pieces.into_iter().map(Cow::from)),
        None => into.push(frame.into()),
    }
}

/// Returns printed bytes as text. JSON escapes the ASCII control characters. This replaces DEL and
/// U+0080 to U+009F by spaces, because terminals obey them.
fn spelled(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    text.chars().map(|c| if ('\u{7f}'..='\u{9f}').contains(&c) { ' ' } else { c }).collect()
}

struct Ready {
    signalled: bool,
    control: bool,
    journal: bool,
}

fn positions(ports: &[Port]) -> Positions {
    [0, 1].map(|port| ports.get(port).map_or(0, Port::position))
}

/// Returns the process that listens on the control socket at `path`, even if it does not answer.
pub fn listener(path: &std::path::Path) -> Option<i32> {
    let stream = UnixStream::connect(path).ok()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: peer has size bytes.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut size,
        )
    };
    (got == 0 && peer.pid > 0).then_some(peer.pid)
}

/// Reports whether a request failed because its receiver is alive but does not answer.
pub fn is_silence(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends "status" or "stop" to the unit with the control socket at `path`.
pub fn ask(path: &std::path::Path, request: &str) -> io::Result<Status> {
    serde_json::from_str(&self::request(path, request)?).map_err(io::Error::other)
}

/// Sends a request and returns the raw answer. "digest" returns a fingerprint of all flows and
/// their state, "states" returns the flows themselves.
pub fn request(path: &std::path::Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
