//! `pando fn run --durability log`: a unit, its standby, their output log, and the process that
//! watches them.
//!
//! ```text
//!   watching process: opens devices and the control socket, lends them to all; settles bills
//!      ├── unit     ──────────── link ───┐
//!      ├── standby  ──────────── link ───┤  waits for the unit's death, takes over by itself
//!      └── log      ◄────────────────────┘  here, or `pando fn log` on another host
//! ```
//!
//! A dead process is replaced; a dead unit is replaced by its standby. A unit without a sign of
//! life is killed first, so there are never two.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::time::Duration;

use pando_chain::Work;
use pando_meter::Meter;
use pando_net::port::Port;
use pando_outlog::hold::Watcher;
use pando_outlog::journal::Journal;
use pando_outlog::keys::Key;
use pando_outlog::link::Shared;
use pando_outlog::orders::{self, Orders};
use pando_outlog::record::Hello;
use pando_outlog::sealed::{self, Session};
use pando_outlog::standby::{self, Call};
use pando_outlog::vitals::{self, Vitals};
use pando_unit::unit::{self, Unit};

use super::failure::Failure;
use super::flags::Run;
use super::keys;
use super::process::{Process, internal};

/// The run ends after this many deaths in a row without a finished batch.
const DEATHS_MAX: u32 = 10;
/// Pause between two connections to a log on another host.
const CALL_AGAIN: Duration = Duration::from_millis(100);

struct Watch<'a> {
    run: &'a Run,
    signals: OwnedFd,
    ports: Vec<OwnedFd>,
    control: UnixListener,
    page: OwnedFd,
    vitals: Vitals,
    unit: Process,
    standby: Option<Process>,
    log: Option<Process>,
    /// The log on another host, and the tenant's key there.
    address: Option<(SocketAddr, Key)>,
    /// The log's host does not answer, and this has been reported.
    away: bool,
    /// Links so far.
    links: u64,
    /// Deaths of units in a row without progress.
    deaths: u32,
    positions: [u64; 2],
}

/// Runs until it is stopped. Calls `ready` once the first unit serves.
pub fn supervise(run: &Run, ready: impl FnOnce()) -> Result<ExitCode, Failure> {
    let mut watch = Watch::start(run)?;
    ready();
    let ended = watch.watch();
    watch.end();
    ended.map(|()| ExitCode::SUCCESS)
}

/// Returns the message about a log's host that does not answer, or answers again.
fn away(address: SocketAddr, why: Option<io::Error>, patience: Option<Duration>) -> String {
    let then = match patience {
        Some(patience) => format!("after {patience:?} packets leave without it"),
        None => "no packet leaves until it does".to_owned(),
    };
    match why {
        Some(e) if e.kind() == io::ErrorKind::PermissionDenied => format!(
            "the output log at {address} lets this unit not in ({e}): {then}; compare the files of \
             --log-key and, there, --keys"
        ),
        Some(e) => {
            format!(
                "the output log at {address} does not answer ({e}): {then}; there: \
                 `pando fn log --listen {address} --keys FILE`"
            )
        }
        None => format!("the output log at {address} answers"),
    }
}

