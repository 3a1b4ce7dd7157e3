//! Measures a decision in user space in nanoseconds. It compares the rule alone with a steering
//! process queried over a socket. Each figure is the median of short batches, because a long batch
//! would include other work of the machine.

use pando_assign::{Config, Flow, Units};
use std::hint::black_box;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

const BATCHES: usize = 101;
const DECISIONS: u32 = 2_000;
const QUESTIONS: u32 = 20;

/// Every packet begins a flowlet and all units stay idle, as in the benchmark of the kernel
/// program.
fn table() -> (Config, Units) {
    let config = Config { gap_ns: 0, pull_ns: 0, stick_ns: 1 << 40, ..Config::of(u64::MAX) };
    (config, Units { accepting: u64::MAX, ..Units::default() })
}

fn alone() -> f64 {
    let (config, mut units) = table();
    let mut flow = Flow::default();
    let begun = Instant::now();
    for now in 1..=DECISIONS {
        black_box(units.assign(&config, black_box(&mut flow), u64::from(now), 64));
    }
    begun.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

fn median(mut batches: Vec<f64>) -> f64 {
    batches.sort_by(f64::total_cmp);
    batches[batches.len() / 2]
}

/// Asks for each decision over a socket: the question is a flow's key, the answer its unit.
fn asked() -> std::io::Result<f64> {
    let (near, far) = UnixDatagram::pair()?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (config, mut units) = table();
        let (mut flow, mut key) = (Flow::default(), [0; 40]);
        for now in 1..=u64::from(QUESTIONS) * BATCHES as u64 {
            far.recv(&mut key)?;
            units.assign(&config, &mut flow, now, 64);
            far.send(&flow.unit.to_le_bytes())?;
        }
        Ok(())
    });
    let mut unit = [0; 2];
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let begun = Instant::now();
        for _ in 0..QUESTIONS {
            near.send(&[7; 40])?;
            near.recv(&mut unit)?;
        }
        batches.push(begun.elapsed().as_nanos() as f64 / f64::from(QUESTIONS));
    }
    server.join().expect("the server does not panic")?;
    Ok(median(batches))
}

fn main() -> std::io::Result<()> {
    println!("{:.1} {:.1}", median((0..BATCHES).map(|_| alone()).collect()), asked()?);
    Ok(())
}
