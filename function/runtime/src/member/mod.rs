//! A unit of a group: packets with steering's header in, in the order in which the handover of states admits them and
//! the virtual clock serves them, and out with the header that says where they leave (SNF §3, §5).
//!
//! It has one device. Its chain, its bill and its answers are those of [`crate::unit::Unit`].

pub mod chaos;
mod keep;
mod questions;
mod service;
pub mod shared;
pub mod store;
pub mod transport;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pando_protocol::message::Snapshot;
use pando_protocol::{Admission, Effect, FlowKey, Handover, Message, Steered, Timing, UNITS_MAX, UnitId};
use serde::{Deserialize, Serialize};

use crate::abi::BATCH_PACKETS;
use crate::chain::{Arrival, Chain, Fate};
use crate::module::Function;
use crate::unit::{Unit, now, whole_or_cut};
use chaos::Chaos;
use questions::Questions;
use service::{Packet, Service};
use shared::{Numbers, Report, Shared};
use store::Store;
use transport::Transport;

/// What the units of a group handed to each other, as one of them saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverStatus {
    /// Its number in the group.
    pub unit: UnitId,
    /// Assignments that began with the state already here.
    pub seamless: u64,
    /// Assignments that began with a pull.
    pub pulled: u64,
    /// … of which some packets that the old owner was sent never reached it.
    pub with_gap: u64,
    /// … of which the deadline passed: the flow went on with an older state, or none.
    pub gave_up: u64,
    /// Packets that the states with which assignments began do not know of: they never came to their unit, or it died
    /// with what it made of them.
    pub updates_lost: u64,
    /// Packets that were refused: repeated, or of an assignment that is over. They are among the unit's lost ones.
    pub stale: u64,
    /// States pushed ahead.
    pub pushes: u64,
    /// Pushes to units that had the state: only its fingerprint.
    pub unchanged: u64,
    /// Bytes of all pushes.
    pub pushed_bytes: u64,
    /// Bytes of all other messages.
    pub pulled_bytes: u64,
    /// Messages that found no room.
    pub unsent: u64,
    /// States that the output log was told.
    pub kept: u64,
    /// … and could not be told, because it was gone or did not read: they are told with the flow's next packet, or to the next log.
    pub unkept: u64,
    /// Packets that came without a header that could be read.
    pub headless: u64,
    /// Packets that wait for state now.
    pub held: usize,
    /// Bytes of the packets that came, to hold the others against.
    pub payload_bytes: u64,
}

/// The states of the chain, for the handover.
struct Carried<'a>(&'a mut Chain<Function>);

impl pando_protocol::States for Carried<'_> {
    fn snapshot(&self, key: &FlowKey) -> Snapshot {
        self.0.export(key)
    }

    fn install(&mut self, key: &FlowKey, snapshot: &[u8]) {
        self.0.import(key, snapshot, now().as_nanos() as u64);
    }

    fn forget(&mut self, key: &FlowKey) {
        self.0.hand_over(key);
    }
}

/// What makes a unit one of a group.
pub struct Membership {
    /// Its number.
    pub id: UnitId,
    /// The group's memory: who is alive, and what each reports.
    pub shared: Arc<Shared>,
    /// The way to the others.
    pub transport: Box<dyn Transport>,
    /// Times of the protocol.
    pub timing: Timing,
    /// Bits per second that it serves at most; without it, as many as it can.
    pub capacity_bits: Option<u64>,
    /// What it is assumed to serve where it is not limited, to say how long it has to work.
    pub nominal_bits: u64,
    /// Losses, repetitions and disorder that tests ask for.
    pub chaos: Option<Chaos>,
    /// The unit that is the group's output log.
    pub log: Option<UnitId>,
    /// Where states are instead of in the units: then nothing is handed over, and every packet may run at once.
    pub store: Option<Store>,
}

/// A unit of a group, with everything that it needs already open.
pub struct Member {
    unit: Unit,
    group: Membership,
    handover: Handover,
    service: Service,
    held: HashMap<FlowKey, Vec<Packet>>,
    questions: Questions,
    held_ns: u64,
    alive: u64,
    leaving: bool,
    left: bool,
    swept_ns: u64,
    /// All that had come by then has been taken. It is the handover's time: no packet that waits in the device is given up.
    taken_ns: u64,
    status: HandoverStatus,
    bytes: u64,
    packets: u64,
}

