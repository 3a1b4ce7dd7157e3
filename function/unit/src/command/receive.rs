//! `pando fn receive`: counts the packets of `pando fn replay --stamp`, their latencies and the
//! losses.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use pando_abi::BATCH_PACKETS;
use pando_meter::latency::Latencies;
use pando_net::packet::{self, Port};
use pando_traffic::pcap;
use pando_traffic::stamp::{Arrivals, Loss, Stamp};
use pando_unit::unit;
use serde::Serialize;

use super::failure::Failure;
use super::out::{self, Format};

/// Arguments.
#[derive(Args)]
#[command(after_help = "Example: pando fn receive --iface veth-out --write out.pcap")]
pub struct Receive {
    /// The device to receive on
    #[arg(long)]
    iface: String,
    /// Milliseconds between two lines
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    interval_ms: u64,
    /// End after this many seconds; without it, when interrupted
    #[arg(long)]
    seconds: Option<f64>,
    /// Write the received packets to this file, without stamps
    #[arg(long)]
    write: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Received packets, in an interval or in total.
#[derive(Serialize, Default)]
struct Report {
    /// The last report, with totals.
    last: bool,
    /// Since the start.
    at_ms: u64,
    /// Packets with a stamp, each counted once.
    packets: u64,
    bytes: u64,
    /// Packets without a stamp.
    others: u64,
    /// From the stamp to the kernel's arrival time: p50, p75, p90, p99.
    latency_ns: [u64; 4],
    /// Packets received again.
    #[serde(skip_serializing_if = "Option::is_none")]
    twice: Option<u64>,
    /// Packets that this program was too slow to read. They may have arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    overrun: Option<u64>,
    /// Gaps of missing packets below the highest number received.
    #[serde(skip_serializing_if = "Option::is_none")]
    losses: Option<Vec<Loss>>,
}

/// Losses closer than this are reported as one.
const TOGETHER_NS: u64 = 100_000_000;

#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    others: u64,
    latencies: Latencies,
}

impl Tally {
    fn report(&self, last: bool, at: Duration) -> Report {
        Report {
            last,
            at_ms: at.as_millis() as u64,
            packets: self.packets,
            bytes: self.bytes,
            others: self.others,
            latency_ns: [0.5, 0.75, 0.9, 0.99].map(|share| self.latencies.quantile_ns(share)),
            ..Report::default()
        }
    }
}

type PcapFile = pcap::Writer<std::io::BufWriter<std::fs::File>>;

struct Sink {
    port: Port,
    arrivals: Arrivals,
    now: Tally,
    all: Tally,
    file: Option<PcapFile>,
}

impl Receive {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let port = Port::open(&self.iface, packet::RING_FRAMES)
            .map_err(|e| Failure::of_device(&self.iface, &e))?;
        let signals = unit::signals().map_err(|e| Failure::Internal(format!("signals: {e}")))?;
        let create =
            |path: &PathBuf| pcap::Writer::new(std::io::BufWriter::new(pcap::create(path)?));
        let file = self.write.as_ref().map(create).transpose().map_err(|e| self.unwritten(&e))?;
        let mut sink = Sink {
            port,
            arrivals: Arrivals::default(),
            now: Tally::default(),
            all: Tally::default(),
            file,
        };
        let start = Instant::now();
        let interval = Duration::from_millis(self.interval_ms);
        let end = self.seconds.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX));
        let mut next = interval;
        loop {
            while sink.take().map_err(|e| self.unwritten(&e))? {}
            let at = start.elapsed();
            if at >= next {
                self.print(&std::mem::take(&mut sink.now).report(false, at));
                next = at + interval;
            }
            if wait(&sink.port, signals.as_raw_fd(), next.saturating_sub(at))
                || end.is_some_and(|end| at >= end)
                || out::is_gone()
            {
                break;
            }
        }
        while sink.take().map_err(|e| self.unwritten(&e))? {}
        let mut report = sink.all.report(true, start.elapsed());
        report.twice = Some(sink.arrivals.twice);
        report.overrun = Some(sink.port.lost());
        report.losses = Some(sink.arrivals.losses(TOGETHER_NS));
        sink.file.map(pcap::Writer::finish).transpose().map_err(|e| self.unwritten(&e))?;
        self.print(&report);
        Ok(ExitCode::SUCCESS)
    }

    fn unwritten(&self, e: &std::io::Error) -> Failure {
        Failure::of_file("write", self.write.as_deref().unwrap_or("the capture".as_ref()), e)
    }

    fn print(&self, report: &Report) {
        if self.output == Format::Json {
            tell!("{}", serde_json::to_string(report).expect("a report is JSON"));
        } else {
            report.tell();
        }
    }
}

/// Waits for packets; returns whether a signal came.
fn wait(port: &Port, signals: i32, at_most: Duration) -> bool {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled = [entry(signals), entry(port.as_raw_fd())];
    // SAFETY: two valid entries.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, at_most.as_millis().clamp(1, 100) as i32) };
    polled[0].revents != 0
}

impl Sink {
    /// Takes the waiting packets; returns whether there were any.
    fn take(&mut self) -> std::io::Result<bool> {
        let mut slots = Vec::with_capacity(BATCH_PACKETS);
        self.port.receive(BATCH_PACKETS, &mut slots);
        for slot in &slots {
            let received = self.port.frame(slot);
            let Some((stamp, frame)) = Stamp::split(received.frame) else {
                self.now.others += 1;
                self.all.others += 1;
                continue;
            };
            if !self.arrivals.count(stamp) {
                continue;
            }
            for tally in [&mut self.now, &mut self.all] {
                tally.packets += 1;
                tally.bytes += frame.len() as u64;
                tally.latencies.record(received.time_ns.saturating_sub(stamp.sent_ns));
            }
            if let Some(file) = &mut self.file {
                file.write(received.time_ns, frame)?;
            }
        }
        self.port.release(slots.len());
        Ok(!slots.is_empty())
    }
}

impl Report {
    fn tell(&self) {
        let [p50, p75, p90, p99] = self.latency_ns.map(|ns| ns as f64 / 1e3);
        let others = if self.others > 0 {
            format!(", {} without a stamp", self.others)
        } else {
            String::new()
        };
        let whole = if self.last { "in all " } else { "" };
        tell!(
            "{:8.1} s  {whole}{} packets, {} bytes{others}; latency p50 {p50:.0} p75 {p75:.0} p90 \
             {p90:.0} p99 {p99:.0} µs",
            self.at_ms as f64 / 1e3,
            self.packets,
            self.bytes
        );
        for loss in self.losses.iter().flatten() {
            tell!(
                "  {} are missing of those sent within {:.1} ms",
                loss.packets,
                (loss.to_ns - loss.from_ns) as f64 / 1e6
            );
        }
        if let Some(twice @ 1..) = self.twice {
            tell!("  {twice} came once more");
        }
        if let Some(overrun @ 1..) = self.overrun {
            tell!(
                "  {overrun} were too fast for this program: missing packets prove nothing about \
                 the sender"
            );
        }
    }
}
