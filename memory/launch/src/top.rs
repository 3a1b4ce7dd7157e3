//! `pando mem top` and `pando mem metrics`: the counters that every pager keeps in a file.

use crate::counters::{Process, others, processes};
use crate::size;
use clap::Args;
use memory_core::stats::{STALL_BUCKETS, Stats, longest, quantile};
use std::error::Error;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Args)]
#[command(after_help = "Example:\n  pando mem top --once")]
pub struct Top {
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_parser = pause)]
    every: f64,
    /// Only this process
    #[arg(long)]
    pid: Option<u32>,
    /// Format; json is one object per process and look
    #[arg(short, long, value_parser = ["text", "json"], default_value = "text")]
    output: String,
}

#[derive(Args)]
#[command(after_help = "Example:\n  pando mem metrics --listen 127.0.0.1:9464")]
pub struct Metrics {
    /// Serve HTTP at HOST:PORT instead of printing once
    #[arg(long)]
    listen: Option<String>,
}

/// Parses the seconds between two looks: a tenth to a day.
fn pause(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is no number of seconds from 0.1 to 86400")),
    }
}

/// A sample of the counters of one process.
#[derive(Clone)]
struct Look {
    values: Vec<(&'static str, &'static str, u64)>,
    stalls: Vec<u64>,
}

impl Look {
    fn at(s: &Stats) -> Look {
        let values =
            FIGURES.iter().map(|(name, help, get)| (*name, *help, get(s).load(Relaxed))).collect();
        Look { values, stalls: (0..STALL_BUCKETS).map(|i| s.stalls.0[i].load(Relaxed)).collect() }
    }

    fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|v| v.0 == name).map_or(0, |v| v.2)
    }

    /// Whether this sample can be a later one of the same process. Counters only grow; the number
    /// of a process may be reused.
    fn follows(&self, last: &Look) -> bool {
        let mut pairs = self.values.iter().zip(&last.values);
        pairs.all(|(now, last)| now.0.ends_with("_now") || now.2 >= last.2)
            && self.stalls.iter().zip(&last.stalls).all(|(now, last)| now >= last)
    }
}

type Figure = (&'static str, &'static str, fn(&Stats) -> &AtomicU64);

/// Every figure with its name and help text. Names that end in `_now` are gauges.
const FIGURES: &[Figure] = &[
    ("faults", "page faults that the pager served", |s| &s.faults),
    ("faults_zero", "first touches", |s| &s.faults_zero),
    ("faults_rescue", "second chances used", |s| &s.faults_rescue),
    ("faults_fetch", "faults that fetched", |s| &s.faults_fetch),
    ("faults_wait", "faults that waited for another transfer", |s| &s.faults_wait),
    ("faults_room", "faults that waited for an eviction", |s| &s.faults_room),
    ("rounds", "round trips to memory hosts that something waited for", |s| &s.rounds),
    ("pages_fetched", "pages fetched", |s| &s.pages_fetched),
    ("pages_prefetched", "pages fetched along with a missing one", |s| &s.pages_prefetched),
    ("pages_guided", "pages fetched because a guide asked", |s| &s.pages_guided),
    ("pages_evicted", "pages unmapped", |s| &s.pages_evicted),
    ("pages_written", "pages stored on memory hosts", |s| &s.pages_written),
    ("probes_used", "sampled prefetched pages that were used", |s| &s.probes_used),
    ("probes_unused", "sampled prefetched pages that were not", |s| &s.probes_unused),
    ("guide_probes_used", "sampled guided pages that were used", |s| &s.guide_probes_used),
    ("guide_probes_unused", "sampled guided pages that were not", |s| &s.guide_probes_unused),
    ("syscalls_pinned", "system calls with memory that had to be pinned", |s| &s.syscalls_retried),
    ("forks", "forks", |s| &s.forks),
    ("requests", "requests that a guide counted", |s| &s.requests),
    ("guide_calls", "prefetches that a guide asked for", |s| &s.guide_calls),
    ("hosts_lost", "memory hosts given up", |s| &s.hosts_lost),
    ("reads_failed_over", "reads that another copy answered", |s| &s.reads_failed_over),
    ("pages_bad", "pages with a wrong checksum", |s| &s.pages_bad),
    ("slots_rebuilt", "pages copied to a host that joined", |s| &s.slots_rebuilt),
    ("over_budget", "times that the budget was overdrawn rather than stand still", |s| {
        &s.over_budget
    }),
    ("budget_now", "local memory allowed, bytes", |s| &s.budget_now),
    ("anon_now", "local memory used, bytes", |s| &s.anon_now),
    ("held_now", "pages of far memory that are local", |s| &s.held_now),
    ("limbo_now", "pages in the second-chance list", |s| &s.limbo_now),
    ("in_use_now", "pages of far memory in use", |s| &s.in_use_now),
    ("slots_now", "slots in use", |s| &s.slots_now),
    ("slots_total_now", "slots leased", |s| &s.slots_total),
    ("copies_now", "whole copies", |s| &s.copies_now),
    ("filling_now", "percent of a copy that is being filled", |s| &s.filling_now),
    ("outside_now", "memory of the program that stays outside far memory, bytes", |s| {
        &s.outside_now
    }),
    ("children_now", "memory of forked children, bytes beyond what they were born with", |s| {
        &s.children_now
    }),
    ("prefetch_paused_now", "1 while the prefetcher sits out for being wrong", |s| {
        &s.prefetch_paused_now
    }),
];

