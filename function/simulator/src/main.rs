//! `pando-simulate`: network functions in virtual time, over real captures.

use clap::Parser;
use pando_simulate::bench::{Case, Variant, VariantError};
use pando_simulate::capture::{Capture, CaptureError, read_folder};
use pando_simulate::report::{Figures, median};
use pando_simulate::workload::{Overlay, copies_for, overlay};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Play captures through units in virtual time and compare rules of assignment
///
/// A variant is a rule (vanilla, flow, paper, blind, star, clairvoyant, infinite), followed by
/// options with commas: fifo or fair, and KEY=NUMBER with the keys parts (of a unit, for a virtual
/// clock), gap_ns (T), size_bytes (B), targets (K), lambda, pull_ns, believed_pull_ns, stick_ns,
/// crowded_ns, grow_ns, grow_every_ns, pool, reallocate_ms, average_ms, remember_ms, fill,
/// slowness, ahead_ms, state_bytes, state_changes (1: with each packet).
#[derive(Parser, Debug)]
#[command(
    name = "pando fn simulate",
    bin_name = "pando fn simulate",
    version,
    after_help = "Example: pando fn simulate --captures DIR --workload A --load 9500 star \
        flow,reallocate_ms=50 -o json"
)]
struct Options {
    /// Folder of .pcap and .pcapng files
    #[arg(long, env = "CAPTURES")]
    captures: PathBuf,
    /// Captures to play: all, those with even numbers by name (tune), or the others (report)
    #[arg(long, value_enum, default_value_t = Half::All)]
    half: Half,
    /// A: time compressed 20 times; N: natural speed; NP: natural speed, flows paced at 100 Mbit/s
    #[arg(long, value_enum, default_value_t = Kind::A, ignore_case = true)]
    workload: Kind,
    /// Divide time by this number instead of the workload's
    #[arg(long)]
    speed: Option<f64>,
    /// Copies of each capture; by default, as many as --load needs
    #[arg(long)]
    copies: Option<u32>,
    /// Load in Mbit/s
    #[arg(long, default_value_t = 9500)]
    load: u64,
    /// Capacity of a unit in Mbit/s
    #[arg(long, default_value_t = 1000)]
    unit: u64,
    /// Length of the window in ms
    #[arg(long, default_value_t = 500)]
    window: u64,
    /// Start of the measurement in the window, in ms
    #[arg(long, default_value_t = 200)]
    warm: u64,
    /// Number of seeds; figures are medians over them
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Give every n-th flow an adversarial burst (0 = none)
    #[arg(long, default_value_t = 0)]
    adversarial: u32,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Format of the result
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Rules to compare, with their options
    #[arg(default_values = [
        "vanilla", "flow", "flow,reallocate_ms=50", "flow,reallocate_ms=100", "paper", "blind",
        "star", "clairvoyant", "infinite",
    ])]
    variants: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Half {
    All,
    Tune,
    Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
enum Kind {
    #[value(name = "A")]
    A,
    #[value(name = "N")]
    N,
    #[value(name = "NP")]
    NP,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    Csv,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Variant(#[from] VariantError),
    #[error(
        "the window of {window} ms ends before figures count, at {warm} ms: give a longer --window \
         or a shorter --warm"
    )]
    Window { window: u64, warm: u64 },
}

impl Failure {
    /// Returns the exit code, one of those of `pando`.
    fn code(&self) -> u8 {
        match self {
            Failure::Capture(CaptureError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                4
            }
            _ => 3,
        }
    }
}

/// The conditions that every figure states.
#[derive(Debug, serde::Serialize)]
struct Manifest {
    simulator: bool,
    captures: usize,
    half: Half,
    workload: Kind,
    seeds: u64,
    unit_mbps: u64,
    warm_ms: u64,
    load_mbps: f64,
    packets: usize,
    flows: u32,
    #[serde(flatten)]
    overlay: Overlay,
}

/// The results of a variant: medians over the seeds, and each seed.
#[derive(Debug, serde::Serialize)]
struct Row {
    variant: String,
    figures: Figures,
    rounds: Vec<Figures>,
}

fn main() -> ExitCode {
    match compare(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("pando fn simulate: {failure}");
            failure.code().into()
        }
    }
}

