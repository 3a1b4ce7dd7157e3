//! `pando fn test`: sends a capture through functions, without a network and without a clock.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use pando_chain::Arrival;
use pando_traffic::pcap::{self, Captured, PcapError};
use pando_wasm::Compiler;
use serde::Serialize;

use super::chain::{ChainArgs, name_of};
use super::failure::Failure;
use super::out::Format;

/// Arguments. `pando fn test` has the help that users read (cmd/pando/function/flags.go).
#[derive(Args)]
pub struct Test {
    #[command(flatten)]
    chain: ChainArgs,
    /// The input capture (pcap or pcapng)
    #[arg(long)]
    pcap: PathBuf,
    /// The expected output capture
    #[arg(long)]
    expect: Option<PathBuf>,
    /// Write the output to this file
    #[arg(long)]
    write: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The result of a test.
#[derive(Serialize, Default)]
struct Report {
    functions: String,
    packets: usize,
    fates: BTreeMap<&'static str, usize>,
    flows: usize,
    work: Vec<StageWork>,
    events: Vec<ReportedEvent>,
    traps: Vec<String>,
    expected: Option<Comparison>,
}

#[derive(Serialize)]
struct StageWork {
    function: String,
    packets: u64,
    bytes: u64,
    fuel: u64,
    trapped: u64,
}

#[derive(Serialize)]
struct ReportedEvent {
    function: String,
    flow: String,
    code: u32,
    time_ns: u64,
}

/// The comparison of the output with the expectation.
#[derive(Serialize)]
struct Comparison {
    equal: bool,
    packets: usize,
    first_difference: Option<String>,
}

impl Test {
    pub fn run(self) -> Result<ExitCode, Failure> {
        self.spares_its_input()?;
        let compiler = Compiler::Apart { tenant: "default".into(), cache: None };
        let code = self.chain.prepare(&compiler)?;
        code.force.iter().for_each(|force| pando_walls::say!("pando fn: {force}"));
        let mut chain = self.chain.start(code)?;
        let input = pcap::read(&self.pcap)?;
        let expected = self.expect.as_ref().map(|path| expected(path)).transpose()?;
        let mut report =
            Report { functions: name_of(&chain), packets: input.len(), ..Report::default() };
        let arrivals: Vec<Arrival> = input
            .iter()
            .map(|p| Arrival { frame: &p.frame, time_ns: p.time_ns, outer: false, steered: None })
            .collect();
        let mut output: Vec<Captured> = Vec::new();
        let mut at = 0;
        while at < arrivals.len() {
            let count = chain.process(&arrivals[at..]);
            for (arrived, (fate, out)) in input[at..].iter().zip(chain.outputs(&arrivals[at..])) {
                *report.fates.entry(fate.word()).or_default() += 1;
                let captured = |frame: &[u8]| Captured {
                    time_ns: arrived.time_ns,
                    frame: frame.to_vec(),
                    wire_bytes: frame.len() as u32,
                };
                output.extend(out.iter().map(captured));
            }
            at += count;
        }
        let names: Vec<String> = chain.names().map(str::to_owned).collect();
        report.flows = chain.flows.len();
        report.work = names
            .iter()
            .zip(chain.work())
            .map(|(name, w)| StageWork {
                function: name.clone(),
                packets: w.packets,
                bytes: w.bytes,
                fuel: w.fuel,
                trapped: w.trapped,
            })
            .collect();
        report.events = chain
            .events
            .iter()
            .map(|e| ReportedEvent {
                function: names[e.stage].clone(),
                flow: format!("{:?}", e.key),
                code: e.code,
                time_ns: e.time_ns,
            })
            .collect();
        report.traps = names
            .iter()
            .zip(chain.last_traps())
            .filter_map(|(name, t)| Some(format!("{name}: {}", t?)))
            .collect();
        report.expected = expected.map(|e| compare(&output, &e));
        if let Some(path) = &self.write {
            pcap::write(path, &output).map_err(|e| Failure::of_file("write", path, &e))?;
        }
        report.print(self.output);
        Ok(if report.expected.is_none_or(|c| c.equal) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Test {
    /// Refuses to overwrite the input or the expected capture with the output.
    fn spares_its_input(&self) -> Result<(), Failure> {
        let Some(Ok(out)) = self.write.as_ref().map(std::fs::metadata) else { return Ok(()) };
        for (read, flag) in [(Some(&self.pcap), "--pcap"), (self.expect.as_ref(), "--expect")] {
            let same = |path| {
                std::fs::metadata(path)
                    .is_ok_and(|m| m.is_file() && (m.dev(), m.ino()) == (out.dev(), out.ino()))
            };
            if read.is_some_and(same) {
                return Err(Failure::Conflict(format!(
                    "--write would overwrite the capture of {flag}: name another file"
                )));
            }
        }
        Ok(())
    }
}

/// Reads the expected capture. If it is missing, the error names the command that makes it.
fn expected(path: &Path) -> Result<Vec<Captured>, Failure> {
    pcap::read(path).map_err(|e| match &e {
        PcapError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
            Failure::NotFound(format!(
                "{e}; the same command with --write {} instead of --expect makes it from the \
                 current output",
                path.display()
            ))
        }
        _ => e.into(),
    })
}

/// Compares packets byte by byte. Times do not count: a test fixes the packets, not their times.
fn compare(output: &[Captured], expected: &[Captured]) -> Comparison {
    let differs = output.iter().zip(expected).enumerate().find(|(_, (o, e))| o.frame != e.frame);
    let first_difference = match differs {
        Some((n, (o, e))) => {
            let at = o
                .frame
                .iter()
                .zip(&e.frame)
                .position(|(a, b)| a != b)
                .unwrap_or(o.frame.len().min(e.frame.len()));
            Some(format!(
                "packet {}: byte {at} is {}, expected {}",
                n + 1,
                byte(&o.frame, at),
                byte(&e.frame, at)
            ))
        }
        None if output.len() != expected.len() => {
            Some(format!("{} packets came out, {} are expected", output.len(), expected.len()))
        }
        None => None,
    };
    Comparison { equal: first_difference.is_none(), packets: expected.len(), first_difference }
}

fn byte(frame: &[u8], at: usize) -> String {
    frame.get(at).map_or("the end".into(), |b| format!("{b:#04x}"))
}

impl Report {
    fn print(&self, format: Format) {
        if format == Format::Json {
            tell!("{}", serde_json::to_string_pretty(self).expect("a report is JSON"));
            return;
        }
        let fates: Vec<String> =
            self.fates.iter().map(|(fate, n)| format!("{n} {}", fate.replace('_', " "))).collect();
        tell!(
            "{}: {} packets: {}; {} flows",
            self.functions,
            self.packets,
            fates.join(", "),
            self.flows
        );
        for w in &self.work {
            tell!(
                "  {:<12} {} packets, {} bytes, {} fuel per packet",
                w.function,
                w.packets,
                w.bytes,
                w.fuel / w.packets.max(1)
            );
        }
        for e in self.events.iter().take(20) {
            tell!("  {} reports {} on {}", e.function, e.code, e.flow);
        }
        if self.events.len() > 20 {
            tell!("  … and {} events more (-o json lists all)", self.events.len() - 20);
        }
        for trap in &self.traps {
            tell!("  {trap}");
        }
        match &self.expected {
            Some(Comparison { first_difference: Some(d), .. }) => tell!("NOT AS EXPECTED: {d}"),
            Some(c) => tell!("as expected: {} packets", c.packets),
            None => {}
        }
    }
}