/// Returns the message for an empty list.
fn nobody(pid: Option<u32>) -> String {
    match pid {
        _ if others(pid) => {
            "another user's programs may borrow memory here, and you may not look at them: run it \
             as that user or as root"
                .into()
        }
        Some(pid) => format!(
            "process {pid} borrows no memory; `pando mem top --once` shows those \
            that do"
        ),
        None => "no program on this machine borrows memory; start one: pando mem run --local \
            128MiB --from HOST:PORT -- PROGRAM"
            .into(),
    }
}

impl Top {
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let mut before: Vec<(u32, Look)> = vec![];
        loop {
            let all = processes(self.pid);
            if all.is_empty() && self.once {
                return Err(nobody(self.pid).into());
            }
            let looks: Vec<(u32, Look)> = all.iter().map(|p| (p.pid, Look::at(p.stats))).collect();
            let mut out = String::new();
            if self.output == "text" && !self.once && std::io::stdout().is_terminal() {
                out += "\x1b[H\x1b[2J";
            }
            if all.is_empty() && self.output == "text" {
                out += &format!("{}\n", nobody(self.pid));
            }
            for (process, (pid, look)) in all.iter().zip(&looks) {
                let last = before.iter().find(|b| b.0 == *pid).map(|b| &b.1);
                out += &if self.output == "json" {
                    json(process, look)
                } else {
                    text(process, look, last, self.every)
                };
            }
            let gone = !told(&out)?;
            if self.once || gone {
                return Ok(());
            }
            before = looks;
            std::thread::sleep(Duration::from_secs_f64(self.every));
        }
    }
}

/// Prints. Returns false if the reader has closed the pipe (as `head` does), which is no error.
fn told(text: &str) -> std::io::Result<bool> {
    let mut to = std::io::stdout();
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(std::io::Error::new(e.kind(), format!("the output is not whole: {e}")))
        }
        written => Ok(written.is_ok()),
    }
}

/// Returns a text as JSON and Prometheus write it. Control characters, which Prometheus cannot
/// write, become question marks.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out + "\""
}

fn json(p: &Process, look: &Look) -> String {
    let mut fields = vec![format!("\"pid\":{},\"name\":{}", p.pid, quoted(&p.name))];
    fields.extend(look.values.iter().map(|(name, _, n)| format!("\"{name}\":{n}")));
    for (name, q) in [("stall_p50_ns", 0.5), ("stall_p99_ns", 0.99), ("stall_p999_ns", 0.999)] {
        fields.push(format!("\"{name}\":{}", quantile(&look.stalls, q)));
    }
    fields.push(format!("\"stall_max_ns\":{}", longest(&look.stalls)));
    format!("{{{}}}\n", fields.join(","))
}

fn text(p: &Process, now: &Look, last: Option<&Look>, every: f64) -> String {
    // The first sample of a process shows sums, the others rates.
    let last = last.filter(|last| now.follows(last));
    let rate = |name: &str| {
        last.map_or(now.get(name) as f64, |l| (now.get(name) - l.get(name)) as f64 / every)
    };
    let per = if last.is_some() { "/s" } else { "" };
    let since = |name: &str| now.get(name) - last.map_or(0, |l| l.get(name));
    let share = |a: u64, b: u64| {
        if b == 0 { "-".to_string() } else { format!("{:.0} %", a as f64 * 100.0 / b as f64) }
    };
    let stalls: Vec<u64> =
        (0..STALL_BUCKETS).map(|i| now.stalls[i] - last.map_or(0, |l| l.stalls[i])).collect();
    let (anon, budget) = (now.get("anon_now"), now.get("budget_now"));
    let per_request = if since("requests") > 0 {
        format!("{:.2}", since("rounds") as f64 / since("requests") as f64)
    } else {
        "-".into()
    };
    let over = match now.get("over_budget") {
        0 => String::new(),
        n => format!("   over budget {n} times"),
    };
    let outside = outside(now.get("outside_now") + now.get("children_now"), budget);
    format!(
        "{} {}   local {} of {} {}{over}{outside}\n\
         far  {} in use   {} of {} leased hold pages   {}\n\
         faults{per}  zero {:.0}  second chance {:.0}  fetch {:.0}  waited {:.0}  for room \
         {:.0}   syscalls pinned{per} {:.0}\n\
         rounds{per} {:.0}  per request {per_request}   pages{per}  fetched {:.0}  ahead {:.0}  \
         guided {:.0}\n\
         out{per} {:.0}  written {:.0} ({} of what left was dirty)   hit rate  prefetch {}{}  \
         guide {}\n\
         stalls  p50 {:.1} us  p99 {:.1} us  p99.9 {:.1} us  longest {:.1} us\n{}\n",
        p.name,
        p.pid,
        size::show(anon),
        size::show(budget),
        bar(anon, budget),
        size::show(now.get("in_use_now") << 12),
        size::show(now.get("slots_now") << 12),
        size::show(now.get("slots_total_now") << 12),
        copies(now.get("copies_now"), now.get("filling_now")),
        rate("faults_zero"),
        rate("faults_rescue"),
        rate("faults_fetch"),
        rate("faults_wait"),
        rate("faults_room"),
        rate("syscalls_pinned"),
        rate("rounds"),
        rate("pages_fetched"),
        rate("pages_prefetched"),
        rate("pages_guided"),
        rate("pages_evicted"),
        rate("pages_written"),
        share(since("pages_written"), since("pages_evicted")),
        share(now.get("probes_used"), now.get("probes_used") + now.get("probes_unused")),
        if now.get("prefetch_paused_now") > 0 { " (paused)" } else { "" },
        share(
            now.get("guide_probes_used"),
            now.get("guide_probes_used") + now.get("guide_probes_unused")
        ),
        quantile(&stalls, 0.5) as f64 / 1e3,
        quantile(&stalls, 0.99) as f64 / 1e3,
        quantile(&stalls, 0.999) as f64 / 1e3,
        longest(&stalls) as f64 / 1e3,
        histogram(&stalls),
    )
}

