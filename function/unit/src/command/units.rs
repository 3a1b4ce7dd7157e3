//! `pando fn ls`, `top`, `logs`, `rm` and `bill`: the units of this machine.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use pando_meter::{self as meter, Billed, Record, Unserved};
use pando_unit::status::Status;
use pando_unit::unit::{self, ask};
use serde::Serialize;

use super::failure::Failure;
use super::out::{self, Format, print_json};
use super::places::{Places, UnitPlace};

/// Arguments of `ls`.
#[derive(Args)]
#[command(after_help = "Example: pando fn ls -o json")]
pub struct List {
    #[command(flatten)]
    places: Places,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Arguments of `top`.
#[derive(Args)]
#[command(after_help = "Example: pando fn top -n 1")]
pub struct Top {
    #[command(flatten)]
    places: Places,
    /// Pictures to show; without it, until interrupted
    #[arg(short, long)]
    number: Option<u32>,
    /// Milliseconds between two pictures
    #[arg(long, default_value_t = 1000)]
    interval_ms: u64,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Arguments of `logs`.
#[derive(Args)]
#[command(after_help = "Example: pando fn logs -f nat")]
pub struct Logs {
    /// The unit
    name: String,
    #[command(flatten)]
    places: Places,
    /// Keep printing until the unit ends
    #[arg(short, long)]
    follow: bool,
}

/// Arguments of `rm`.
#[derive(Args)]
#[command(after_help = "Example: pando fn rm nat")]
pub struct Remove {
    /// The units
    #[arg(required = true)]
    names: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Arguments of `bill`.
#[derive(Args)]
#[command(after_help = "Example: pando fn bill --tenant default")]
pub struct Bill {
    #[command(flatten)]
    places: Places,
    /// Only this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    state: &'static str,
    #[serde(flatten)]
    status: Option<Status>,
}

impl Listed {
    fn is_limited(&self) -> bool {
        self.status.as_ref().is_some_and(|s| s.limits.is_some())
    }
}

fn listed(places: &Places) -> Result<Vec<Listed>, Failure> {
    let units = places.names()?.into_iter().map(|name| {
        match ask(&places.unit(&name).control(), "status") {
            Ok(status) => Listed { name, state: "running", status: Some(status) },
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                Listed { name, state: "unknown", status: None }
            }
            Err(e) if unit::is_silence(&e) => Listed { name, state: "silent", status: None },
            Err(_) => Listed { name, state: "crashed", status: None },
        }
    });
    Ok(units.collect())
}

impl List {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let units = listed(&self.places)?;
        if self.output == Format::Json {
            // Convert to a value first: the status has a second `name`, and a value keeps only one.
            print_json(&serde_json::to_value(&units).expect("it is JSON"));
            return Ok(ExitCode::SUCCESS);
        }
        tell!(
            "{:<20} {:<8} {:<20} {:<16} {:>7} {:>12} {:>8} {:>18}",
            "UNIT",
            "STATE",
            "FUNCTIONS",
            "DEVICES",
            "PID",
            "PACKETS",
            "FLOWS",
            "LIMITS"
        );
        for unit in units {
            let Some(s) = unit.status else {
                tell!("{:<20} {:<8} {}", unit.name, unit.state, self.reason(&unit));
                continue;
            };
            let functions: Vec<&str> = s.functions.iter().map(|f| f.function.as_str()).collect();
            let packets: u64 = s.fates.iter().map(|(_, n)| n).sum();
            let rules = s
                .rules
                .as_ref()
                .map_or(String::new(), |force| format!(" {}/{}", force.in_force, force.read));
            tell!(
                "{:<20} {:<8} {:<20} {:<16} {:>7} {:>12} {:>8} {:>18}",
                unit.name,
                unit.state,
                functions.join("+") + &rules,
                s.devices.join(","),
                s.pid,
                packets,
                s.flows,
                s.limits.unwrap_or_default()
            );
            if let Some(failure) = s.group.as_ref().and_then(|group| group["failure"].as_str()) {
                tell!("{:<20} {failure}", "");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns why a unit has no status, and what helps.
    fn reason(&self, unit: &Listed) -> String {
        let place = self.places.unit(&unit.name);
        match unit.state {
            "unknown" => "another user's: only root can read its state".into(),
            "silent" => place.silence(),
            _ => {
                let of_memory = place.group().is_some_and(|group| group.out_of_memory() > 0);
                let why = if of_memory {
                    "it needed more memory than its limit (--unit-memory-mib); "
                } else {
                    ""
                };
                format!("{why}`pando fn logs {}` has the reason", unit.name)
            }
        }
    }
}

impl Top {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut before: BTreeMap<String, (Instant, u64, u64)> = BTreeMap::new();
        for picture in 0.. {
            let units = listed(&self.places)?;
            if self.output == Format::Json {
                tell!("{}", serde_json::to_string(&units).expect("it is JSON"));
            } else {
                if picture > 0 && self.number.is_none() {
                    out::text(format_args!("\x1b[H\x1b[2J"));
                }
                self.picture(&units, &mut before);
            }
            if self.number == Some(picture + 1) || out::is_gone() {
                break;
            }
            std::thread::sleep(Duration::from_millis(self.interval_ms));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn picture(&self, units: &[Listed], before: &mut BTreeMap<String, (Instant, u64, u64)>) {
        let limits = |text: String| {
            if units.iter().any(Listed::is_limited) { format!("{text:>19}") } else { String::new() }
        };
        tell!(
            "{:<20} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}{}",
            "UNIT",
            "PACKETS/S",
            "MBIT/S",
            "FLOWS",
            "DROPPED",
            "TRAPPED",
            "LOST",
            "P50 µs",
            "P75 µs",
            "P99 µs",
            limits("LIMITS".into())
        );
        for unit in units {
            let Some(s) = &unit.status else { continue };
            let first = s.functions.first().cloned().unwrap_or_default();
            let now = (Instant::now(), first.packets, first.bytes);
            let (then, packets, bytes) = before.insert(unit.name.clone(), now).unwrap_or(now);
            let seconds = (now.0 - then).as_secs_f64().max(1e-9);
            let of = |word: &str| s.fates.iter().find(|(w, _)| w == word).map_or(0, |(_, n)| *n);
            let [p50, p75, p99] = s.latency_ns.map(|ns| ns as f64 / 1e3);
            tell!(
                "{:<20} {:>10.0} {:>10.1} {:>8} {:>8} {:>8} {:>8} {p50:>9.1} {p75:>9.1} \
                 {p99:>9.1}{}",
                unit.name,
                now.1.saturating_sub(packets) as f64 / seconds,
                now.2.saturating_sub(bytes) as f64 * 8e-6 / seconds,
                s.flows,
                of("dropped"),
                of("trapped"),
                s.lost + of("too_long"),
                limits(s.limits.unwrap_or_default().to_string()),
            );
        }
    }
}

impl Logs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let place = self.places.known(&self.name)?;
        let mut log = std::fs::File::open(place.log())
            .map_err(|e| Failure::of_file("open", &place.log(), &e))?;
        let mut at = 0;
        loop {
            let mut text = Vec::new();
            let read = log.seek(SeekFrom::Start(at)).and_then(|_| log.read_to_end(&mut text));
            at += read.map_err(|e| Failure::Internal(format!("read the log: {e}")))? as u64;
            out::bytes(&text);
            if !self.follow || out::is_gone() || !place.directory.exists() {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Remove {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut names = self.names.clone();
        names.sort();
        names.dedup();
        // Check all names before any unit ends.
        let places =
            names.iter().map(|name| self.places.known(name)).collect::<Result<Vec<_>, _>>()?;
        for (name, place) in names.iter().zip(places) {
            place.unwatch();
            match ask(&place.control(), "stop") {
                Ok(_) => drop(comes(|| ask(&place.control(), "status").is_err())),
                Err(e) if unit::is_silence(&e) => end(name, &place)?,
                Err(_) => {}
            }
            place.remove().map_err(|e| Failure::of_file("remove", &place.directory, &e))?;
            if self.output == Format::Text {
                tell!("{name} is gone; its bill stays");
            }
        }
        if self.output == Format::Json {
            print_json(&names);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The longest time for a unit to end.
const ENDING: Duration = Duration::from_secs(5);

/// Waits up to [`ENDING`] for a condition; returns whether it became true.
fn comes(so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + ENDING;
    while !so() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Ends a unit that does not answer. A stopped unit would otherwise continue later, unseen.
fn end(name: &str, place: &UnitPlace) -> Result<(), Failure> {
    let Some(pid) = unit::listener(&place.control()) else { return Ok(()) };
    // SAFETY: plain system call; the process listens on this unit's socket.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    if comes(|| unit::listener(&place.control()).is_none()) {
        return Ok(());
    }
    Err(Failure::Internal(format!("{name}: process {pid} does not answer and does not end")))
}

/// A tenant's bill for one function.
#[derive(Serialize)]
struct Owed {
    tenant: String,
    #[serde(flatten)]
    billed: Billed,
    /// Packets that never reached a chain that begins with this function, or never left one that
    /// ends with it.
    #[serde(flatten)]
    unserved: Unserved,
}

#[derive(Serialize)]
struct Invoice {
    owed: Vec<Owed>,
    records: Vec<Record>,
}

/// Returns the sum over all units and epochs, per tenant and function. Records are totals, so each
/// counts once.
fn owed(records: &[Record]) -> Vec<Owed> {
    let mut sums: BTreeMap<(String, String), (Billed, Unserved)> = BTreeMap::new();
    for record in records {
        for (n, f) in record.functions.iter().enumerate() {
            let (sum, unserved) =
                sums.entry((record.tenant.clone(), f.function.clone())).or_default();
            sum.function.clone_from(&f.function);
            sum.packets += f.packets;
            sum.bytes += f.bytes;
            sum.fuel += f.fuel;
            sum.trapped += f.trapped;
            unserved.lost += if n == 0 { record.unserved.lost } else { 0 };
            unserved.unsent +=
                if n + 1 == record.functions.len() { record.unserved.unsent } else { 0 };
        }
    }
    sums.into_iter()
        .map(|((tenant, _), (billed, unserved))| Owed { tenant, billed, unserved })
        .collect()
}

impl Bill {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut records = meter::records(&self.places.data_dir).map_err(|e| {
            Failure::Internal(format!(
                "read the meters below {}: {e}",
                self.places.data_dir.display()
            ))
        })?;
        records.retain(|r| self.tenant.as_ref().is_none_or(|t| *t == r.tenant));
        let invoice = Invoice { owed: owed(&records), records };
        if self.output == Format::Json {
            print_json(&invoice);
            return Ok(ExitCode::SUCCESS);
        }
        tell!(
            "{:<16} {:<16} {:>14} {:>16} {:>18} {:>10} {:>10}",
            "TENANT",
            "FUNCTION",
            "PACKETS",
            "BYTES",
            "FUEL",
            "TRAPPED",
            "NOT SERVED"
        );
        for o in &invoice.owed {
            let (b, unserved) = (&o.billed, o.unserved.lost + o.unserved.unsent);
            tell!(
                "{:<16} {:<16} {:>14} {:>16} {:>18} {:>10} {unserved:>10}",
                o.tenant,
                b.function,
                b.packets,
                b.bytes,
                b.fuel,
                b.trapped
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
