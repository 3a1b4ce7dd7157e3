//! `pando mem serve`.

use crate::size;
use clap::Args;
use farmem_core::wire::TOKEN_BYTES;
use farmem_core::PAGE_BYTES;
use farmem_host::{Address, Leases, Server};
use std::error::Error;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Args)]
#[command(after_help = "Example:\n  pando mem serve --size 8GiB --listen 127.0.0.1:7070")]
pub struct Serve {
    /// How much to lend
    #[arg(long, value_parser = size::parse)]
    size: u64,
    /// Where to listen: HOST:PORT or unix:PATH (programs on this machine then share the memory itself); repeatable
    #[arg(long, required = true)]
    listen: Vec<Address>,
    /// File with the token that borrowers must show, 8 to 32 bytes
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// For experiments: hold every answer back, microseconds
    #[arg(long, default_value_t = 0)]
    delay_us: u64,
    /// For tests: flip a bit in one of every N pages read
    #[arg(long, default_value_t = 0, hide = true)]
    lie_every: u64,
}

impl Serve {
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        if self.size < PAGE_BYTES as u64 {
            return Err(format!("{} is too little to lend: a page has {}", size::show(self.size), size::show(PAGE_BYTES as u64)).into());
        }
        let free = available_bytes();
        if self.size > free {
            return Err(format!(
                "cannot lend {}: only {} of memory are available on this machine; lower --size",
                size::show(self.size),
                size::show(free)
            )
            .into());
        }
        let slots = self.size / PAGE_BYTES as u64;
        let server = Arc::new(Server {
            leases: Arc::new(Leases::new(slots)),
            token: token(self.token_file.as_deref())?,
            delay: Duration::from_micros(self.delay_us),
            lie_every: self.lie_every,
        });
        for address in &self.listen {
            let bound = server.listen(address).map_err(|e| format!("cannot listen at {address}: {e}; choose another --listen"))?;
            if matches!(address, Address::Tcp(a) if self.token_file.is_none() && !a.starts_with("127.")) {
                eprintln!("pando-mem: warning: whoever reaches {bound} may borrow; give a --token-file");
            }
            println!("lending {} at {bound}", size::show(self.size));
        }
        loop {
            std::thread::sleep(Duration::from_secs(5));
            server.leases.sweep();
        }
    }
}

/// The token of a file as it goes over the wire; without a file, zeros.
pub fn token(path: Option<&std::path::Path>) -> Result<[u8; TOKEN_BYTES], String> {
    let mut token = [0; TOKEN_BYTES];
    let Some(path) = path else { return Ok(token) };
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!(
            "cannot read the token file {0}: {e}; `head -c 24 /dev/urandom | base64 >{0}` makes one, the same for both sides",
            path.display()
        ),
        _ => format!("cannot read the token file {}: {e}", path.display()),
    })?;
    let text = text.trim_end();
    if !(8..=TOKEN_BYTES).contains(&text.len()) {
        return Err(format!("the token in {} has {} bytes; it wants 8 to {TOKEN_BYTES}", path.display(), text.len()));
    }
    token[..text.len()].copy_from_slice(text.as_bytes());
    Ok(token)
}

/// Memory that this machine could give without swapping.
pub fn available_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(u64::MAX, |k| k << 10)
}