impl<'a> Watch<'a> {
    fn start(run: &'a Run) -> Result<Watch<'a>, Failure> {
        let signals = unit::signals().map_err(internal("signals"))?;
        let address = elsewhere(run)?;
        let opened = run.open_ports()?;
        let ports: Vec<OwnedFd> = opened
            .iter()
            .map(Port::share)
            .collect::<Result<_, _>>()
            .map_err(internal("share a device"))?;
        drop(opened);
        let control = run.bind_control()?;
        let page = vitals::memory().map_err(internal("shared memory"))?;
        let vitals = Vitals::map(page.as_fd()).map_err(internal("shared memory"))?;
        vitals.make_hold().map_err(internal("shared memory"))?;
        vitals.set_run(u64::from_le_bytes(keys::random()?));
        let log = if address.is_none() { Some(Process::log()?) } else { None };
        let mut unit = Process::unit(&ports, &control, &page)?;
        unit.ready().inspect_err(|_| unit.kill())?;
        unit.send("serve", &[]);
        unit.serving = true;
        let mut watch = Watch {
            run,
            signals,
            ports,
            control,
            page,
            vitals,
            unit,
            standby: None,
            log,
            address,
            away: false,
            links: 0,
            deaths: 0,
            positions: [0; 2],
        };
        watch.link();
        watch.stand_by()?;
        Ok(watch)
    }

    /// Starts a standby for the unit.
    fn stand_by(&mut self) -> Result<(), Failure> {
        let standby = Process::unit(&self.ports, &self.control, &self.page)?;
        self.vitals.set_followed(0);
        standby.watch(&self.unit);
        self.standby = Some(standby);
        self.link();
        Ok(())
    }

    /// Gives a link to each process without one.
    fn link(&mut self) {
        let before = self.unit.link;
        for process in [Some(&mut self.unit), self.standby.as_mut()]
            .into_iter()
            .flatten()
            .filter(|p| p.link == 0)
        {
            self.links += 1;
            let order = format!("log {}", self.links);
            let linked = match (&self.log, self.address) {
                (Some(log), _) => Shared::make().map(|(memory, unit, socket)| {
                    log.send("link", &[memory.as_fd(), socket.as_fd()]);
                    process.send(&order, &[memory.as_fd(), unit.as_fd()]);
                    process.memory = Some(memory);
                }),
                (None, Some((address, key))) => {
                    call(address, &self.run.tenant, &key).map(|(socket, session)| {
                        let order = format!("{order} {}", session.word());
                        process.send(&order, &[socket.as_fd()]);
                    })
                }
                (None, None) => Err(io::ErrorKind::NotConnected.into()),
            };
            process.link = if linked.is_ok() { self.links } else { 0 };
            if let (Some((address, _)), true) = (self.address, self.away == linked.is_ok()) {
                self.away = !self.away;
                pando_walls::say!("{}", away(address, linked.err(), self.run.durable.patience()));
            }
        }
        if let Some(standby) = self.standby.as_ref().filter(|_| self.unit.link != before) {
            standby.watch(&self.unit);
        }
    }

    fn watch(&mut self) -> Result<(), Failure> {
        let (mut beats, mut silent) = (0, 0);
        loop {
            let alive = |p: Option<&Process>| {
                p.map_or([-1, -1], |p| [p.pidfd.as_raw_fd(), p.orders.as_raw_fd()])
            };
            let [unit, said] = alive(Some(&self.unit));
            let [standby, answered] = alive(self.standby.as_ref());
            let [log, _] = alive(self.log.as_ref());
            let unlinked =
                self.unit.link == 0 || self.standby.as_ref().is_some_and(|s| s.link == 0);
            let quarter = Duration::from_millis(self.run.durable.hang_ms / 4);
            let round = if unlinked { quarter.min(CALL_AGAIN) } else { quarter };
            let ready = orders::poll(
                &[self.signals.as_raw_fd(), unit, said, standby, answered, log],
                round.as_millis() as i32,
            )
            .map_err(internal("wait for the unit"))?;
            if ready[0] {
                return Ok(());
            }
            self.listen(ready[2], ready[4])?;
            if ready[5] {
                self.bury_log()?;
            }
            if ready[3] && !ready[1] {
                self.standby_died()?;
            }
            if ready[1] && self.bury_unit()? {
                return Ok(());
            }
            // In a round without an event, the unit should have given a sign of life.
            let now = self.vitals.beats();
            silent = if now != beats || ready.contains(&true) || !self.unit.serving {
                0
            } else {
                silent + 1
            };
            beats = now;
            if silent >= 4 {
                pando_walls::say!(
                    "the unit gave no sign of life for {} ms and is killed",
                    self.run.durable.hang_ms
                );
                let _ = self.unit.child.kill();
                silent = 0;
            }
            self.link();
        }
    }

    fn listen(&mut self, unit: bool, standby: bool) -> Result<(), Failure> {
        let mut said = Vec::new();
        if unit && let Ok(order) = self.unit.orders.receive(false) {
            said.push((order.text, true));
        }
        if standby && let Some(Ok(order)) = self.standby.as_ref().map(|s| s.orders.receive(false)) {
            said.push((order.text, false));
        }
        for (text, by_unit) in said {
            match text.as_str() {
                "ready" => {}
                lost if lost.starts_with("lost ") || lost.starts_with("unlinked ") => {
                    self.lost(lost, by_unit)?
                }
                taken if taken.starts_with('{') => {
                    self.settle(taken)?;
                    // The report may arrive before the predecessor's end is noticed here, or is
                    // complete.
                    if !by_unit {
                        self.unit.child.wait().map_err(internal("wait for the unit"))?;
                        self.bury_unit()?;
                    }
                    self.unit.serving = true;
                    self.stand_by()?;
                }
                reason => pando_walls::say!("a unit does not start: {reason}"),
            }
        }
        Ok(())
    }

    /// Notes that a unit needs another link. A log of this host that lives but was lost has failed:
    /// kill it.
    fn lost(&mut self, said: &str, by_unit: bool) -> Result<(), Failure> {
        let number = said.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        let process = if by_unit { Some(&mut self.unit) } else { self.standby.as_mut() };
        if let Some(process) = process.filter(|p| p.link == number) {
            process.link = 0;
            if said.starts_with("lost ")
                && let Some(log) = &mut self.log
            {
                // Replace it here, so that no process gets a link to a dead log.
                log.kill();
                return self.bury_log();
            }
        }
        Ok(())
    }

    fn bury_log(&mut self) -> Result<(), Failure> {
        if let Some(log) = &mut self.log {
            let Some(status) = log.child.try_wait().map_err(internal("wait for the output log"))?
            else {
                // This log replaced the one that ended.
                return Ok(());
            };
            pando_walls::say!("the output log ended ({status}): another is filled from the unit");
            self.log = Some(Process::log()?);
            self.unit.link = 0;
            self.standby.iter_mut().for_each(|s| s.link = 0);
        }
        Ok(())
    }

    fn standby_died(&mut self) -> Result<(), Failure> {
        if let Some(mut standby) = self.standby.take() {
            let Some(status) =
                standby.child.try_wait().map_err(internal("wait for the standby"))?
            else {
                // This standby replaced the one that ended, which has become the unit.
                self.standby = Some(standby);
                return Ok(());
            };
            self.count_death(&format!("the standby ended ({status})"))?;
            self.stand_by()?;
        }
        Ok(())
    }

    fn count_death(&mut self, what: &str) -> Result<(), Failure> {
        pando_walls::say!("{what}");
        self.deaths = if self.vitals.positions() == self.positions { self.deaths + 1 } else { 1 };
        self.positions = self.vitals.positions();
        if self.deaths < DEATHS_MAX {
            return Ok(());
        }
        Err(Failure::Internal(format!(
            "{DEATHS_MAX} units ended one after the other without finishing a batch; the last: \
             {what}"
        )))
    }

    /// Makes the standby the unit, if the unit is dead. Returns true if the unit ended on order.
    fn bury_unit(&mut self) -> Result<bool, Failure> {
        let Some(status) = self.unit.child.try_wait().map_err(internal("wait for the unit"))?
        else {
            return Ok(false);
        };
        if self.vitals.stopped() {
            return Ok(true);
        }
        self.count_death(&format!("the unit ended ({status}); its standby continues"))?;
        let next = match self.standby.take() {
            Some(standby) => standby,
            None => {
                let next = Process::unit(&self.ports, &self.control, &self.page)?;
                next.watch(&self.unit);
                next
            }
        };
        self.unit = next;
        Ok(false)
    }

    /// Settles the dead unit's bill with the totals in the log.
    fn settle(&self, taken: &str) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Said {
            taken_over: Taken,
        }
        #[derive(serde::Deserialize)]
        struct Taken {
            epoch: u32,
            totals: Vec<[u64; 4]>,
        }
        let said: Said = serde_json::from_str(taken)
            .map_err(|e| Failure::Internal(format!("a standby reported {taken}: {e}")))?;
        let work =
            |[packets, bytes, fuel, trapped]: [u64; 4]| Work { packets, bytes, fuel, trapped };
        let totals: Vec<Work> = said.taken_over.totals.into_iter().map(work).collect();
        if totals.is_empty() {
            return Ok(());
        }
        Meter::settle(
            &self.run.places.data_dir,
            &self.run.tenant,
            &self.run.name,
            said.taken_over.epoch,
            &totals,
        )
        .map_err(internal("settle the bill of the dead unit"))
    }

