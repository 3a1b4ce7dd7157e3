//! `pando mem serve`.

use crate::refusal;
use crate::size;
use crate::token::{List, token};
use clap::Args;
use memory_core::PAGE_BYTES;
use memory_host::{Address, Admission, Leases, Loan, Server};
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

#[derive(Args)]
#[command(after_help = "Example:\n  pando mem serve --size 8GiB --listen 127.0.0.1:7070")]
pub struct Serve {
    /// Memory to lend
    #[arg(long, value_parser = size::parse)]
    size: u64,
    /// Most memory for one borrower of --borrowers, one machine, or one user by a unix socket;
    /// default: all
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    most_each: Option<u64>,
    /// Address: HOST:PORT, or unix:PATH to share the memory itself within this machine;
    /// repeatable
    #[arg(long, required = true)]
    listen: Vec<Address>,
    /// File with the token that borrowers must show, 8 to 32 bytes
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// File with a line for each borrower: its name and its own token. Read again when it changes
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    borrowers: Option<PathBuf>,
    /// For experiments: delay every answer by this many microseconds
    #[arg(long, default_value_t = 0)]
    delay_us: u64,
    /// For tests: flip a bit in one of every N pages read
    #[arg(long, default_value_t = 0, hide = true)]
    lie_every: u64,
}

impl Serve {
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        if self.size < PAGE_BYTES as u64 {
            let (size, page) = (size::show(self.size), size::show(PAGE_BYTES as u64));
            return Err(refusal::invalid(format!(
                "{size} is too little to lend: a page has {page}"
            ))
            .into());
        }
        let free = available_bytes();
        if self.size > free {
            return Err(refusal::refused(format!(
                "cannot lend {}: only {} of memory are available on this machine; lower --size",
                size::show(self.size),
                size::show(free)
            ))
            .into());
        }
        let slots = self.size / PAGE_BYTES as u64;
        let slots_each = self.most_each.unwrap_or(self.size) / PAGE_BYTES as u64;
        if slots_each == 0 {
            return Err(refusal::invalid(
                "--most-each is less than a page, so no borrower gets memory; raise it".to_string(),
            )
            .into());
        }
        let mut list = self.borrowers.as_deref().map(List::read).transpose()?;
        let server = Arc::new(Server {
            leases: Arc::new(Leases::new(slots, slots_each)),
            admission: match &list {
                Some(list) => Admission::Each(RwLock::new(list.now.clone())),
                None => Admission::Shared(token(self.token_file.as_deref())?),
            },
            delay: Duration::from_micros(self.delay_us),
            lie_every: self.lie_every,
        });
        let ending = ending();
        for address in &self.listen {
            let bound = server.listen(address).map_err(|e| {
                refusal::of(&e, format!("cannot listen at {address}: {e}; choose another --listen"))
            })?;
            let is_remote = matches!(address, Address::Tcp(a) if !a.starts_with("127."));
            if is_remote && self.token_file.is_none() && list.is_none() {
                eprintln!("pando-mem: warning: any client of {bound} may borrow; use --borrowers");
            }
            println!("lending {} at {bound}", size::show(self.size));
        }
        loop {
            let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
            let signal = unsafe { libc::sigtimedwait(&ending, std::ptr::null_mut(), &second) };
            if signal > 0 {
                eprint!("{}", lost(&server.leases.loans()));
                // As it ends without a word.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &ending, std::ptr::null_mut());
                    libc::raise(signal);
                }
            }
            server.leases.sweep();
            match list.as_mut().map_or(Ok(None), List::changed) {
                Ok(None) => {}
                Ok(Some(borrowers)) => server.admission.replace(borrowers),
                Err(refusal) => {
                    eprintln!("pando-mem: warning: {refusal}; the borrowers stay as they were")
                }
            }
        }
    }
}

/// Blocks the signals that end this process, in all threads that start from here on; those that are
/// ignored stay so.
fn ending() -> libc::sigset_t {
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut now);
            if now.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    }
}

/// Most leases that are named; further ones are counted.
const LOANS_MAX: usize = 20;

/// Returns the leases that end with this process, and their borrowers.
fn lost(loans: &[Loan]) -> String {
    let mut out = String::new();
    for loan in loans.iter().take(LOANS_MAX) {
        let bytes = size::show(loan.slots * PAGE_BYTES as u64);
        out += &format!(
            "pando-mem: ending with {bytes} lent to {}, {} connections\n",
            loan.borrower, loan.connections
        );
    }
    if loans.len() > LOANS_MAX {
        out += &format!("pando-mem: and {} more leases\n", loans.len() - LOANS_MAX);
    }
    out
}

/// Returns the memory that this machine could give without swapping.
pub fn available_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(u64::MAX, |k| k << 10)
}

#[cfg(test)]
mod tests;
