//! One unit of a group. `pando fn run --units` starts it in a network namespace with one device,
//! and passes it the descriptors that the group shares.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use pando_group::chaos::Chaos;
use pando_group::shared::{Shared, SharedMemory};
use pando_group::store::Store;
use pando_group::transport::{Transport, Udp};
use pando_handover::{Timing, UNITS_MAX, UnitId};
use pando_net::packet::{self, Port};
use pando_unit::member::{Member as Core, Membership};
use pando_unit::unit::{self, Unit};

use super::chain::ChainArgs;
use super::failure::Failure;
use super::flags::name;
use super::limits::LimitArgs;
use super::out;
use super::places::Places;
use super::run::READY;

/// Arguments.
#[derive(Args)]
pub struct Member {
    #[command(flatten)]
    chain: ChainArgs,
    #[arg(long)]
    iface: String,
    #[arg(long, value_parser = name)]
    name: String,
    #[arg(long, default_value = "default", value_parser = name)]
    tenant: String,
    #[arg(long, default_value_t = packet::RING_FRAMES)]
    ring_frames: usize,
    /// Its number in the group
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..UNITS_MAX as i64))]
    unit: UnitId,
    /// T of the steering, in nanoseconds: state is pushed after half of it
    #[arg(long)]
    gap_ns: u64,
    /// The most bits per second that the unit serves
    #[arg(long)]
    capacity_bits: Option<u64>,
    /// Bits per second that the unit is assumed to serve
    #[arg(long, default_value_t = 1_000_000_000)]
    nominal_bits: u64,
    /// Descriptor of the group's memory; the eventfds of all units follow it
    #[arg(long)]
    memory_fd: RawFd,
    /// Descriptor of a UDP socket for messages
    #[arg(long, requires = "peers")]
    udp_fd: Option<RawFd>,
    /// Addresses of all units, by their numbers
    #[arg(long, value_delimiter = ',')]
    peers: Vec<SocketAddr>,
    /// LOSS,REPETITION,DISORDER,SEED: disturbance of packets and messages, in percent
    #[arg(long)]
    chaos: Option<Chaos>,
    /// Number of the unit that is the group's output log
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..UNITS_MAX as i64))]
    output_log: Option<UnitId>,
    /// Socket of a Redis that holds the states instead of the units
    #[arg(long)]
    state_store: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    places: Places,
}

/// A descheduled unit is not dead, and the group reports dead units. A long deadline therefore
/// delays only flows with a hanging owner.
const DEADLINE_NS: u64 = 10_000_000_000;

/// On one host, packets from steering to units are seldom lost, but a busy processor delays them. A
/// unit that answers a pull before they arrive has to refuse them.
const SETTLE_NS: u64 = 100_000_000;

impl Member {
    pub fn run(self) -> Result<ExitCode, Failure> {
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: as above. The kernel may round a sleep up by 1 µs, not by 50.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
        let mut member = match self.prepare() {
            Ok(member) => member,
            Err(reason) => {
                out::text(format_args!("{reason}"));
                return Ok(ExitCode::FAILURE);
            }
        };
        out::text(format_args!("{}", str::from_utf8(READY).expect("it is text")));
        // SAFETY: nothing writes to standard output after this. The reader takes the end of file as
        // ready.
        unsafe { libc::close(1) };
        member.run().map_err(|e| Failure::Internal(format!("the unit's loop: {e}")))?;
        pando_walls::say!("{}", serde_json::to_string(&member.status()).expect("a status is JSON"));
        Ok(ExitCode::SUCCESS)
    }

    fn prepare(&self) -> Result<Core, Failure> {
        let internal =
            |what: &'static str| move |e: std::io::Error| Failure::Internal(format!("{what}: {e}"));
        self.limits.enter()?;
        let place = self.places.unit(&self.name);
        let signals = unit::signals().map_err(internal("signals"))?;
        let open = || {
            Port::open(&self.iface, self.ring_frames)
                .map_err(|e| Failure::of_device(&self.iface, &e))
        };
        let (port, code) = self.chain.prepare_while(&self.places.compiler(&self.tenant)?, open)?;
        std::fs::create_dir_all(&place.directory).map_err(internal("make the unit's directory"))?;
        let _ = std::fs::remove_file(place.control());
        let control =
            UnixListener::bind(place.control()).map_err(internal("bind the control socket"))?;
        control.set_nonblocking(true).map_err(internal("the control socket"))?;
        let mut meter = self.places.meter(&self.tenant, &self.name)?;
        let group =
            self.membership(self.store()?).map_err(internal("open the memory of the group"))?;
        pando_walls::sandbox::enter(&self.tenant, self.udp_fd)
            .map_err(internal("close the walls around the unit"))?;
        let force = code.force.clone();
        let chain = self.chain.start(code)?;
        let names: Vec<&str> = chain.names().collect();
        meter.name(&names).map_err(|e| Failure::Invalid(e.to_string()))?;
        let mut unit = Unit::new(
            self.name.clone(),
            self.tenant.clone(),
            chain,
            vec![port.into()],
            meter,
            control,
            signals,
        );
        unit.limits = self.limits.limits();
        force.iter().for_each(|force| pando_walls::say!("{force}"));
        unit.rules = force;
        Ok(Core::new(unit, group))
    }

    fn store(&self) -> Result<Option<Store>, Failure> {
        let connect = |path: &PathBuf| {
            let reason = |e| {
                Failure::Invalid(format!(
                    "--state-store {}: {e}: want the socket of a Redis that runs",
                    path.display()
                ))
            };
            Store::connect(path).map_err(reason)
        };
        self.state_store.as_ref().map(connect).transpose()
    }

    fn membership(&self, store: Option<Store>) -> std::io::Result<Membership> {
        // SAFETY: the group opened these for this process, and nothing else uses them.
        let own = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
        let memory = own(self.memory_fd);
        let transport: Box<dyn Transport> = match self.udp_fd {
            Some(fd) => Box::new(Udp::new(
                self.unit,
                UdpSocket::from(own(fd)),
                self.peers.iter().copied().map(Some).collect(),
            )?),
            None => {
                let bells = (1..=UNITS_MAX as RawFd).map(|n| own(self.memory_fd + n)).collect();
                Box::new(SharedMemory::new(self.unit, Shared::open(&memory)?, bells))
            }
        };
        Ok(Membership {
            id: self.unit,
            shared: Arc::new(Shared::open(&memory)?),
            transport,
            timing: Timing {
                push_after_ns: self.gap_ns / 2,
                settle_ns: SETTLE_NS,
                deadline_ns: DEADLINE_NS,
                ..Timing::default()
            },
            capacity_bits: self.capacity_bits,
            nominal_bits: self.nominal_bits,
            chaos: self.chaos.clone(),
            log: self.output_log,
            store,
        })
    }
}
