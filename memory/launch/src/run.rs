//! `pando mem run`: checks everything, leases the memory, and becomes the program.

use crate::kernel::Kernel;
use crate::lease::Lease;
use crate::mode::Mode;
use crate::refusal::{self, Refusal};
use crate::size::Local;
use crate::{counters, elf, kernel, lease, size, token};
use clap::{Args, ValueEnum};
use memory_core::PAGE_BYTES;
use memory_core::wire::TOKEN_BYTES;
use memory_host::Address;
use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The least local memory.
const LOCAL_BYTES_MIN: u64 = 16 << 20;
const HOSTS_MAX: usize = 4;
/// Most pages, local and far, that can be numbered: 2 TiB.
const PAGES_MAX: u64 = 1 << 29;

#[derive(Args)]
#[command(
    after_help = "Example:\n  pando mem run --local 256MiB --from 127.0.0.1:7070 -- redis-server \
        --save ''"
)]
pub struct Run {
    /// Local memory of the whole program: a size, or a share of the far size (25%)
    #[arg(long)]
    local: Local,
    /// Memory hosts: HOST:PORT or unix:PATH, comma-separated. With two or more, every page is on
    /// two of them
    #[arg(long, required = true, value_delimiter = ',')]
    from: Vec<String>,
    /// Far memory to borrow [default: all that the first host has free]
    #[arg(long, value_parser = size::parse)]
    far: Option<u64>,
    /// Neighbours to fetch along with a missing page
    #[arg(long, value_enum, default_value = "extent")]
    prefetch: Prefetch,
    /// A guide for this program: redis
    #[arg(long, value_enum)]
    guide: Option<Guide>,
    /// Handler of page faults
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// Copies of every page [default: 2 with two hosts or more]
    #[arg(long)]
    copies: Option<usize>,
    /// Longest wait for a silent memory host with the only copy; a host that is gone ends the
    /// program at once
    #[arg(long, default_value = "60s", value_parser = size::time)]
    patience: Duration,
    /// File with the token that the hosts want
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Encrypt pages before they leave the program [auto: unless all hosts share memory with it]
    #[arg(long, value_enum, default_value = "auto")]
    encrypt: Encrypt,
    /// For tests: copy pages, as before Linux 6.8
    #[arg(long, hide = true)]
    copy_pages: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Prefetch {
    None,
    Sequential,
    Stride,
    Extent,
}

#[derive(Clone, Copy, ValueEnum)]
enum Encrypt {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, ValueEnum)]
enum Guide {
    Redis,
}

/// The leases of a start, one for each host of `--from`. A refused start drops them, which gives
/// them back.
struct Borrowed {
    leases: Vec<Lease>,
    token: [u8; TOKEN_BYTES],
    copies: usize,
    /// Pages of each copy.
    slots: u64,
}