fn compare(o: &Options) -> Result<(), Failure> {
    if o.window <= o.warm {
        return Err(Failure::Window { window: o.window, warm: o.warm });
    }
    let variants: Vec<Variant> = o
        .variants
        .iter()
        .map(|v| Variant::parse(v, o.unit * 1_000_000))
        .collect::<Result<_, _>>()?;
    let all = read_folder(&o.captures)?;
    let captures = choose(all, o.half);
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); variants.len()];
    let mut manifest = None;
    for seed in 1..=o.seeds {
        let how = Overlay {
            copies: o
                .copies
                .unwrap_or_else(|| copies_for(&captures, o.load * 1_000_000, o.window * 1_000_000)),
            speed: o.speed.unwrap_or(if o.workload == Kind::A { 20.0 } else { 1.0 }),
            pace_bps: if o.workload == Kind::NP { 100_000_000 } else { 0 },
            window_ns: o.window * 1_000_000,
            seed,
            adversarial_every: o.adversarial,
        };
        let load = overlay(&captures, &how);
        let bytes: u64 = load.packets.iter().map(|p| u64::from(p.bytes)).sum();
        manifest.get_or_insert_with(|| Manifest {
            simulator: true,
            captures: captures.len(),
            half: o.half,
            workload: o.workload,
            seeds: o.seeds,
            unit_mbps: o.unit,
            warm_ms: o.warm,
            load_mbps: bytes as f64 * 8.0 / (o.window as f64 * 1000.0),
            packets: load.packets.len(),
            flows: load.flows,
            overlay: how.clone(),
        });
        let case = Case {
            load: &load,
            window_ns: how.window_ns,
            warm_ns: o.warm * 1_000_000,
            unit_bytes: o.unit as f64 * 125.0,
            seed,
        };
        for (into, figures) in runs.iter_mut().zip(run_all(&case, &variants, o.jobs)) {
            into.push(figures);
        }
    }
    let rows: Vec<Row> = variants
        .iter()
        .zip(runs)
        .map(|(v, r)| Row { variant: v.name.clone(), figures: median(&r), rounds: r })
        .collect();
    print(o.output, &manifest.expect("there is at least one seed"), &rows);
    Ok(())
}

fn choose(all: Vec<Capture>, half: Half) -> Vec<Capture> {
    let wanted = |i: usize| match half {
        Half::All => true,
        Half::Tune => i.is_multiple_of(2),
        Half::Report => !i.is_multiple_of(2),
    };
    all.into_iter().enumerate().filter(|(i, _)| wanted(*i)).map(|(_, c)| c).collect()
}

fn run_all(case: &Case, variants: &[Variant], jobs: usize) -> Vec<Figures> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![Figures::default(); variants.len()]);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((i, v)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|i| Some((i, variants.get(i)?)))
                {
                    let figures = case.run(v);
                    done.lock().expect("no run panics")[i] = figures;
                }
            });
        }
    });
    done.into_inner().expect("no run panics")
}

fn print(format: Format, manifest: &Manifest, rows: &[Row]) {
    match format {
        Format::Json => {
            println!("{:#}", serde_json::json!({"manifest": manifest, "rows": rows}));
        }
        Format::Csv => print_csv(manifest, rows),
        Format::Text => print_text(manifest, rows),
    }
}

fn print_csv(manifest: &Manifest, rows: &[Row]) {
    println!(
        "workload,half,variant,p50_us,p75_us,p90_us,p99_us,p999_us,mice_p75_us,mice_p99_us,\
                 provisioning,provisioning_100ms,seamless,moved,pushes_per_s,pulls_per_s,\
                 pushed_share"
    );
    for Row { variant: v, figures: f, .. } in rows {
        let name = v.replace(',', " ");
        println!(
            "{:?},{:?},{name},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{:.3},{:.3},{:.4},\
                     {:.4},{:.0},{:.0},{:.5}",
            manifest.workload,
            manifest.half,
            f.p50_us,
            f.p75_us,
            f.p90_us,
            f.p99_us,
            f.p999_us,
            f.mice_p75_us,
            f.mice_p99_us,
            f.provisioning,
            f.provisioning_100ms,
            f.seamless,
            f.moved,
            f.pushes_per_s,
            f.pulls_per_s,
            f.pushed_share
        );
    }
}

fn print_text(manifest: &Manifest, rows: &[Row]) {
    println!("simulator: {}", serde_json::json!(manifest));
    println!(
        "{:36} {:>9} {:>9} {:>9} {:>9} {:>9} | {:>8} {:>8} | {:>5} {:>5} {:>5} {:>5}",
        "latency in µs",
        "p50",
        "p75",
        "p90",
        "p99",
        "p99.9",
        "mice p75",
        "p99",
        "prov",
        "100ms",
        "seaml",
        "moved"
    );
    for Row { variant: v, figures: f, .. } in rows {
        println!(
            "{v:36} {:9.0} {:9.0} {:9.0} {:9.0} {:9.0} | {:8.0} {:8.0} | {:5.2} {:5.2} \
                     {:5.3} {:5.3}",
            f.p50_us,
            f.p75_us,
            f.p90_us,
            f.p99_us,
            f.p999_us,
            f.mice_p75_us,
            f.mice_p99_us,
            f.provisioning,
            f.provisioning_100ms,
            f.seamless,
            f.moved
        );
    }
}
