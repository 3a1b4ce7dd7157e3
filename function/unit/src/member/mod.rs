//! A unit of a group. Packets arrive with steering's header. The handover of states admits them,
//! and the virtual clock orders them. They leave with a header that names their exit (SNF §3, §5).
//!
//! The unit has one device. Its chain, bill and control socket are those of [`crate::unit::Unit`].

mod keep;
mod pace;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pando_abi::BATCH_PACKETS;
use pando_chain::{Arrival, Chain, Fate};
use pando_flow::FlowKey;
use pando_group::chaos::Chaos;
use pando_group::questions::Questions;
use pando_group::service::{Packet, Service};
use pando_group::shared::{Numbers, Report, Shared};
use pando_group::store::Store;
use pando_group::transport::Transport;
use pando_handover::message::Snapshot;
use pando_handover::{Admission, Effect, Handover, Message, Steered, Timing, UNITS_MAX, UnitId};
use pando_net::clock::{Moment, now};
use pando_wasm::Function;

use crate::status::{HandoverStatus, Status};
use crate::unit::{Unit, whole_or_cut};
use pace::{Pace, monotonic_ns};

/// The states of the chain, for the handover.
struct Carried<'a>(&'a mut Chain<Function>);

impl pando_handover::States for Carried<'_> {
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

/// Everything that a unit of a group has beyond a plain unit.
pub struct Membership {
    /// The unit's number.
    pub id: UnitId,
    /// The group's memory: live units, and the report of each.
    pub shared: Arc<Shared>,
    /// The connection to the other units.
    pub transport: Box<dyn Transport>,
    /// Times of the protocol.
    pub timing: Timing,
    /// The most bits per second that the unit serves; without it, there is no limit.
    pub capacity_bits: Option<u64>,
    /// The assumed bits per second of a unit without a limit. They turn waiting bytes into time.
    pub nominal_bits: u64,
    /// Losses, repetitions and disorder for tests.
    pub chaos: Option<Chaos>,
    /// The unit that is the group's output log.
    pub log: Option<UnitId>,
    /// A store that holds the states instead of the units. With it, no state is handed over, and
    /// every packet may run at once.
    pub store: Option<Store>,
}

/// A unit of a group, with everything that it needs already open.
pub struct Member {
    unit: Unit,
    group: Membership,
    handover: Handover,
    service: Service,
    held: HashMap<FlowKey, Vec<Packet>>,
    held_packets: usize,
    questions: Questions,
    held_ns: u64,
    alive: u64,
    leaving: bool,
    left: bool,
    swept_ns: u64,
    /// All packets that arrived before this time are taken. The handover uses it as its time, so it
    /// never gives up on a packet that still waits in the device.
    taken_ns: u64,
    status: HandoverStatus,
    bytes: u64,
    packets: u64,
    pace: Pace,
}

/// The most frames taken from the ring at once.
const TAKEN: usize = 256;

/// The most packets of one flow that wait for its state, and those of all flows. Beyond that, a
/// flow that waits already gets no further one.
const HELD_MAX: (usize, usize) = (1024, 16_384);

/// The handover's timers may fire this late. Mostly a packet comes first, and the timers run with
/// it. A state pushed after T/2 of silence still arrives before the rule counts on it (`pull_ns` of
/// bpf/assign.h).
const LATE_NS: u64 = 125_000;

/// A flow that is silent for this long has ended or moved to another unit.
const IDLE_NS: u64 = 300_000_000_000;

impl Member {
    /// Returns a unit of a group; `unit` has one device.
    pub fn new(mut unit: Unit, group: Membership) -> Member {
        unit.chain.share_leases(group.id.into(), UNITS_MAX, |stage| {
            Box::new(Numbers(group.shared.clone(), stage))
        });
        assert_eq!(unit.ports.len(), 1, "a unit of a group has one device");
        let alive = group.shared.alive() | 1 << group.id;
        Member {
            handover: Handover::new(group.id, alive, group.timing),
            service: Service::new(group.capacity_bits, group.nominal_bits),
            held: HashMap::new(),
            held_packets: 0,
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
            pace: Pace::default(),
            unit,
            group,
        }
    }

    /// Serves until it is stopped. The first SIGTERM is a request to leave: the unit ends when its
    /// states are elsewhere.
    pub fn run(&mut self) -> io::Result<()> {
        self.unit.counters.started = Some(now());
        loop {
            let before_ns = monotonic_ns();
            let (taken, packets) = self.take();
            let messages = self.listen();
            let talked = !messages.is_empty();
            // Apply pushed states before the packets that may need them. Apply other messages after
            // the packets that came before them.
            let (ahead, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|(_, message)| message.is_ahead());
            self.hear(ahead);
            packets.into_iter().for_each(|packet| self.admit_or_drop(packet));
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

    /// Follows changes of the group, forgets silent flows, and hands over the states of a leaving
    /// unit.
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

    /// Takes frames from the device; returns their number and the packets in them.
    fn take(&mut self) -> (usize, Vec<Packet>) {
        let mut slots = Vec::with_capacity(TAKEN);
        self.unit.ports[0].receive(TAKEN, &mut slots);
        self.unit.note_lost(false);
        let count = slots.len();
        let mut packets = Vec::with_capacity(count);
        let moment = Moment::read();
        for (n, slot) in slots.iter().enumerate() {
            let mut received = self.unit.ports[0].frame(slot);
            received.time_ns = moment.of_stamp(received.time_ns);
            if n == 0 {
                self.pace.took(count == TAKEN, moment.age_of(received.time_ns));
            }
            match Packet::read(received) {
                Some(packet) => packets.push(packet),
                None if received.frame.is_empty() => {} // counted below
                None => self.status.headless += 1,
            }
        }
        self.unit.counters.fates[Fate::TooLong as usize] += self.unit.ports[0].too_long();
        if count == 0 {
            self.pace.took(false, 0);
        }
        self.unit.ports[0].release(count);
        if let Some(chaos) = &mut self.group.chaos {
            packets = chaos.packets(packets);
        }
        self.packets += packets.len() as u64;
        self.bytes += packets.iter().map(|packet| packet.frame.len() as u64).sum::<u64>();
        (count, packets)
    }

    /// Drops a packet without room before the handover has it. It then counts as lost on its way.
    fn admit_or_drop(&mut self, packet: Packet) {
        let held = self.held.get(&packet.steered.key).map_or(0, Vec::len);
        let waits = held >= HELD_MAX.0 || held > 0 && self.held_packets >= HELD_MAX.1;
        if waits || self.service.is_full() {
            self.status.overflow += 1;
        } else {
            self.admit(packet);
        }
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
                self.held_packets += 1;
                self.held.entry(key).or_default().push(packet);
            }
            Admission::Stale => {}
        }
        self.effects();
    }