    /// Ends all processes. The standby ends first, so that it does not take over.
    fn end(&mut self) {
        self.vitals.stop();
        self.standby.iter_mut().for_each(Process::kill);
        // SAFETY: try_wait has not reaped the child, so its number is its own.
        if matches!(self.unit.child.try_wait(), Ok(None)) {
            // SAFETY: as above.
            unsafe { libc::kill(self.unit.child.id() as i32, libc::SIGTERM) };
            let _ = self.unit.child.wait();
        }
        self.log.iter_mut().for_each(Process::kill);
    }
}

/// Returns the address of the log on another host, and the tenant's key there.
fn elsewhere(run: &Run) -> Result<Option<(SocketAddr, Key)>, Failure> {
    let (Some(address), Some(file)) = (&run.durable.log, &run.durable.log_key) else {
        return Ok(None);
    };
    let key = keys::read(file)?.of(&run.tenant).copied().ok_or_else(|| {
        Failure::Invalid(format!(
            "{} has no key of tenant {}: `pando fn log --new-key {1}` prints one, for this file \
             and that of the log",
            file.display(),
            run.tenant
        ))
    })?;
    Ok(Some((resolve(address)?, key)))
}

/// Connects to a log on another host, and proves the key.
fn call(address: SocketAddr, tenant: &str, key: &Key) -> io::Result<(TcpStream, Session)> {
    let socket = TcpStream::connect_timeout(&address, 2 * CALL_AGAIN)?;
    let session = sealed::call(&socket, tenant, key, 3 * CALL_AGAIN)?;
    Ok((socket, session))
}

fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let found = address
        .to_socket_addrs()
        .map_err(|e| Failure::Invalid(format!("--log {address}: {e}; it is HOST:PORT")))?
        .next();
    found.ok_or_else(|| Failure::Invalid(format!("--log {address}: no address")))
}

/// Runs a unit or its standby: a child of the watching process.
pub fn unit(run: &Run) -> Result<ExitCode, Failure> {
    let orders = Orders::inherited();
    let prepared =
        prepare(run, &orders).inspect_err(|reason| drop(orders.send(&reason.to_string(), &[])));
    let (mut unit, hello, vitals, watcher) = prepared?;
    let _ = orders.send("ready", &[]);
    let signals = unit.signals.as_raw_fd();
    let mut journal = Journal::new(orders, vitals, hello);
    journal.patience = run.durable.patience();
    journal.takes_up = run.durable.log.is_some();
    let call = standby::wait(&mut unit.chain, &mut journal, signals, watcher)
        .map_err(internal("wait for the unit's end"))?;
    match call {
        Call::End => return Ok(ExitCode::SUCCESS),
        Call::Serve => {}
        Call::TakeOver(link, _, noticed) if journal.begins() => journal.begin_again(link, noticed),
        Call::TakeOver(link, followed, noticed) => {
            standby::take_over(
                &mut unit.chain,
                &mut unit.ports,
                &mut journal,
                (link, followed),
                noticed,
            )
            .map_err(internal("take over"))?;
        }
    }
    unit.journal = Some(journal);
    unit.run().map_err(internal("the unit's loop"))?;
    pando_walls::say!("{}", serde_json::to_string(&unit.status()).expect("a status is JSON"));
    Ok(ExitCode::SUCCESS)
}

fn prepare(run: &Run, orders: &Orders) -> Result<(Unit, Hello, Vitals, Watcher), Failure> {
    let signals = unit::signals().map_err(internal("signals"))?;
    let mut order = orders.receive(true).map_err(internal("receive the descriptors"))?;
    let missing =
        || Failure::Internal("`pando fn run` starts units; do not start one by hand".into());
    let page = order.fds.pop().ok_or_else(missing)?;
    let control = UnixListener::from(order.fds.pop().ok_or_else(missing)?);
    let vitals = Vitals::map(page.as_fd()).map_err(internal("shared memory"))?;
    let watcher = Watcher::start(page.as_fd()).map_err(internal("a thread that waits"))?;
    let (mut unit, chain) = run.assemble(|| run.adopt_ports(order.fds), control, signals)?;
    unit.chain.forgotten = Some(Vec::new());
    unit.chain.flows.warm(standby::WARM_FLOWS);
    let hello = Hello {
        run: vitals.run(),
        chain,
        epoch: unit.meter.epoch,
        state_bytes: unit.chain.flows.stage_bytes(),
        unit: format!("{}/{}", run.tenant, run.name),
    };
    Ok((unit, hello, vitals, watcher))
}
