//! `pando fn generate`: makes a capture to start with.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use pando_traffic::{self as traffic, Shape, pcap};
use serde::Serialize;

use super::failure::Failure;
use super::out::Format;

/// Arguments.
#[derive(Args)]
#[command(after_help = "Example: pando fn generate capture.pcap --flows 1000 --seconds 10\n\n\
Flows have sizes of a heavy tail (Pareto, exponent 1.2) and consist of bursts with pauses of 3 to \
23 ms between them.\n\
The same arguments give the same file on every machine.")]
pub struct Generate {
    /// The file to write
    capture: PathBuf,
    /// Conversations
    #[arg(
        long,
        default_value_t = Shape::default().flows,
        value_parser = clap::value_parser!(u32).range(1..=65_000)
    )]
    flows: u32,
    /// Seconds in which they begin
    #[arg(long, default_value_t = Shape::default().seconds)]
    seconds: f64,
    /// Factor on new flows per second in the middle third
    #[arg(long, default_value_t = Shape::default().burst)]
    burst: f64,
    /// Content for an IDS to find: in every n-th flow, at times across two packets
    #[arg(long, default_value = "pando-demo-attack")]
    content: String,
    /// Put the content into every n-th flow; 0: none
    #[arg(long, default_value_t = Shape::default().content_every)]
    content_every: u32,
    /// Seed of the random numbers
    #[arg(long, default_value_t = Shape::default().seed)]
    seed: u64,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The result.
#[derive(Serialize)]
struct Report {
    capture: String,
    packets: usize,
    bytes: usize,
    flows: u32,
    with_content: u32,
    seconds: f64,
}

impl Generate {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(Failure::Invalid("--seconds is a number above 0, up to 3600".into()));
        }
        if !(self.burst >= 1.0 && self.burst <= 1000.0) {
            return Err(Failure::Invalid("--burst is a number from 1 to 1000".into()));
        }
        if self.content.len() > 256 {
            return Err(Failure::Invalid(format!(
                "--content has {} bytes: 256 at most",
                self.content.len()
            )));
        }
        let shape = Shape {
            flows: self.flows,
            seconds: self.seconds,
            burst: self.burst,
            content: self.content.into_bytes(),
            content_every: self.content_every,
            seed: self.seed,
        };
        let made = traffic::generate(&shape);
        pcap::write(&self.capture, &made.packets)
            .map_err(|e| Failure::of_file("write", &self.capture, &e))?;
        let (first, last) = (
            made.packets.first().map_or(0, |p| p.time_ns),
            made.packets.last().map_or(0, |p| p.time_ns),
        );
        let report = Report {
            capture: self.capture.display().to_string(),
            packets: made.packets.len(),
            bytes: made.packets.iter().map(|p| p.frame.len()).sum(),
            flows: shape.flows,
            with_content: made.with_content,
            seconds: (last - first) as f64 / 1e9,
        };
        if self.output == Format::Json {
            tell!("{}", serde_json::to_string_pretty(&report).expect("a report is JSON"));
        } else {
            let Report { capture, packets, bytes, flows, with_content, seconds } = report;
            tell!(
                "{capture}: {packets} packets of {flows} flows, {bytes} bytes, {seconds:.1} s; \
                 {with_content} flows have the content in them"
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