    /// Receives the messages of other units.
    fn listen(&mut self) -> Vec<(UnitId, Message)> {
        let mut came = Vec::new();
        self.group.transport.receive(&mut came);
        // Unreadable messages count as lost; the protocol copes with loss.
        let read = |(from, bytes): (UnitId, Vec<u8>)| {
            Message::decode_all(&bytes).unwrap_or_default().into_iter().map(move |m| (from, m))
        };
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
                        // By clock: packets of an earlier assignment precede those of a later one.
                        self.questions.answered(&key);
                        let mut packets = self.held.remove(&key).unwrap_or_default();
                        self.held_packets -= packets.len();
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
        *(if ahead { &mut self.status.pushed_bytes } else { &mut self.status.pulled_bytes }) +=
            bytes.len() as u64;
        let copies = self.group.chaos.as_mut().map_or(1, Chaos::copies);
        for _ in 0..copies {
            let transport = &mut self.group.transport;
            let sent =
                if ahead { transport.send_ahead(to, &bytes) } else { transport.send(to, &bytes) };
            if sent {
                self.questions.sent(to, message, &*self.group.transport);
            } else {
                self.status.unsent += 1;
                self.handover.unsent(to, message.key());
            }
        }
    }

    /// Processes the packets that are due.
    fn serve(&mut self) -> io::Result<usize> {
        let mut served = 0;
        while served <= TAKEN {
            let packets = self.service.due(monotonic_ns(), BATCH_PACKETS);
            if packets.is_empty() {
                break;
            }
            served += packets.len();
            self.pace.begin();
            let mut rest = &packets[..];
            while !rest.is_empty() {
                let count = self.batch(rest)?;
                rest = &rest[count..];
            }
            self.pace.end(packets.len());
            self.publish(); // a slow function's round is longer than the group's tick
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
        // Bill first, then send, as in a unit without a group.
        unit.meter.commit(unit.chain.work());
        if let Some(store) = &mut self.group.store {
            let changed: Vec<FlowKey> =
                unit.chain.changed.iter().map(|&id| unit.chain.flows.flow(id).key).collect();
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
        let now_ns = now().as_nanos() as u64;
        for packet in &packets[..count] {
            unit.counters.latencies.record(now_ns.saturating_sub(packet.time_ns));
            if self.group.store.is_some() {
                continue;
            }
            self.handover.processed(
                self.taken_ns,
                &packet.steered.key,
                &mut Carried(&mut unit.chain),
            );
        }
        self.effects();
        Ok(count)
    }

    fn report(&mut self) {
        self.unit.note_refused(self.handover.counts.stale + self.status.overflow);
        self.publish();
    }

    /// Publishes the unit's load for the group.
    fn publish(&self) {
        let now_ns = monotonic_ns();
        let waiting = (self.service.len() + self.held_packets) as u64;
        let mut finish_ns = self.service.finish_ns(now_ns) + self.held_ns;
        let mut worked_ns = 0;
        if self.group.capacity_bits.is_none() {
            finish_ns = finish_ns.max(now_ns + self.pace.backlog_ns(waiting));
            worked_ns = pace::worked_ns();
        }
        let (packets, bytes, left) = (self.packets, self.bytes, u64::from(self.left));
        let report = Report { now_ns, finish_ns, waiting, packets, bytes, left, worked_ns };
        self.group.shared.report(self.group.id, &report);
    }

    fn refresh_status(&mut self) {
        let c = self.handover.counts;
        let held = self.held_packets;
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

    /// Sleeps until an event or a due time. Returns whether the unit is to stop.
    fn rest(&mut self, worked: bool) -> io::Result<bool> {
        let now_ns = monotonic_ns();
        let tick_ns = self.handover.next_tick_ns().map(|due_ns| due_ns + LATE_NS);
        let due = [tick_ns, self.service.next_ns()].into_iter().flatten().min();
        let mut wait_ns =
            due.map_or(1_000_000_000, |due| due.saturating_sub(now_ns)).min(1_000_000_000);
        if worked || self.leaving || !self.group.transport.sleep() {
            wait_ns = wait_ns.min(if worked { 0 } else { 100_000 });
        }
        let port = self.unit.ports[0].fds().next().expect("AF_PACKET has one");
        let fds = [
            self.unit.signals.as_raw_fd(),
            self.unit.control.as_raw_fd(),
            self.group.transport.fd(),
            port,
        ];
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let wait = libc::timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as i64,
        };
        // SAFETY: polled and wait live during the call.
        let result = unsafe {
            libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &wait, std::ptr::null())
        };
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

    /// Returns the unit's status.
    pub fn status(&mut self) -> Status {
        self.refresh_status();
        self.unit.status()
    }
}
