//! `pando fn log`: the process that keeps the output log.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use clap::Args;
use pando_outlog::orders::Orders;
use pando_outlog::server::Server;
use pando_unit::unit;
use pando_walls::sandbox;

use super::failure::Failure;

/// Takes a tenant's place in the choice of a user. No tenant has a space in its name.
const USER: &str = "output log";

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "Example: pando fn log --listen 192.0.2.2:7001, and on the unit's host: pando fn \
        run nat.wasm --set address=192.0.2.1 --iface lan --durability log --log 192.0.2.2:7001"
)]
#[group(required = true, multiple = false)]
pub struct Log {
    /// Address and port for units of other hosts; their messages are neither encrypted nor
    /// authenticated
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    #[arg(long, hide = true)]
    inside: bool,
}

impl Log {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let internal =
            |what: &'static str| move |e: std::io::Error| Failure::Internal(format!("{what}: {e}"));
        let signals = unit::signals().map_err(internal("signals"))?;
        let listener = self.listen.map(TcpListener::bind).transpose();
        let listener = listener.map_err(|e| {
            Failure::Invalid(format!("listen on {}: {e}", self.listen.expect("it was given")))
        })?;
        let orders = self.inside.then(Orders::inherited);
        let address = listener.as_ref().and_then(|l| l.local_addr().ok());
        sandbox::enter(USER).map_err(internal("close the walls around the log"))?;
        if let Some(address) = address {
            tell!("the output log listens on {address}");
        }
        Server::new(orders, listener, signals.as_raw_fd())
            .run()
            .map_err(internal("the output log"))?;
        Ok(ExitCode::SUCCESS)
    }
}
