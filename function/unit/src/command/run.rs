//! `pando fn run`: runs a unit on devices of this machine.
//!
//! The started process keeps watch. It reports that the unit is ready, reports the cause of its
//! death and cleans up after it. The unit itself is its child, in a sandbox.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pando_unit::unit::{self, Unit};
use pando_walls::cgroup::{self, Cgroup};

use super::durable;
use super::failure::Failure;
use super::flags::{Durability, Run, name};
use super::out;
use super::places::UnitPlace;

pub const READY: &[u8] = b"ready\n";

impl Run {
    pub fn run(mut self) -> Result<ExitCode, Failure> {
        if self.name.is_empty() {
            let stem = |p: &PathBuf| p.file_stem().map(|s| s.to_string_lossy().into_owned());
            self.name = self.chain.functions.iter().filter_map(stem).collect::<Vec<_>>().join("-");
            name(&self.name).map_err(|e| {
                Failure::Invalid(format!(
                    "the unit's name {:?} is not {e}: --name gives it another",
                    self.name
                ))
            })?;
        }
        if let Some(same) = self.out.as_ref().filter(|out| **out == self.iface) {
            return Err(Failure::Invalid(format!(
                "--out {same} is also --iface; leave --out away and packets return by --iface"
            )));
        }
        match (self.inside, self.durable.unit) {
            (false, _) => self.watch(),
            (true, false) => self.serve(),
            (true, true) => durable::unit(&self),
        }
    }

    /// Runs the watching process. With --detach it ends when the unit is ready. With --detach and
    /// --restart, another watching process stays.
    fn watch(&self) -> Result<ExitCode, Failure> {
        let place = self.places.unit(&self.name);
        if self.watcher {
            let watched = self.watch_on(&place, || {
                out::text(format_args!("{}", str::from_utf8(READY).expect("it is text")));
                to_log();
            });
            // The parent reads standard output until the unit is ready, so write the reason there.
            return watched.or_else(|reason| {
                out::text(format_args!("{reason}"));
                Ok(reason.code().into())
            });
        }
        self.claim(&place)?;
        let tell = || {
            tell!("{} runs: `pando fn ls`, `pando fn logs {0}`, `pando fn rm {0}`", self.name);
            if let Ok(status) = unit::ask(&place.control(), "status") {
                status.ways.iter().for_each(|way| tell!("  {way}"));
                let warnings = status.ways.iter().filter_map(|way| forwards(way));
                warnings.for_each(|warning| pando_walls::say!("pando fn: {warning}"));
                status.rules.iter().for_each(|force| pando_walls::say!("pando fn: {force}"));
            }
        };
        if self.detach && self.restart {
            self.start(&place.log(), "--watcher", None).inspect_err(|_| drop(place.remove()))?;
            tell();
            return Ok(ExitCode::SUCCESS);
        }
        self.watch_on(&place, tell)
    }

