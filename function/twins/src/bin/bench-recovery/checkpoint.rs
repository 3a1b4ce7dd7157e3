//! The peer: FTMB's scheme. A NAT unit of the same parts copies its whole state out every 50 ms and
//! logs its inputs. A standby as warm as Pando's gets the last checkpoint and all packets since.
//! FTMB's cost of stopping is left out: the packets after the checkpoint are known and in order,
//! and no others arrive during the recovery.

use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pando_abi::BATCH_PACKETS;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_net::packet::Port;
use pando_outlog::link::{Shared, Transport};
use pando_outlog::orders::{self, Orders};
use pando_outlog::record::{self, Parts, Reader};
use pando_outlog::vitals::{self, Vitals};
use pando_outlog::{answer, standby};
use pando_wasm::{Function, Limits, Runtime};

use super::bed::{Bed, FLOWS, Load, RING_FRAMES};

/// The interval between two checkpoints, as in the paper's FTMB.
pub const EVERY: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages: some flows of a checkpoint; its end, with the number of packets seen; packets to
/// replay; their end, with the number that arrive by the device; and the answer.
const FLOWS_OF: u8 = 1;
const END: u8 = 2;
const PACKETS: u8 = 3;
const GO: u8 = 4;
const DONE: u8 = 5;

fn nat() -> Chain<Function> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm");
    let function = Runtime::new(Limits::default(), 2)
        .load(path.as_ref(), b"address=203.0.113.7\n")
        .expect("load the NAT");
    let mut chain =
        Chain::new(vec![Stage::new(function, Leases::new(1024..=65_535))], Policy::default());
    chain.flows.warm(standby::WARM_FLOWS);
    chain
}

fn number(kind: u8, of: u64) -> Vec<u8> {
    [&[kind][..], &of.to_le_bytes()].concat()
}

/// Runs the child: the unit until it is killed, or its standby until it has recovered.
pub fn serve() {
    let orders = Orders::inherited();
    let mut chain = nat();
    let mut fds = orders.receive(true).expect("what to open").fds.into_iter();
    let mut next = || fds.next().expect("a descriptor");
    let mut ports = ["far", "replay"]
        .map(|device| Port::adopt(next(), device, RING_FRAMES).expect("map a ring"));
    let vitals = Vitals::map(next().as_fd()).expect("map the page");
    let memory = next();
    let mut link = Shared::open(&memory, next(), true).expect("map the link");
    orders.send("ready", &[]).expect("somebody waits");
    match orders.receive(true).map(|o| o.text).as_deref() {
        Ok("serve") => primary(&mut chain, &mut ports[0], &vitals, &mut link),
        Ok("recover") => recovered(&mut chain, &mut ports[1], &mut link),
        _ => {}
    }
}

fn primary(chain: &mut Chain<Function>, port: &mut Port, vitals: &Vitals, link: &mut Shared) {
    let mut next = Instant::now();
    loop {
        let count = batch(chain, port, true);
        vitals.set_position(0, port.position());
        if Instant::now() >= next {
            checkpoint(chain, port.position(), link);
            next += EVERY;
        }
        if count == 0 {
            orders::poll(&[port.as_raw_fd()], 1).expect("wait for packets");
        }
    }
}

fn batch(chain: &mut Chain<Function>, port: &mut Port, sends: bool) -> usize {
    let mut slots = Vec::with_capacity(BATCH_PACKETS);
    port.receive(BATCH_PACKETS, &mut slots);
    let arrivals: Vec<Arrival> = slots
        .iter()
        .map(|s| port.frame(s))
        .map(|r| Arrival { frame: r.frame, time_ns: r.time_ns, outer: false, steered: None })
        .collect();
    let mut done = 0;
    while done < arrivals.len() {
        let count = chain.process(&arrivals[done..]);
        if sends {
            let frames: Vec<&[u8]> =
                chain.outputs(&arrivals[done..]).flat_map(|(_, out)| out.iter()).collect();
            port.send(&frames);
        }
        done += count;
    }
    port.release(done);
    done
}

fn checkpoint(chain: &Chain<Function>, position: u64, link: &mut Shared) {
    let ids: Vec<_> = chain.flows.ids().collect();
    for some in ids.chunks(64) {
        let mut message = vec![FLOWS_OF];
        message.extend((some.len() as u32).to_le_bytes());
        some.iter().for_each(|&id| chain.put_flow(&mut message, id, chain.flows.flow(id).valid));
        link.send(&message).expect("the store reads");
    }
    link.send(&number(END, position)).expect("the store reads");
}

fn recovered(chain: &mut Chain<Function>, replay: &mut Port, link: &mut Shared) {
    let began = Instant::now();
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let deadline = began + PATIENCE;
    let mut message = Vec::new();
    let by_device = loop {
        message.clear();
        link.receive_by(&mut message, deadline).expect("a recovery");
        let mut reader = Reader(&message[1..]);
        match message[0] {
            FLOWS_OF => drop(answer::restore(chain, reader, now_ns).expect("a checkpoint")),
            PACKETS => {
                let mut packets = Vec::new();
                while let Ok(frame) = reader.packet() {
                    packets.push(Arrival { frame, time_ns: now_ns, outer: false, steered: None });
                }
                let mut done = 0;
                while done < packets.len() {
                    done += chain.process(&packets[done..]);
                }
            }
            GO => break reader.u64().expect("a count"),
            _ => {}
        }
    };
    let mut replayed = 0;
    while replayed < by_device {
        replayed += batch(chain, replay, false) as u64;
    }
    let took_ns = began.elapsed().as_nanos() as u64;
    link.send(&[number(DONE, took_ns), (chain.flows.len() as u64).to_le_bytes().to_vec()].concat())
        .expect("somebody waits");
    link.flush().expect("somebody waits");
    // Wait to be killed.
    let _ = link.receive_by(&mut Vec::new(), deadline);
}