impl Run {
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let program = elf::inspect(&self.program[0])?;
        let kernel = self.kernel(&program)?;
        let sigbus = self.mode.is_sigbus(kernel.threads, &self.program[0], program.raw_syscalls)?;
        let beside = beside()?;
        let pager = library(&beside, "libpando_pager.so")?;
        let borrowed = self.borrow()?;
        let local = self.local_bytes(borrowed.slots)?;
        let counters = handed_on(counters::create()?)?;
        let mut command = self.command(&program, &beside, pager)?;
        command.env(
            "PANDO_MEM",
            self.config(&program, sigbus, kernel.moves, local, &borrowed, &counters),
        );
        let e = command.exec();
        Err(refusal::of(&e, format!("cannot start {}: {e}", program.path.display())).into())
    }

    /// Returns the abilities of the machine, if they are enough for the program.
    fn kernel(&self, program: &elf::Program) -> Result<Kernel, Refusal> {
        let kernel = kernel::probe()?;
        let moves = kernel.moves && !self.copy_pages;
        if !moves && program.raw_syscalls {
            return Err(refusal::unsupported(format!(
                "{} uses io_uring, which writes into pages that the pager copies: boot Linux 6.8 \
                 or newer",
                self.program[0]
            )));
        }
        Ok(Kernel { moves, ..kernel })
    }

    /// Returns the number of copies, if `--from` has a host for each.
    fn checked_copies(&self) -> Result<usize, Refusal> {
        let copies = self.copies.unwrap_or(self.from.len().min(2)).max(1);
        if copies > self.from.len() || self.from.len() > HOSTS_MAX {
            return Err(refusal::invalid(format!(
                "{copies} copies want at least {copies} and at most {HOSTS_MAX} hosts in --from; \
                 there are {}",
                self.from.len()
            )));
        }
        if let Some(twice) =
            self.from.iter().enumerate().find(|(i, name)| self.from[..*i].contains(name))
        {
            return Err(refusal::invalid(format!(
                "{} stands twice in --from: its loss would take both copies; name two memory hosts",
                twice.1
            )));
        }
        Ok(copies)
    }

    /// Leases far memory from the first hosts, and adds the others as spares.
    fn borrow(&self) -> Result<Borrowed, Refusal> {
        let copies = self.checked_copies()?;
        let token = token::token(self.token_file.as_deref())?;
        if let Local::Bytes(n) = self.local {
            enough(n)?;
        }
        let mut borrowed = Borrowed {
            leases: vec![],
            token,
            copies,
            slots: self.far.unwrap_or(0) / PAGE_BYTES as u64,
        };
        for (i, name) in self.from.iter().enumerate() {
            let address: Address = name.parse().map_err(refusal::invalid)?;
            let l = if i < copies {
                lease::open(&address, name, &token, borrowed.slots)?
            } else {
                lease::spare(&address, name)?
            };
            borrowed.slots = borrowed.slots.max(l.slots);
            borrowed.leases.push(l);
        }
        Ok(borrowed)
    }

    /// Whether pages leave the program encrypted.
    fn is_encrypted(&self) -> bool {
        match self.encrypt {
            Encrypt::Auto => self.from.iter().any(|name| !name.starts_with("unix:")),
            Encrypt::Always => true,
            Encrypt::Never => false,
        }
    }

    /// Returns the local memory of the program, bytes, beside this many pages of far memory.
    fn local_bytes(&self, slots: u64) -> Result<u64, Refusal> {
        let far = slots.saturating_mul(PAGE_BYTES as u64);
        let local = match self.local {
            Local::Bytes(n) => n,
            Local::Percent(p) => (far as f64 * p / 100.0) as u64,
        };
        enough(local)?;
        if slots.saturating_add(local / PAGE_BYTES as u64) > PAGES_MAX {
            let (far, most) = (size::show(far), size::show(PAGES_MAX * PAGE_BYTES as u64));
            return Err(refusal::invalid(format!(
                "{far} of far memory and {} of local memory are more than {most}; lower --far",
                size::show(local)
            )));
        }
        Ok(local)
    }

    /// Returns the configuration that the pager reads from its environment.
    fn config(
        &self,
        program: &elf::Program,
        sigbus: bool,
        moves: bool,
        local: u64,
        borrowed: &Borrowed,
        counters: &File,
    ) -> String {
        let Borrowed { leases, token, copies, slots } = borrowed;
        let prefetch = self.prefetch.to_possible_value().expect("a value").get_name().to_string();
        format!(
            "exe={}:{} local={local} slots={slots} copies={copies} patience={} prefetch={prefetch} \
             mode={} pages={} sealed={} token={} stats={} {}",
            program.device,
            program.inode,
            self.patience.as_nanos(),
            if sigbus { "sigbus" } else { "thread" },
            if moves { "move" } else { "copy" },
            if self.is_encrypted() { "yes" } else { "no" },
            lease::hex(token),
            counters.as_raw_fd(),
            leases
                .iter()
                .map(|l| format!("host={}/{}", l.address, l.id))
                .collect::<Vec<_>>()
                .join(" ")
        )
    }

    /// Returns the command that starts the program, with its preloaded libraries, but without the
    /// pager's configuration.
    fn command(
        &self,
        program: &elf::Program,
        beside: &Path,
        pager: PathBuf,
    ) -> Result<Command, Refusal> {
        let mut preload = vec![pager];
        if !program.own_allocator {
            preload.push(jemalloc()?);
        }
        let mut command = Command::new(&program.path);
        command.arg0(&self.program[0]).args(&self.program[1..]);
        if let Some(Guide::Redis) = self.guide {
            command.arg("--loadmodule").arg(library(beside, "libpando_guide_redis.so")?);
        }
        let preload: Vec<String> = preload.iter().map(|p| p.display().to_string()).collect();
        command.env("LD_PRELOAD", preload.join(":"));
        // Freed memory returns late rather than page by page: every return would be a call into the
        // pager.
        if std::env::var_os("MALLOC_CONF").is_none() {
            command.env("MALLOC_CONF", "thp:never,metadata_thp:disabled");
        }
        Ok(command)
    }
}

/// Passes a file on to the program.
fn handed_on(file: File) -> Result<File, std::io::Error> {
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok(file),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn enough(local: u64) -> Result<(), Refusal> {
    if local < LOCAL_BYTES_MIN {
        return Err(refusal::invalid(format!(
            "{} of local memory is too little; give at least {}",
            size::show(local),
            size::show(LOCAL_BYTES_MIN)
        )));
    }
    Ok(())
}

/// Returns the folder of this executable.
fn beside() -> Result<PathBuf, Refusal> {
    let me =
        std::env::current_exe().map_err(|e| refusal::of(&e, format!("cannot find myself: {e}")))?;
    Ok(me.parent().map(Path::to_path_buf).unwrap_or_default())
}

fn library(dir: &Path, name: &str) -> Result<PathBuf, Refusal> {
    let path = dir.join(name);
    if !path.exists() {
        return Err(refusal::not_found(format!(
            "{} is missing: it belongs beside pando-mem; `make build` puts it there",
            path.display()
        )));
    }
    Ok(path)
}

/// Returns an allocator with mappings that can be interposed, for programs with the C library's
/// own.
fn jemalloc() -> Result<PathBuf, Refusal> {
    let places = [
        "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "/usr/lib64/libjemalloc.so.2",
        "/usr/lib/libjemalloc.so.2",
        "/usr/local/lib/libjemalloc.so.2",
    ];
    places.iter().map(PathBuf::from).find(|p| p.exists()).ok_or_else(|| {
        refusal::not_found(
            "the program uses the C library's allocator, which cannot be interposed: install \
             jemalloc (Debian: apt-get install libjemalloc2)",
        )
    })
}

#[cfg(test)]
mod tests;
