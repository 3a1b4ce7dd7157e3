//! The directories of running units and of their bills.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use clap::Args;
use pando_meter::Meter;
use pando_unit::unit;
use pando_walls::cgroup::{self, Cgroup};
use pando_wasm::{Cache, Compiler};

use super::failure::Failure;

/// The two directories.
#[derive(Args, Clone, Debug)]
pub struct Places {
    /// The directory of running units' sockets and logs
    #[arg(long, default_value = "/run/pando/fn")]
    pub run_dir: PathBuf,
    /// The directory of the meters
    #[arg(long, default_value = "/var/lib/pando/fn")]
    pub data_dir: PathBuf,
}

/// The files of one unit.
pub struct UnitPlace {
    /// Removed when the unit ends in order.
    pub directory: PathBuf,
}

impl Places {
    /// Returns the files of the unit with this name.
    pub fn unit(&self, name: &str) -> UnitPlace {
        UnitPlace { directory: self.run_dir.join(name) }
    }

    /// Returns the files of an existing unit. Invalid names, such as an empty one or `..`, belong
    /// to no unit.
    pub fn known(&self, name: &str) -> Result<UnitPlace, Failure> {
        if self.names()?.iter().any(|n| n == name) {
            return Ok(self.unit(name));
        }
        Err(Failure::NotFound(format!("no unit {name:?}: `pando fn ls` lists them")))
    }

    /// Returns the compiler of a tenant's modules, with the code that this machine has compiled
    /// before.
    pub fn compiler(&self, tenant: &str) -> Result<Compiler, Failure> {
        let cache = Cache::open(&self.data_dir.join("modules")).map_err(|e| match e.kind() {
            ErrorKind::PermissionDenied => {
                Failure::Denied(format!("keep compiled functions: {e}: run it as root"))
            }
            _ => Failure::Internal(format!(
                "keep compiled functions: {e}; --data-dir names another place"
            )),
        })?;
        Ok(Compiler::Apart { tenant: tenant.to_owned(), cache: Some(cache) })
    }

    /// Makes a meter for a start of a unit. The names of its functions are not known yet.
    pub fn meter(&self, tenant: &str, unit: &str) -> Result<Meter, Failure> {
        Meter::create(&self.data_dir, tenant, unit).map_err(|e| {
            Failure::Internal(format!(
                "make the meter below {}: {e}; --data-dir names another place",
                self.data_dir.display()
            ))
        })
    }

    /// Removes the meters of starts that failed before the names of their functions were known.
    pub fn discard_meters(&self, tenant: &str, unit: &str) {
        // A leftover is no bill, and the next start tries again.
        let _ = Meter::discard(&self.data_dir, tenant, unit);
    }

    /// Returns the names of all running and crashed units. Without the folder no unit ever ran.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let listed = match std::fs::read_dir(&self.run_dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listed => {
                listed.map_err(|e| Failure::of_file("list the units in", &self.run_dir, &e))?
            }
        };
        let mut names: Vec<String> =
            listed.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

impl UnitPlace {
    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Returns the message about a live unit that does not answer.
    pub fn silence(&self) -> String {
        let pid = unit::listener(&self.control()).unwrap_or_default();
        format!(
            "process {pid} does not answer; if it is stopped, `kill -CONT {pid}` continues it; \
             `pando fn rm` ends it"
        )
    }

    /// Returns the path of the unit's log.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Returns the path of the list of the unit's control group folders, one a line. An unlimited
    /// unit has no such file.
    pub fn cgroup(&self) -> PathBuf {
        self.directory.join("cgroup")
    }

    /// Returns the unit's control group.
    pub fn group(&self) -> Option<Cgroup> {
        let folders = std::fs::read_to_string(self.cgroup()).ok()?;
        Some(Cgroup::of(Path::new(cgroup::ROOT), folders.lines().map(PathBuf::from).collect()))
    }

    /// Lets the process that watches a group start it no more
    /// (`cmd/pando/function/watch.go`).
    pub fn unwatch(&self) {
        // Only detached groups have the file.
        let _ = std::fs::remove_file(self.directory.join("watched"));
    }

    /// Removes the unit's control group and directory.
    pub fn remove(&self) -> io::Result<()> {
        let group = self.group().map_or(Ok(()), |group| group.remove());
        match std::fs::remove_dir_all(&self.directory) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => group,
        }
    }
}