/// Frames that are taken from the ring at once.
const TAKEN: usize = 256;

/// So late may be what the handover does by the clock: mostly packets come before, and it is done when they are. A state that
/// is pushed after T/2 of silence is still there when the rule counts on it (`pull_ns` of bpf/assign.h).
const LATE_NS: u64 = 125_000;

/// A flow of which nothing was heard for so long is another unit's or over.
const IDLE_NS: u64 = 300_000_000_000;

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Member {
    /// A unit of a group; `unit` has one device.
    pub fn new(mut unit: Unit, group: Membership) -> Member {
        unit.chain.share_leases(group.id.into(), UNITS_MAX, |stage| Box::new(Numbers(group.shared.clone(), stage)));
        assert_eq!(unit.ports.len(), 1, "a unit of a group has one device");
        let alive = group.shared.alive() | 1 << group.id;
        Member {
            handover: Handover::new(group.id, alive, group.timing),
            service: Service::new(group.capacity_bits, group.nominal_bits),
            held: HashMap::new(),
            questions: Questions::default(),
            held_ns: 0,
            alive,
            leaving: false,
            left: false,
            swept_ns: monotonic_ns(),
            taken_ns: monotonic_ns(),
            status: HandoverStatus { unit: group.id, ..HandoverStatus::default() },
            bytes: 0,
            packets: 0,
            unit,
            group,
        }
    }

    /// Serves until it is told to stop. SIGTERM is first a request to leave: it ends when its states are elsewhere.
    pub fn run(&mut self) -> io::Result<()> {
        self.unit.counters.started = Some(now());
        loop {
            let before_ns = monotonic_ns();
            let (taken, packets) = self.take();
            let messages = self.listen();
            let talked = !messages.is_empty();
            // What was pushed ahead of a packet is there before it. All else is heard behind the packets that came before it.
            let (ahead, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|(_, message)| message.is_ahead());
            self.hear(ahead);
            packets.into_iter().for_each(|packet| self.admit(packet));
            if taken < TAKEN {
                self.taken_ns = before_ns;
            }
            self.hear(others);
            let now_ns = monotonic_ns();
            self.look_around(now_ns);
            self.handover.tick(self.taken_ns, &mut Carried(&mut self.unit.chain));
            self.effects();
            let served = self.serve()?;
            self.report();
            if self.left {
                return Ok(());
            }
            let worked = taken + served > 0 || talked;
            if self.rest(worked)? {
                return Ok(());
            }
            self.unit.print_events();
        }
    }

    /// Who is alive; what the unit that leaves still has; what nobody has heard of for long.
    fn look_around(&mut self, now_ns: u64) {
        let alive = self.group.shared.alive() | 1 << self.group.id;
        if alive != self.alive {
            let came = alive & !self.alive;
            self.alive = alive;
            self.handover.set_group(alive);
            if self.group.log.is_some_and(|log| came >> log & 1 == 1) {
                self.refill();
            }
        }
        if now_ns - self.swept_ns > IDLE_NS / 100 {
            self.swept_ns = now_ns;
            self.handover.sweep(now_ns.saturating_sub(IDLE_NS));
        }
        if self.leaving {
            let busy = self.handover.evacuate(alive, &Carried(&mut self.unit.chain));
            self.left = busy == 0 && self.service.is_empty() && self.held.is_empty();
        }
    }

    /// Takes what the device has: frames, and the packets that they are.
    fn take(&mut self) -> (usize, Vec<Packet>) {
        let mut slots = Vec::with_capacity(TAKEN);
        self.unit.ports[0].receive(TAKEN, &mut slots);
        self.unit.note_lost(false);
        let count = slots.len();
        let mut packets = Vec::with_capacity(count);
        for slot in &slots {
            let received = self.unit.ports[0].frame(slot);
            match Packet::read(received) {
                Some(packet) => packets.push(packet),
                None if received.frame.is_empty() => {} // counted below
                None => self.status.headless += 1,
            }
        }
        self.unit.counters.fates[Fate::TooLong as usize] += self.unit.ports[0].too_long();
        self.unit.ports[0].release(count);
        if let Some(chaos) = &mut self.group.chaos {
            packets = chaos.packets(packets);
        }
        self.packets += packets.len() as u64;
        self.bytes += packets.iter().map(|packet| packet.frame.len() as u64).sum::<u64>();
        (count, packets)
    }

    fn admit(&mut self, packet: Packet) {
        let Steered { header, key, .. } = packet.steered;
        let now_ns = monotonic_ns();
        if self.group.store.is_some() {
            return self.service.push(packet, now_ns);
        }
        match self.handover.arrive(now_ns, &key, &header, &mut Carried(&mut self.unit.chain)) {
            Admission::Run => self.service.push(packet, now_ns),
            Admission::Hold => {
                self.held_ns += self.service.cost_ns(&packet);
                self.held.entry(key).or_default().push(packet);
            }
            Admission::Stale => {}
        }
        self.effects();
    }

    /// What other units have said.
    fn listen(&mut self) -> Vec<(UnitId, Message)> {
        let mut came = Vec::new();
        self.group.transport.receive(&mut came);
        // What cannot be read is as good as lost; the protocol lives with loss.
        let read = |(from, bytes): (UnitId, Vec<u8>)| Message::decode_all(&bytes).unwrap_or_default().into_iter().map(move |m| (from, m));
        came.into_iter().flat_map(read).collect()
    }

    fn hear(&mut self, messages: Vec<(UnitId, Message)>) {
        for (from, message) in messages {
            self.handover.message(self.taken_ns, from, message, &mut Carried(&mut self.unit.chain));
            self.effects();
        }
    }

    fn effects(&mut self) {
        while !self.handover.effects.is_empty() {
            for effect in std::mem::take(&mut self.handover.effects) {
                match effect {
                    Effect::Send(to, message) => self.send(to, &message),
                    Effect::Release(key) => {
                        // By clock: what waits for an earlier assignment comes before what waits for a later one.
                        self.questions.answered(&key);
                        let mut packets = self.held.remove(&key).unwrap_or_default();
                        packets.sort_by_key(|p| p.steered.header.clock);
                        for packet in packets {
                            self.held_ns -= self.service.cost_ns(&packet);
                            self.admit(packet);
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, to: UnitId, message: &Message) {
        if self.questions.is_open(to, message, &*self.group.transport) {
            return;
        }
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let ahead = message.is_ahead();
        *(if ahead { &mut self.status.pushed_bytes } else { &mut self.status.pulled_bytes }) += bytes.len() as u64;
        let copies = self.group.chaos.as_mut().map_or(1, Chaos::copies);
        for _ in 0..copies {
            let transport = &mut self.group.transport;
            let sent = if ahead { transport.send_ahead(to, &bytes) } else { transport.send(to, &bytes) };
            if sent {
                self.questions.sent(to, message, &*self.group.transport);
            } else {
                self.status.unsent += 1;
                self.handover.unsent(to, message.key());
            }
        }
    }

    /// Processes what is due.
    fn serve(&mut self) -> io::Result<usize> {
        let mut served = 0;
        while served <= TAKEN {
            let packets = self.service.due(monotonic_ns(), BATCH_PACKETS);
            if packets.is_empty() {
                break;
            }
            served += packets.len();
            let mut rest = &packets[..];
            while !rest.is_empty() {
                let count = self.batch(rest)?;
                rest = &rest[count..];
            }
        }
        Ok(served)
    }

    fn batch(&mut self, packets: &[Packet]) -> io::Result<usize> {
        let arrivals: Vec<Arrival> = packets.iter().map(Packet::arrival).collect();
        let unit = &mut self.unit;
        if let Some(store) = &mut self.group.store {
            let mut keys: Vec<FlowKey> = packets.iter().map(|p| p.steered.key).collect();
            keys.sort_unstable();
            keys.dedup();
            store.fetch(&keys, &mut unit.chain)?;
        }
        let count = unit.chain.process(&arrivals);
        // Billed first, sent then, as in a unit on its own.
        unit.meter.commit(unit.chain.work());
        if let Some(store) = &mut self.group.store {
            let changed: Vec<FlowKey> = unit.chain.changed.iter().map(|&id| unit.chain.flows.flow(id).key).collect();
            store.put(&changed, &unit.chain)?;
        }
        let mut frames: Vec<Vec<u8>> = Vec::with_capacity(count);
        for (n, (fate, out)) in unit.chain.outputs(&arrivals).enumerate() {
            unit.counters.fates[fate as usize] += 1;
            let mut pieces = Vec::new();
            out.iter().for_each(|frame| whole_or_cut(frame, packets[n].segment, &mut pieces));
            frames.extend(pieces.iter().map(|bytes| packets[n].answer(bytes, &unit.chain.flows)));
        }
        self.keep(&packets[..count]);
        let unit = &mut self.unit;
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let sent = unit.ports[0].send(&frames);
        if sent < frames.len() {
            unit.counters.unsent += (frames.len() - sent) as u64;
            unit.note_lost(true);
        }
        let wall_ns = now().as_nanos() as u64;
        for packet in &packets[..count] {
            unit.counters.latencies.record(wall_ns.saturating_sub(packet.time_ns));
            if self.group.store.is_some() {
                continue;
            }
            self.handover.processed(self.taken_ns, &packet.steered.key, &mut Carried(&mut unit.chain));
        }
        self.effects();
        Ok(count)
    }

    fn report(&mut self) {
        self.unit.note_refused(self.handover.counts.stale);
        let now_ns = monotonic_ns();
        let waiting = (self.service.len() + self.held.values().map(Vec::len).sum::<usize>()) as u64;
        let finish_ns = self.service.finish_ns(now_ns) + self.held_ns;
        let (packets, bytes, left) = (self.packets, self.bytes, u64::from(self.left));
        self.group.shared.report(self.group.id, &Report { now_ns, finish_ns, waiting, packets, bytes, left });
    }

    fn refresh_status(&mut self) {
        let c = self.handover.counts;
        let held = self.held.values().map(Vec::len).sum();
        self.unit.handover = Some(HandoverStatus {
            seamless: c.seamless,
            pulled: c.pulled,
            with_gap: c.with_gap,
            gave_up: c.gave_up,
            updates_lost: c.updates_lost,
            stale: c.stale,
            pushes: c.pushes,
            unchanged: c.unchanged,
            held,
            payload_bytes: self.bytes,
            ..self.status
        });
    }

    /// Sleeps until something comes or is due; says whether somebody asked the unit to stop.
    fn rest(&mut self, worked: bool) -> io::Result<bool> {
        let now_ns = monotonic_ns();
        let tick_ns = self.handover.next_tick_ns().map(|due_ns| due_ns + LATE_NS);
        let due = [tick_ns, self.service.next_ns()].into_iter().flatten().min();
        let mut wait_ns = due.map_or(1_000_000_000, |due| due.saturating_sub(now_ns)).min(1_000_000_000);
        if worked || self.leaving || !self.group.transport.sleep() {
            wait_ns = wait_ns.min(if worked { 0 } else { 100_000 });
        }
        let port = self.unit.ports[0].fds().next().expect("AF_PACKET has one");
        let fds = [self.unit.signals.as_raw_fd(), self.unit.control.as_raw_fd(), self.group.transport.fd(), port];
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let wait = libc::timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
        // SAFETY: polled and wait live during the call.
        let result = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &wait, std::ptr::null()) };
        if result < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        self.group.transport.awake(polled[2].revents != 0);
        if polled[0].revents != 0 {
            let mut info = [0u8; 128];
            // SAFETY: a signalfd_siginfo has 128 bytes.
            unsafe { libc::read(fds[0], info.as_mut_ptr().cast(), info.len()) };
            if std::mem::replace(&mut self.leaving, true) {
                return Ok(true);
            }
        }
        if polled[1].revents != 0 {
            self.refresh_status();
            return self.unit.answer();
        }
        Ok(false)
    }

    /// What it says of itself.
    pub fn status(&mut self) -> crate::unit::Status {
        self.refresh_status();
        self.unit.status()
    }
}
