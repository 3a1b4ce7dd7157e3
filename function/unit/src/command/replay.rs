//! `pando fn replay`: plays a capture on a real device, at its own or another speed, in several
//! copies at once.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use pando_abi::BATCH_PACKETS;
use pando_net::packet::Port;
use pando_traffic::copies::Copies;
use pando_traffic::pcap::{self, Captured};
use pando_traffic::stamp::Stamp;
use serde::Serialize;

use super::failure::Failure;
use super::out::Format;

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "Example: pando fn replay capture.pcap --iface veth-in --speed 20 --copies 20\n\n\
If the generator lost packets or was late, the measurement proves nothing about the receiver; the \
last line reports that."
)]
pub struct Replay {
    /// The capture (pcap or pcapng)
    pcap: PathBuf,
    /// The device to send on
    #[arg(long)]
    iface: String,
    /// Speed relative to the capture; gaps shrink, so there are fewer flowlets
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Copies to play at once, each with its own addresses and thus its own flows
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    copies: u32,
    /// Milliseconds between the starts of two copies; by default, starts spread evenly over the
    /// capture's length
    #[arg(long)]
    stagger_ms: Option<f64>,
    /// Append number and time of sending to each packet, for `pando fn receive`
    #[arg(long)]
    stamp: bool,
    /// Print the progress every so many milliseconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    interval_ms: Option<u64>,
    /// How to print the result; json is one line each
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Sent packets, and the generator's own losses. A measurement with such losses proves nothing
/// about the receiver.
#[derive(Serialize, Default)]
struct Report {
    /// The last report.
    last: bool,
    capture: String,
    speed: f64,
    copies: u32,
    stagger_ms: f64,
    /// All packets to send; a packet without a flow counts once per copy.
    planned: usize,
    packets: usize,
    bytes: u64,
    sent: usize,
    not_taken_by_the_device: usize,
    /// Packets that left more than a millisecond after their due time.
    late: usize,
    latest_us: u64,
    /// When the first packet was sent, since the Unix epoch.
    begin_ns: u64,
    seconds: f64,
}

/// The due time of one packet of one copy.
struct Due {
    at_ns: u64,
    packet: u32,
    copy: u32,
}

/// Packets due within this time are sent together.
const TOGETHER_NS: u64 = 20_000;
const LATE_NS: u64 = 1_000_000;

impl Replay {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if !self.speed.is_finite() || self.speed <= 0.0 {
            return Err(Failure::Invalid("--speed is a number above 0".into()));
        }
        if self.stagger_ms.is_some_and(|ms| !ms.is_finite() || ms < 0.0) {
            return Err(Failure::Invalid("--stagger-ms is a number from 0".into()));
        }
        let packets = pcap::read(&self.pcap)?;
        let copies = Copies::new(self.copies, packets.iter().map(|p| p.frame.as_slice()))
            .map_err(Failure::Invalid)?;
        let port = Port::open(&self.iface, BATCH_PACKETS)
            .map_err(|e| Failure::of_device(&self.iface, &e))?;
        let (stagger_ns, plan) = self.plan(&packets);
        let mut report = Report {
            capture: self.pcap.display().to_string(),
            speed: self.speed,
            copies: self.copies,
            stagger_ms: stagger_ns / 1e6,
            planned: plan.len(),
            ..Report::default()
        };
        self.play(&packets, &copies, &plan, &port, &mut report);
        report.print(self.output);
        Ok(ExitCode::SUCCESS)
    }

    /// Returns every packet of every copy in order of time, in nanoseconds from the first.
    fn plan(&self, packets: &[Captured]) -> (f64, Vec<Due>) {
        let first_ns = packets.iter().map(|p| p.time_ns).min().unwrap_or(0);
        let last_ns = packets.iter().map(|p| p.time_ns).max().unwrap_or(0);
        let length_ns = (last_ns - first_ns) as f64 / self.speed;
        let stagger_ns = self.stagger_ms.map_or(length_ns / f64::from(self.copies), |ms| ms * 1e6);
        let mut plan: Vec<Due> = (0..self.copies)
            .flat_map(|copy| {
                packets.iter().enumerate().map(move |(n, p)| {
                    let at_ns =
                        (p.time_ns - first_ns) as f64 / self.speed + f64::from(copy) * stagger_ns;
                    Due { at_ns: at_ns as u64, packet: n as u32, copy }
                })
            })
            .collect();
        plan.sort_by_key(|d| d.at_ns);
        (stagger_ns, plan)
    }