    /// Claims the name.
    fn claim(&self, place: &UnitPlace) -> Result<(), Failure> {
        match unit::ask(&place.control(), "status") {
            Ok(_) => {
                return Err(Failure::Conflict(format!(
                    "a unit {} runs already: `pando fn rm {0}` ends it, --name gives this one \
                     another",
                    self.name
                )));
            }
            Err(e) if unit::is_silence(&e) => {
                return Err(Failure::Conflict(format!(
                    "there is a unit {}: {}",
                    self.name,
                    place.silence()
                )));
            }
            Err(_) => {}
        }
        std::fs::create_dir_all(&place.directory).map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => Failure::Denied(format!(
                "create {}: {e}: run it as root",
                place.directory.display()
            )),
            _ => Failure::Internal(format!("create {}: {e}", place.directory.display())),
        })
    }

    /// Starts the unit, calls `ready`, and restarts the unit as long as --restart requires.
    fn watch_on(&self, place: &UnitPlace, ready: impl FnOnce()) -> Result<ExitCode, Failure> {
        if self.detach {
            // SAFETY: neither takes memory of ours; setsid fails harmlessly in a process that leads
            // a group.
            unsafe {
                (libc::signal(libc::SIGHUP, libc::SIG_IGN), self.watcher.then(|| libc::setsid()))
            };
        }
        let signals = unit::signals().map_err(|e| Failure::Internal(format!("signals: {e}")))?;
        let group = self.confine(place).inspect_err(|_| drop(place.remove()))?;
        let mut child = self
            .start(&place.log(), "--inside", group.as_ref())
            .inspect_err(|_| drop(place.remove()))?;
        ready();
        if self.detach && !self.watcher {
            return Ok(ExitCode::SUCCESS);
        }
        let (mut out_of_memory, mut failures) = (0, 0);
        loop {
            let began = Instant::now();
            let status = wait(&mut child, signals.as_raw_fd());
            let killed = group.as_ref().map_or(0, Cgroup::out_of_memory);
            let why = if killed > out_of_memory { self.beyond_memory() } else { String::new() };
            out_of_memory = killed;
            if status.success() || status.signal() == Some(libc::SIGTERM) || !self.restart {
                let _ = place.remove();
                return if status.success() {
                    Ok(ExitCode::SUCCESS)
                } else {
                    Err(Failure::Internal(format!("the unit ended: {status}{why}")))
                };
            }
            failures = if began.elapsed() < STEADY { failures + 1 } else { 0 };
            self.log(place, &format!("the unit ended ({status}{why}); it is started again"));
            match self.again(place, group.as_ref(), &signals, failures) {
                Some(next) => child = next,
                None => {
                    let _ = place.remove();
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }

    /// Starts the unit again, after this many failures in a row. Returns `None` if the unit was
    /// removed or this process is to end.
    fn again(
        &self,
        place: &UnitPlace,
        group: Option<&Cgroup>,
        signals: &OwnedFd,
        mut failures: u32,
    ) -> Option<Child> {
        loop {
            let told = failures > 0 && is_told(signals.as_raw_fd(), pause(failures));
            if told || !place.directory.exists() {
                return None;
            }
            match self.start(&place.log(), "--inside", group) {
                Ok(child) => return Some(child),
                Err(reason) => self
                    .log(place, &format!("the unit did not start: {reason}; a new start follows")),
            }
            failures += 1;
        }
    }

    /// Writes a line to the unit's log, and to standard error if that is another file.
    fn log(&self, place: &UnitPlace, line: &str) {
        let _ = OpenOptions::new()
            .append(true)
            .open(place.log())
            .map(|mut log| log.write_all(format!("{line}\n").as_bytes()));
        if !self.watcher {
            pando_walls::say!("{line}");
        }
    }

    fn beyond_memory(&self) -> String {
        let limit = self.limits.limits().unwrap_or_default();
        format!(
            ": it needed more memory than its limit of {} MiB, see --unit-memory-mib",
            limit.memory_bytes.unwrap_or(0) >> 20
        )
    }

    /// Makes the control group of the unit, if it is limited.
    fn confine(&self, place: &UnitPlace) -> Result<Option<Cgroup>, Failure> {
        let Some(limits) = self.limits.limits() else { return Ok(None) };
        let failed = |e| {
            Failure::Internal(format!(
                "limit the unit: {e}: needs root, and a kernel with the controllers memory and cpu"
            ))
        };
        let group = Cgroup::make(
            Path::new(cgroup::ROOT),
            &format!("pando/fn/{}/{}", self.tenant, self.name),
            &limits,
        )
        .map_err(failed)?;
        let lines: String =
            group.folders().iter().map(|folder| format!("{}\n", folder.display())).collect();
        std::fs::write(place.cgroup(), lines)
            .inspect_err(|_| drop(group.remove()))
            .map_err(failed)?;
        Ok(Some(group))
    }

    /// Starts the unit, or the process that watches it, and waits until it is ready.
    fn start(&self, log: &Path, part: &str, group: Option<&Cgroup>) -> Result<Child, Failure> {
        let internal = |what: &str, e: std::io::Error| Failure::Internal(format!("{what}: {e}"));
        let log = OpenOptions::new().create(true).append(true).open(log).map_err(|e| {
            match Failure::of_file("open", log, &e) {
                Failure::Denied(words) => Failure::Denied(format!("{words}: run it as root")),
                other => other,
            }
        })?;
        let own = std::env::current_exe().map_err(|e| internal("find this program", e))?;
        let mut command = Command::new(own);
        command.args(std::env::args_os().skip(1)).arg(part).arg("--name").arg(&self.name);
        for entry in group.into_iter().flat_map(Cgroup::entries) {
            command.arg("--cgroup").arg(entry);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|e| internal("start the unit", e))?;
        let mut said = Vec::new();
        child
            .stdout
            .take()
            .expect("it is piped")
            .read_to_end(&mut said)
            .map_err(|e| internal("wait for the unit", e))?;
        if said == READY {
            return Ok(child);
        }
        let status = child.wait().map_err(|e| internal("wait for the unit", e))?;
        self.places.discard_meters(&self.tenant, &self.name);
        let reason = String::from_utf8_lossy(&said).trim().to_owned();
        Err(Failure::from_code(
            status.code(),
            if reason.is_empty() { format!("the unit ended: {status}") } else { reason },
        ))
    }

    /// Runs the unit itself. If it fails before it is ready, it writes the reason to standard
    /// output.
    fn serve(&self) -> Result<ExitCode, Failure> {
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, if self.detach { 0 } else { libc::SIGTERM }) };
        self.limits.enter().inspect_err(|reason| out::text(format_args!("{reason}")))?;
        let said_ready = || {
            out::text(format_args!("{}", str::from_utf8(READY).expect("it is text")));
            to_log();
        };
        if self.durable.durability == Durability::Log {
            return durable::supervise(self, said_ready)
                .inspect_err(|reason| out::text(format_args!("{reason}")));
        }
        let mut unit = match self.prepare() {
            Ok(unit) => unit,
            Err(reason) => {
                out::text(format_args!("{reason}"));
                return Ok(reason.code().into());
            }
        };
        said_ready();
        unit.run().map_err(|e| Failure::Internal(format!("the unit's loop: {e}")))?;
        let status = serde_json::to_string(&unit.status()).expect("a status is JSON");
        pando_walls::say!("{status}");
        Ok(ExitCode::SUCCESS)
    }

    fn prepare(&self) -> Result<Unit, Failure> {
        let signals = unit::signals().map_err(|e| Failure::Internal(format!("signals: {e}")))?;
        let (unit, _) = self.assemble(|| self.open_ports(), self.bind_control()?, signals)?;
        Ok(unit)
    }
}