/// Describes the whole copies, and the percent of one that is being filled.
fn copies(whole: u64, filling: u64) -> String {
    let another = if filling > 0 { format!(", {filling} % of another") } else { String::new() };
    format!("{whole} whole cop{}{another}", if whole == 1 { "y" } else { "ies" })
}

/// Describes memory that far memory cannot move, once it takes more than half of the budget.
fn outside(bytes: u64, budget: u64) -> String {
    if bytes <= budget / 2 {
        return String::new();
    }
    format!("\noutside far memory: {} of a limit of {}", size::show(bytes), size::show(budget))
}

fn bar(part: u64, whole: u64) -> String {
    let full = (part * 20 / whole.max(1)).min(20) as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(20 - full))
}

/// Shows the stalls by power of two of microseconds.
fn histogram(stalls: &[u64]) -> String {
    let octaves: Vec<u64> = stalls.chunks(4).map(|c| c.iter().sum()).collect();
    let most = octaves.iter().copied().max().unwrap_or(0).max(1);
    let mut out = String::new();
    for (octave, n) in octaves.iter().enumerate().filter(|(_, n)| **n > 0) {
        out += &format!(
            "  < {:>9.1} us {:<40} {n}\n",
            (1u64 << (octave + 1)) as f64 / 1e3,
            "#".repeat((n * 40 / most) as usize)
        );
    }
    out
}

fn prometheus(all: &[Process]) -> String {
    let mut out = String::new();
    for (name, help, get) in FIGURES {
        let gauge = name.ends_with("_now");
        let metric = if gauge {
            format!("pando_mem_{}", name.trim_end_matches("_now"))
        } else {
            format!("pando_mem_{name}_total")
        };
        out += &format!(
            "# HELP {metric} {help}\n# TYPE {metric} {}\n",
            if gauge { "gauge" } else { "counter" }
        );
        for p in all {
            out += &format!(
                "{metric}{{pid=\"{}\",name={}}} {}\n",
                p.pid,
                quoted(&p.name),
                get(p.stats).load(Relaxed)
            );
        }
    }
    out +=
        "# HELP pando_mem_stall_seconds fault to resume\n# TYPE pando_mem_stall_seconds summary\n";
    for p in all {
        let look = Look::at(p.stats);
        for q in [0.5, 0.9, 0.99, 0.999] {
            out += &format!(
                "pando_mem_stall_seconds{{pid=\"{}\",name={},quantile=\"{q}\"}} {:e}\n",
                p.pid,
                quoted(&p.name),
                quantile(&look.stalls, q) as f64 / 1e9
            );
        }
        out += &format!(
            "pando_mem_stall_seconds_count{{pid=\"{}\",name={}}} {}\n",
            p.pid,
            quoted(&p.name),
            look.stalls.iter().sum::<u64>()
        );
    }
    out
}

impl Metrics {
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let Some(address) = self.listen else {
            told(&prometheus(&processes(None)))?;
            return Ok(());
        };
        let listener = std::net::TcpListener::bind(&address)
            .map_err(|e| format!("cannot listen at {address}: {e}; choose another --listen"))?;
        println!("metrics at http://{}/metrics", listener.local_addr()?);
        for stream in listener.incoming().flatten() {
            // A scrape that fails is no concern of the next one.
            let _ = answer(stream, &prometheus(&processes(None)), SCRAPE);
        }
        Ok(())
    }
}

/// How long a client of the metrics may take to send its request, and to take a part of the answer.
/// Scrapes are served one at a time.
const SCRAPE: Duration = Duration::from_secs(1);

/// Answers one scrape. Gives up a client that is silent for longer than `patience`.
fn answer(mut stream: TcpStream, body: &str, patience: Duration) -> std::io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let _ = stream.read(&mut [0; 1024]);
    let bytes = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {bytes}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests;