    fn play(
        &self,
        packets: &[Captured],
        copies: &Copies,
        plan: &[Due],
        port: &Port,
        report: &mut Report,
    ) {
        // SAFETY: no memory is involved. Without it, a sleep ends up to 50 µs late.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let wall =
            |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let start = Instant::now();
        report.begin_ns = wall(SystemTime::now());
        let mut frames: Vec<Vec<u8>> = vec![Vec::new(); BATCH_PACKETS];
        let mut at = 0;
        let mut next = self.interval_ms.map(Duration::from_millis);
        while at < plan.len() {
            if let Some(due) = next.filter(|&due| start.elapsed() >= due) {
                report.pause(start.elapsed(), self.output);
                next = self.interval_ms.map(|ms| due + Duration::from_millis(ms));
            }
            let due = Duration::from_nanos(plan[at].at_ns);
            if let Some(wait) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(wait);
            }
            let now_ns = start.elapsed().as_nanos() as u64;
            let sent_ns = wall(SystemTime::now());
            let mut filled = 0;
            let batch = plan[at..]
                .iter()
                .take(BATCH_PACKETS)
                .take_while(|d| d.at_ns <= now_ns + TOGETHER_NS);
            for due in batch {
                at += 1;
                let frame = &mut frames[filled];
                frame.clear();
                frame.extend(&packets[due.packet as usize].frame);
                if !copies.rewrite(due.copy as usize, frame) {
                    continue; // a packet without a flow is played once
                }
                if self.stamp {
                    Stamp { sequence: report.packets as u64, sent_ns }.append(frame);
                }
                let behind_ns = now_ns.saturating_sub(due.at_ns);
                report.late += usize::from(behind_ns > LATE_NS);
                report.latest_us = report.latest_us.max(behind_ns / 1000);
                report.packets += 1;
                report.bytes += frame.len() as u64;
                filled += 1;
            }
            let batch: Vec<&[u8]> = frames[..filled].iter().map(Vec::as_slice).collect();
            report.sent += port.send(&batch);
        }
        report.last = true;
        report.stand(start.elapsed());
    }
}

impl Report {
    fn stand(&mut self, at: Duration) {
        self.not_taken_by_the_device = self.packets - self.sent;
        self.seconds = at.as_secs_f64();
    }

    /// Prints the progress.
    fn pause(&mut self, at: Duration, format: Format) {
        self.stand(at);
        match format {
            Format::Json => self.print(format),
            Format::Text => tell!(
                "{:8.1} s  {} packets, {} bytes, {} late",
                self.seconds,
                self.packets,
                self.bytes,
                self.late
            ),
        }
    }

    fn print(&self, format: Format) {
        if format == Format::Json {
            tell!("{}", serde_json::to_string(self).expect("a report is JSON"));
            return;
        }
        let rate = self.sent as f64 / self.seconds.max(1e-9);
        let copies = if self.copies > 1 {
            format!(", {} copies {:.1} ms apart", self.copies, self.stagger_ms)
        } else {
            String::new()
        };
        tell!(
            "{} packets sent in {:.3} s at {} × speed{copies}: {rate:.0} packets/s, {:.1} Mbit/s",
            self.sent,
            self.seconds,
            self.speed,
            self.bytes as f64 * 8e-6 / self.seconds.max(1e-9)
        );
        match (self.not_taken_by_the_device, self.late) {
            (0, 0) => tell!(
                "the generator lost none, and none was later than 1 ms (the latest {} µs)",
                self.latest_us
            ),
            (0, late) => tell!(
                "the generator lost none, but {late} left later than 1 ms (the latest {} µs): with \
                 less --speed or --copies all are on time",
                self.latest_us
            ),
            (lost, _) => tell!(
                "the generator itself lost {lost}: the device did not take them. They are longer \
                 than its MTU (`ip link`), or too fast: less --speed or --copies"
            ),
        }
    }
}