/// Closes the pipe to the parent, which reads it to its end. Later output goes to the log. Inside a
/// sandbox dup2 is forbidden, but there is no later output: standard output is closed there.
fn to_log() {
    // SAFETY: plain system calls.
    if unsafe { libc::dup2(2, 1) } < 0 {
        // SAFETY: as above.
        unsafe { libc::close(1) };
    }
}

/// Returns a warning about a device if the kernel forwards the packets of the unit there.
fn forwards(way: &str) -> Option<String> {
    let (device, _) = way.split_once(": AF_PACKET")?;
    let family = ["ipv4", "ipv6"].into_iter().find(|family| {
        std::fs::read(format!("/proc/sys/net/{family}/conf/{device}/forwarding"))
            .is_ok_and(|set| set.starts_with(b"1"))
    })?;
    Some(format!(
        "the kernel forwards its own copy of the packets that arrive at {device}, past the \
         functions; `sysctl -w net/{family}/conf/{device}/forwarding=0` stops that"
    ))
}

/// After this time, a unit's end does not count as a failed start.
const STEADY: Duration = Duration::from_secs(10);

/// Returns the pause after this many failures in a row: 0.2 s to 30 s.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(100 << failures.min(9)).min(Duration::from_secs(30))
}

/// Waits for `time`, or until a signal orders this process to end; returns whether one did.
fn is_told(signals: i32, time: Duration) -> bool {
    let mut polled = libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut polled, 1, time.as_millis() as i32) > 0 }
}

/// Waits for the child; on SIGTERM or SIGINT, sends it SIGTERM.
fn wait(child: &mut Child, signals: i32) -> ExitStatus {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return status;
        }
        let mut polled = libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&mut polled, 1, 50) } > 0 {
            // SAFETY: the child is not reaped yet, so its number is its own.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            return child.wait().expect("a child can be waited for");
        }
    }
}
