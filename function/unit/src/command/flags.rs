//! The flags of `pando fn run`, and the unit that they describe.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pando_net::packet;
use pando_net::port::{Port, Wanted};
use pando_unit::unit::Unit;

use super::chain::{ChainArgs, name_of};
use super::failure::Failure;
use super::limits::LimitArgs;
use super::places::Places;

/// Arguments. `pando fn run` has the help that users read (cmd/pando/function/flags.go).
#[derive(Args, Clone)]
pub struct Run {
    #[command(flatten)]
    pub chain: ChainArgs,
    /// The device with the packets for the functions
    #[arg(long)]
    pub iface: String,
    /// The other device: packets of --iface leave by it, and its packets leave by --iface; without
    /// it, they return by --iface
    #[arg(long)]
    pub out: Option<String>,
    /// How to receive packets: AF_PACKET, AF_XDP, or (auto) AF_XDP on a physical device that
    /// supports it
    #[arg(long, value_enum, default_value_t)]
    port: Way,
    /// Name of the unit
    #[arg(long, default_value = "", value_parser = name, overrides_with = "name")]
    pub name: String,
    /// The tenant that pays
    #[arg(long, default_value = "default", value_parser = name)]
    pub tenant: String,
    /// Return when the unit is ready, and leave it running
    #[arg(short, long)]
    pub detach: bool,
    /// Start the unit again when it crashes
    #[arg(long)]
    pub restart: bool,
    /// Frames that can wait while the unit is off its core
    #[arg(long, default_value_t = packet::RING_FRAMES)]
    ring_frames: usize,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub places: Places,
    #[command(flatten)]
    pub durable: DurableArgs,
    #[arg(long, hide = true)]
    pub inside: bool,
    /// The process that stays and starts the unit again
    #[arg(long, hide = true)]
    pub watcher: bool,
}

/// How to receive packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    #[default]
    Auto,
    Packet,
    Xdp,
}

pub fn name(text: &str) -> Result<String, String> {
    let good = text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !text.starts_with('.');
    if good { Ok(text.to_owned()) } else { Err("at most 63 letters, digits, -, _ and .".into()) }
}

/// Whether there is an output log, and its place.
#[derive(Args, Clone)]
pub struct DurableArgs {
    /// Protection from crashes: none, or log (an output log and a standby unit keep everything that
    /// was sent)
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// The output log on another host, run there by `pando fn log --listen`; without it, a process
    /// here
    #[arg(long, value_name = "HOST:PORT", requires = "durability", requires = "log_key")]
    pub log: Option<String>,
    /// A file with the tenant's key at that log, as `pando fn log --new-key` prints it
    #[arg(long, value_name = "FILE", requires = "log")]
    pub log_key: Option<PathBuf>,
    /// Without an output log: no packet leaves (stop), or packets leave without the protection from
    /// crashes (go-on)
    #[arg(long, value_enum, default_value_t)]
    pub on_log_lost: OnLogLost,
    /// With --on-log-lost go-on: wait this many milliseconds for a log first
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    pub log_lost_ms: u64,
    /// Kill a unit after this many milliseconds without a sign of life; its standby follows
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(200..))]
    pub hang_ms: u64,
    #[arg(long, hide = true)]
    pub unit: bool,
}

/// The cost of a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// The state of all flows.
    #[default]
    None,
    /// Nothing that was already sent: an output log outlives the unit.
    Log,
}

/// The way of a unit without an output log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLogLost {
    /// Packets wait.
    #[default]
    Stop,
    /// Packets leave.
    GoOn,
}

impl DurableArgs {
    /// Returns the longest wait for an output log; `None` waits for ever.
    pub fn patience(&self) -> Option<Duration> {
        (self.on_log_lost == OnLogLost::GoOn).then(|| Duration::from_millis(self.log_lost_ms))
    }
}

impl Run {
    fn devices(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.iface).chain(&self.out)
    }

    /// Opens the devices.
    pub fn open_ports(&self) -> Result<Vec<Port>, Failure> {
        let wanted = match (self.port, self.durable.durability) {
            // The next unit continues in the ring, so the ring must outlive the unit.
            (Way::Xdp, Durability::Log) => {
                return Err(Failure::Invalid(
                    "--durability log needs a ring that outlives the unit: --port packet".into(),
                ));
            }
            (Way::Packet, _) | (_, Durability::Log) => Wanted::Packet,
            (Way::Auto, _) => Wanted::Auto,
            (Way::Xdp, _) => Wanted::Xdp,
        };
        self.devices()
            .map(|device| {
                let open = || {
                    let mut port = Port::open(device, self.ring_frames, wanted)?;
                    // On one device alone, packets for other hosts would be sent again.
                    if self.out.is_some() {
                        port.pass_all()?;
                    }
                    Ok(port)
                };
                open().map_err(|e: std::io::Error| Failure::of_device(device, &e))
            })
            .collect()
    }

    /// Adopts devices that another process opened.
    pub fn adopt_ports(&self, sockets: Vec<OwnedFd>) -> Result<Vec<Port>, Failure> {
        let adopt =
            |(device, socket): (&String, OwnedFd)| Port::adopt(socket, device, self.ring_frames);
        self.devices()
            .zip(sockets)
            .map(|pair| {
                adopt(pair).map_err(|e| Failure::Internal(format!("map a device's ring: {e}")))
            })
            .collect()
    }

    /// Binds the unit's control socket.
    pub fn bind_control(&self) -> Result<UnixListener, Failure> {
        let path = self.places.unit(&self.name).control();
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path)
            .and_then(|control| control.set_nonblocking(true).map(|()| control));
        bound.map_err(|e| Failure::Internal(format!("bind {}: {e}", path.display())))
    }

    /// Makes a sandboxed unit on the ports from `open`. Its functions are compiled before it enters
    /// the sandbox, and run only inside it. Returns also the digest of the chain.
    pub fn assemble(
        &self,
        open: impl FnOnce() -> Opened + Send,
        control: UnixListener,
        signals: OwnedFd,
    ) -> Result<(Unit, u64), Failure> {
        let (ports, code) = self.chain.prepare_while(&self.places.compiler(&self.tenant)?, open)?;
        let (force, digest) = (code.force.clone(), code.digest);
        let mut meter = self.places.meter(&self.tenant, &self.name)?;
        pando_walls::sandbox::enter(&self.tenant, None)
            .map_err(|e| Failure::Internal(format!("close the walls around the unit: {e}")))?;
        let chain = self.chain.start(code)?;
        let names: Vec<&str> = chain.names().collect();
        meter.name(&names).map_err(|e| Failure::Invalid(e.to_string()))?;
        let ways: Vec<String> = ports.iter().map(Port::to_string).collect();
        pando_walls::say!(
            "unit {} of tenant {}: {} on {}, epoch {}",
            self.name,
            self.tenant,
            name_of(&chain),
            ways.join(", "),
            meter.epoch
        );
        let mut unit = Unit::new(
            self.name.clone(),
            self.tenant.clone(),
            chain,
            ports,
            meter,
            control,
            signals,
        );
        unit.limits = self.limits.limits();
        unit.rules = force;
        Ok((unit, digest))
    }
}

type Opened = Result<Vec<Port>, Failure>;