/// A child, and the parent's ends of its lines.
struct Peer {
    child: Child,
    orders: Orders,
    link: Shared,
}

impl Peer {
    fn start(ports: &[&Port; 2], page: &impl AsFd) -> Peer {
        let (ours, theirs) = Orders::pair().expect("a socket pair");
        let own = std::env::current_exe().expect("this program has a path");
        let child = Command::new(own)
            .arg("peer")
            .stdin(Stdio::from(theirs.into_fd()))
            .spawn()
            .expect("start a peer");
        let (memory, unit, store) = Shared::make().expect("shared memory");
        let shares = ports.map(|p| p.share().expect("share a device"));
        ours.send(
            "open",
            &[shares[0].as_fd(), shares[1].as_fd(), page.as_fd(), memory.as_fd(), unit.as_fd()],
        )
        .expect("the peer lives");
        let link = Shared::open(&memory, store, false).expect("map the link");
        assert_eq!(ours.receive(true).expect("the peer is ready").text, "ready");
        Peer { child, orders: ours, link }
    }

    fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last complete checkpoint, and the one being received.
#[derive(Default)]
struct Store {
    whole: Vec<Vec<u8>>,
    position: u64,
    coming: Vec<Vec<u8>>,
    count: u64,
}

impl Store {
    fn read(&mut self, link: &mut Shared) {
        let mut message = Vec::new();
        while link.receive(&mut message).expect("the unit's memory") {
            if message[0] == END {
                self.position = Reader(&message[1..]).u64().expect("a position");
                self.whole = std::mem::take(&mut self.coming);
                self.count += 1;
            } else {
                self.coming.push(std::mem::take(&mut message));
            }
            message.clear();
        }
    }
}

/// Kills the unit once, `phase` after a checkpoint. Returns the microseconds until the standby had
/// the dead unit's state, and the number of replayed packets.
pub fn recover(bed: &mut Bed, rate: u64, phase: Duration, by_device: bool) -> (f64, u64) {
    let open = |device| Port::open(device, RING_FRAMES).unwrap_or_else(|e| panic!("{device}: {e}"));
    let (far, replay, again) = (open("far"), open("replay"), open("again"));
    let page = vitals::memory().expect("shared memory");
    let vitals = Vitals::map(page.as_fd()).expect("shared memory");
    let mut unit = Peer::start(&[&far, &replay], &page);
    let mut standby = Peer::start(&[&far, &replay], &page);
    unit.orders.send("serve", &[]).expect("the unit lives");
    let mut load = Load::new();
    load.establish(&mut bed.near);
    let (began, first) = (Instant::now(), load.sent);
    let mut store = Store::default();
    let mut last: Option<(u64, Instant)> = None;
    // Run two checkpoints under load, then the phase.
    loop {
        load.keep(&mut bed.near, rate, began, first);
        store.read(&mut unit.link);
        if began.elapsed() > 2 * EVERY && last.is_none_or(|(count, _)| count != store.count) {
            last = Some((store.count, Instant::now()));
        }
        if last.is_some_and(|(_, at)| at.elapsed() >= phase) && began.elapsed() > 3 * EVERY {
            break;
        }
    }
    unit.child.kill().expect("the unit lives");
    unit.child.wait().expect("it was killed");
    store.read(&mut unit.link);
    let packets = vitals.positions()[0].saturating_sub(store.position);
    standby.orders.send("recover", &[]).expect("the standby lives");
    hand_over(&mut standby.link, &store);
    let frames: Vec<&[u8]> = (0..packets)
        .map(|n| load.frames[(store.position + n) as usize % FLOWS].as_slice())
        .collect();
    replay_to(&mut standby.link, &again, &frames, by_device);
    let mut answer = Vec::new();
    standby.link.receive_by(&mut answer, Instant::now() + PATIENCE).expect("the standby answers");
    let mut reader = Reader(&answer);
    assert_eq!(reader.u8(), Ok(DONE));
    let (took_ns, flows) = (reader.u64().expect("a time"), reader.u64().expect("a count"));
    assert_eq!(flows as usize, FLOWS, "the standby knows all flows");
    standby.end();
    (took_ns as f64 / 1e3, packets)
}

fn hand_over(link: &mut Shared, store: &Store) {
    for message in &store.whole {
        link.send(message).expect("the standby reads");
    }
    link.flush().expect("the standby lives");
}

fn replay_to(link: &mut Shared, again: &Port, frames: &[&[u8]], by_device: bool) {
    if !by_device {
        for some in frames.chunks(BATCH_PACKETS) {
            let mut message = vec![PACKETS];
            some.iter().for_each(|frame| record::put_packet(&mut message, frame));
            link.send(&message).expect("the standby reads");
        }
    }
    link.send(&number(GO, if by_device { frames.len() as u64 } else { 0 }))
        .expect("the standby reads");
    link.flush().expect("the standby lives");
    if by_device {
        for some in frames.chunks(2 * BATCH_PACKETS) {
            assert_eq!(again.send(some), some.len(), "the veth takes all");
        }
    }
}
