//! `pando fn replay`: a capture on a real device, as fast as it was or a multiple of that.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use pando_unit::abi::BATCH_PACKETS;
use pando_unit::packet::Port;
use pando_unit::pcap::{self, Captured};
use serde::Serialize;

use super::{Failure, Format};

/// Arguments.
#[derive(Args)]
pub struct Replay {
    /// The capture (pcap or pcapng)
    pcap: PathBuf,
    /// The device to send on
    #[arg(long)]
    iface: String,
    /// How much faster than it was captured; gaps shrink, so there are fewer flowlets
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What was sent, and what the generator itself lost: a measurement with losses here says nothing about the receiver.
#[derive(Serialize, Default)]
struct Report {
    capture: String,
    speed: f64,
    packets: usize,
    sent: usize,
    not_taken_by_the_device: usize,
    /// Packets that left more than a millisecond after they were due.
    late: usize,
    seconds: f64,
}

/// Packets that are due within this are sent together.
const TOGETHER: Duration = Duration::from_micros(50);

impl Replay {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if !self.speed.is_finite() || self.speed <= 0.0 {
            return Err(Failure::Invalid("--speed is a number above 0".into()));
        }
        let mut packets = pcap::read(&self.pcap)?;
        packets.sort_by_key(|p| p.time_ns);
        let port = Port::open(&self.iface, BATCH_PACKETS).map_err(|e| Failure::Invalid(format!("{}: {e}", self.iface)))?;
        let mut report =
            Report { capture: self.pcap.display().to_string(), speed: self.speed, packets: packets.len(), ..Report::default() };
        self.play(&packets, &port, &mut report);
        if self.output == Format::Json {
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is JSON"));
        } else {
            let Report { packets, sent, late, seconds, .. } = report;
            println!("{packets} packets in {seconds:.3} s at {} × speed: {sent} sent, {late} later than 1 ms", self.speed);
            if sent < packets {
                println!("the generator itself lost {}: the device did not take them (too long for its MTU, or too fast)", packets - sent);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn play(&self, packets: &[Captured], port: &Port, report: &mut Report) {
        let start = Instant::now();
        let first_ns = packets.first().map_or(0, |p| p.time_ns);
        let due = |p: &Captured| Duration::from_secs_f64((p.time_ns - first_ns) as f64 / 1e9 / self.speed);
        let mut at = 0;
        while at < packets.len() {
            let now = start.elapsed();
            if let Some(wait) = due(&packets[at]).checked_sub(now) {
                std::thread::sleep(wait);
            }
            let now = start.elapsed();
            let batch: Vec<&Captured> = packets[at..].iter().take(BATCH_PACKETS).take_while(|p| due(p) <= now + TOGETHER).collect();
            let frames: Vec<&[u8]> = batch.iter().map(|p| p.frame.as_slice()).collect();
            report.late += batch.iter().filter(|p| due(p) + Duration::from_millis(1) < now).count();
            report.sent += port.send(&frames);
            at += frames.len();
        }
        report.not_taken_by_the_device = packets.len() - report.sent;
        report.seconds = start.elapsed().as_secs_f64();
    }
}
