//! `pando fn log`: the process that keeps the output log.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};
use pando_outlog::orders::Orders;
use pando_outlog::server::{Bounds, Door, Server};
use pando_unit::unit;
use pando_walls::sandbox;

use super::failure::Failure;
use super::flags::name;
use super::{keys, out};

/// Takes a tenant's place in the choice of a user. No tenant has a space in its name.
const USER: &str = "output log";

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "Example: (umask 077; pando fn log --new-key default > log.keys), copy log.keys \
        to the unit's host, pando fn log --listen 192.0.2.2:7001 --keys log.keys, and on the \
        unit's host: pando fn run nat.wasm --set address=192.0.2.1 --iface lan --durability log \
        --log 192.0.2.2:7001 --log-key log.keys"
)]
#[command(group = ArgGroup::new("way").required(true).args(["listen", "new_key", "inside"]))]
pub struct Log {
    /// Address and port for units of other hosts; they prove a key of their tenant, and all that
    /// is sent is encrypted
    #[arg(long, value_name = "ADDRESS:PORT", requires = "keys")]
    listen: Option<SocketAddr>,
    /// A file with a line for each tenant: its name and its key
    #[arg(long, value_name = "FILE", requires = "listen")]
    keys: Option<PathBuf>,
    /// Memory for the units of one tenant
    #[arg(long, value_name = "MIB", default_value_t = 512, requires = "listen",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    tenant_mib: u64,
    /// Keep the state of a unit that is gone for this long; the next run of its name takes it up
    #[arg(long, value_name = "MINUTES", default_value_t = 60, requires = "listen",
        value_parser = clap::value_parser!(u64).range(1..=10_080))]
    keep_minutes: u64,
    /// Print a line with a new key of a tenant, and end
    #[arg(long, value_name = "TENANT", value_parser = name)]
    new_key: Option<String>,
    #[arg(long, hide = true)]
    inside: bool,
}

/// The log keeps at most this many connections and other files open.
const FILES_MAX: u64 = 8192;

impl Log {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if let Some(tenant) = &self.new_key {
            out::text(format_args!("{}\n", keys::new(tenant)?));
            return Ok(ExitCode::SUCCESS);
        }
        let internal =
            |what: &'static str| move |e: std::io::Error| Failure::Internal(format!("{what}: {e}"));
        let signals = unit::signals().map_err(internal("signals"))?;
        let door = self.door()?;
        let orders = self.inside.then(Orders::inherited);
        sandbox::enter(USER, None).map_err(internal("close the walls around the log"))?;
        if let Some(address) = self.listen.filter(|_| door.is_some()) {
            tell!("the output log listens on {address}");
        }
        Server::new(orders, door, signals.as_raw_fd()).run().map_err(internal("the output log"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the door for units of other hosts.
    fn door(&self) -> Result<Option<Door>, Failure> {
        let (Some(address), Some(file)) = (self.listen, &self.keys) else { return Ok(None) };
        let keys = keys::read(file)?;
        let invalid = |e| Failure::Invalid(format!("listen on {address}: {e}"));
        let listener = TcpListener::bind(address).map_err(invalid)?;
        let tenant_bytes = (self.tenant_mib << 20) as usize;
        let orphan = Duration::from_secs(60 * self.keep_minutes);
        let bounds = Bounds { tenant_bytes, orphan, ..Bounds::default() };
        let files = open_more_files().map_err(|e| Failure::Internal(format!("open files: {e}")))?;
        let bounds = Bounds { links: bounds.links.min(files * 3 / 4), ..bounds };
        Door::new(listener, keys, bounds).map(Some).map_err(invalid)
    }
}

/// Raises the number of files that this process may open; returns it.
fn open_more_files() -> std::io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write one limit, which lives meanwhile.
    let set = unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_cur.max(FILES_MAX.min(limit.rlim_max));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    if set < 0 { Err(std::io::Error::last_os_error()) } else { Ok(limit.rlim_cur as usize) }
}
