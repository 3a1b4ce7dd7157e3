//! Measures the recovery of a killed NAT unit with 1,000 flows at half of its load. It compares a
//! standby and an output log (SNF §6) with a checkpoint every 50 ms and replay. It also measures
//! the cost of the log without failures.
//!
//! Real processes run on a veth in a network namespace that ends with this process. Rounds are
//! interleaved, and a round with stolen processor time is repeated. Prints CSV: round, series,
//! value. Values are microseconds, or packets per second for a series that ends with "packets/s".
//! Needs root.

mod bed;
mod checkpoint;

use std::time::{Duration, Instant};

use pando_twins::steal::undisturbed;

use bed::{Bed, FLOWS, KEYS, Load};

const ROUNDS: u32 = 27;
const LOG: [&str; 2] = ["--durability", "log"];
const TCP: [&str; 6] = ["--durability", "log", "--log", "127.0.0.1:7171", "--log-key", KEYS];

fn main() {
    if std::env::args().nth(1).as_deref() == Some("peer") {
        return checkpoint::serve();
    }
    let mut bed = Bed::enter();
    let log = bed.log("127.0.0.1:7171");
    bed.start(&LOG);
    let rate = (0..3).map(|_| capacity(&mut bed)).max().expect("three") / 2;
    bed.stop();
    println!("round,series,value\n0,half load packets/s,{rate}");
    for number in 0..ROUNDS {
        for (series, value) in undisturbed(|| round(&mut bed, number, rate)) {
            println!("{number},{series},{value:.1}");
        }
    }
    bed.end(log);
}

/// The measured values: series and value.
type Samples = Vec<(String, f64)>;

/// Measures each series once.
fn round(bed: &mut Bed, number: u32, rate: u64) -> Samples {
    let mut samples = Samples::new();
    let costs: [(&str, &[&str]); 3] = [("none", &[]), ("log", &LOG), ("log over TCP", &TCP)];
    for (name, arguments) in costs {
        bed.start(arguments);
        cost(bed, name, &mut samples);
        bed.stop();
    }
    recover(bed, number, rate, &mut samples);
    // Kills are spread evenly over the interval between two checkpoints.
    let phase = checkpoint::EVERY * (2 * number + 1) / (2 * ROUNDS);
    for by_device in [false, true] {
        let (us, packets) = checkpoint::recover(bed, rate, phase, by_device);
        let way = if by_device { "replayed by its device" } else { "replayed from memory" };
        samples.extend([
            (format!("checkpoint + replay: {way}"), us),
            (format!("packets {way}"), packets as f64),
        ]);
    }
    samples
}

/// Packets in flight. The kernel queues 1000 for a processor (net.core.netdev_max_backlog). A
/// packet lost there would be waited for to the end, so this is less.
const UNDER_WAY: u64 = 512;

/// Returns the packets per second that are returned with `UNDER_WAY` packets in flight.
fn capacity(bed: &mut Bed) -> u64 {
    let mut load = Load::new();
    load.establish(&mut bed.near);
    let (began, before) = (Instant::now(), load.back);
    while began.elapsed() < Duration::from_millis(300) {
        if load.sent - load.back < UNDER_WAY {
            load.send(&mut bed.near, 64);
        }
        load.receive(&mut bed.near);
    }
    let rate = (load.back - before) as f64 / began.elapsed().as_secs_f64();
    load.settle(&mut bed.near);
    rate as u64
}

fn cost(bed: &mut Bed, name: &str, samples: &mut Samples) {
    samples.push((format!("{name} packets/s"), capacity(bed) as f64));
    let mut load = Load::new();
    load.establish(&mut bed.near);
    let mut took: Vec<Duration> = (0..2000)
        .map(|_| {
            let began = Instant::now();
            load.send(&mut bed.near, 1);
            load.settle(&mut bed.near);
            began.elapsed()
        })
        .collect();
    took.sort();
    for (quantile, at) in [("p50", 1000), ("p99", 1980)] {
        samples.push((
            format!("{name}: one packet there and back {quantile}"),
            took[at].as_nanos() as f64 / 1e3,
        ));
    }
}

/// Kills a unit with a log, and records its standby's figures.
fn recover(bed: &mut Bed, round: u32, rate: u64, samples: &mut Samples) {
    bed.start(&LOG);
    let mut load = Load::new();
    load.establish(&mut bed.near);
    assert_eq!(bed.status()["flows"], FLOWS, "the unit knows all flows");
    let unit = bed.status()["pid"].as_i64().expect("the unit has a pid");
    load.offer(&mut bed.near, rate, Duration::from_millis(50 + 7 * u64::from(round)));
    load.silence_ns = 0;
    bed.kill(unit);
    load.offer(&mut bed.near, rate, Duration::from_millis(200));
    load.settle(&mut bed.near);
    let said = bed.followed();
    assert_eq!((&said["takeovers"], &said["state_lost"]), (&1.into(), &0.into()), "{said}");
    let us = |name: &str| said[name].as_f64().expect("a figure") / 1e3;
    samples.push(("output log: state transferred".into(), us("transfer_ns")));
    samples.push(("output log: first packet".into(), us("first_packet_ns")));
    samples.push(("output log: longest silence on the wire".into(), load.silence_ns as f64 / 1e3));
    bed.stop();
}
