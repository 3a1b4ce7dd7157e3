//! The control group of a unit's process limits its memory and processor time. The kernel keeps the
//! account.
//!
//! The process that starts a unit makes and removes the group. The unit enters its group before any
//! other work. Hierarchies may be v1, hybrid or v2, as in driver/sandbox/cgroup, which limits groups of
//! units.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Usual mount point of the hierarchies.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Limits of a unit's process. A missing limit means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory in bytes. The kernel kills a unit that needs more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Number of processors, possibly fractional. A unit that could use more waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let memory = self.memory_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
        let cpus = self.cpus.map(|cpus| format!("{cpus} CPU"));
        f.pad(&match (memory, cpus) {
            (Some(memory), Some(cpus)) => format!("{memory}, {cpus}"),
            (one, other) => one.or(other).unwrap_or("-".into()),
        })
    }
}

const PERIOD_US: u64 = 100_000;
/// The kernel's minimum.
const QUOTA_US_MIN: u64 = 1_000;

/// A control group, in each hierarchy that its limits need.
#[derive(Clone, Debug)]
pub struct Cgroup {
    root: PathBuf,
    folders: Vec<PathBuf>,
    v2: bool,
}

impl Cgroup {
    /// Makes the group `name` with these limits. `name` is a path below the root of each hierarchy.
    /// A group left from an earlier run is removed first, with its counts.
    pub fn make(root: &Path, name: &str, limits: &Limits) -> io::Result<Cgroup> {
        let v2 = root.join("cgroup.controllers").exists();
        let needed = [("memory", limits.memory_bytes.is_some()), ("cpu", limits.cpus.is_some())];
        let needed =
            needed.into_iter().filter(|(_, needed)| *needed).map(|(controller, _)| controller);
        let folders = if v2 {
            vec![root.join(name)]
        } else {
            needed.map(|controller| root.join(controller).join(name)).collect()
        };
        let group = Cgroup { root: root.into(), folders, v2 };
        group.remove()?;
        for folder in &group.folders {
            // Another run may remove an empty parent folder at the same time.
            let made = (0..3)
                .map(|_| fs::create_dir_all(folder))
                .find(|made| !matches!(made, Err(e) if e.kind() == ErrorKind::NotFound));
            made.unwrap_or(Err(ErrorKind::NotFound.into())).map_err(|e| about(folder, &e))?;
        }
        if v2 {
            group.hand_down();
        }
        group.limit(limits).inspect_err(|_| drop(group.remove()))?;
        Ok(group)
    }

    /// Returns the group that consists of these folders, as [`Cgroup::folders`] returned them.
    pub fn of(root: &Path, folders: Vec<PathBuf>) -> Cgroup {
        Cgroup { root: root.into(), folders, v2: root.join("cgroup.controllers").exists() }
    }

    /// Returns the folders of the group.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Returns the files that a process writes to enter the group, see [`enter`].
    pub fn entries(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.folders
            .iter()
            .map(|folder| folder.join(if self.v2 { "cgroup.procs" } else { "tasks" }))
    }

    /// Enables the controllers in all parent groups. If a controller is missing, the limit that
    /// needs it fails later.
    fn hand_down(&self) {
        let above =
            self.folders[0].ancestors().skip(1).take_while(|above| above.starts_with(&self.root));
        let above: Vec<&Path> = above.collect();
        for folder in above.iter().rev() {
            for controller in ["+memory", "+cpu"] {
                let _ = put(&folder.join("cgroup.subtree_control"), controller);
            }
        }
    }

    fn file(&self, controller: &str, v1: &str, v2: &str) -> PathBuf {
        let of = |folder: &&PathBuf| self.v2 || folder.starts_with(self.root.join(controller));
        self.folders
            .iter()
            .find(of)
            .map_or_else(PathBuf::new, |folder| folder.join(if self.v2 { v2 } else { v1 }))
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            put(&self.file("memory", "memory.limit_in_bytes", "memory.max"), &bytes.to_string())?;
            // Swap would soften the limit. Without swap accounting, this file is missing.
            let swap = if self.v2 { "0".into() } else { bytes.to_string() };
            let _ =
                put(&self.file("memory", "memory.memsw.limit_in_bytes", "memory.swap.max"), &swap);
        }
        if let Some(cpus) = limits.cpus {
            let quota = ((cpus * PERIOD_US as f64) as u64).max(QUOTA_US_MIN);
            let value = if self.v2 { format!("{quota} {PERIOD_US}") } else { quota.to_string() };
            put(&self.file("cpu", "cpu.cfs_quota_us", "cpu.max"), &value)?;
        }
        Ok(())
    }

    /// Returns the number of processes that the kernel killed because the group exceeded its
    /// memory.
    pub fn out_of_memory(&self) -> u64 {
        let counts = fs::read_to_string(self.file("memory", "memory.oom_control", "memory.events"))
            .unwrap_or_default();
        counts
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes the group and its empty parents. Waits up to 500 ms for the last process to leave.
    pub fn remove(&self) -> io::Result<()> {
        for folder in &self.folders {
            let mut removed = fs::remove_dir(folder);
            for _ in 0..500 {
                if !matches!(&removed, Err(e) if e.kind() == ErrorKind::ResourceBusy) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                removed = fs::remove_dir(folder);
            }
            match removed {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(about(folder, &e)),
                _ => {}
            }
            let hierarchy = if self.v2 { 0 } else { 1 };
            let depth = self.root.components().count() + hierarchy;
            // The first parent in use ends the walk.
            let _ = folder
                .ancestors()
                .skip(1)
                .take_while(|above| above.components().count() > depth)
                .try_for_each(fs::remove_dir);
        }
        Ok(())
    }
}

/// Enters a group through its entries. The process must have only one thread.
pub fn enter(entries: &[PathBuf]) -> io::Result<()> {
    entries.iter().try_for_each(|entry| put(entry, "0"))
}

/// Writes to an existing file. Creating it would succeed in a folder that is not a control group.
fn put(path: &Path, value: &str) -> io::Result<()> {
    let written = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|e| about(path, &e))
}

fn about(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_with_its_limits_and_leaves_nothing() {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return println!("skipped: control groups need root");
        }
        let name = format!("cgtest{}/tenant/unit", std::process::id());
        let limits = Limits { memory_bytes: Some(64 << 20), cpus: Some(0.5) };
        let group = Cgroup::make(Path::new(ROOT), &name, &limits).unwrap();
        let read = |file: PathBuf| fs::read_to_string(file).unwrap();
        assert_eq!(
            read(group.file("memory", "memory.limit_in_bytes", "memory.max")).trim(),
            (64 << 20).to_string()
        );
        assert!(read(group.file("cpu", "cpu.cfs_quota_us", "cpu.max")).starts_with("50000"));
        assert_eq!(group.out_of_memory(), 0);
        // A second run replaces the group.
        let group = Cgroup::make(Path::new(ROOT), &name, &limits).unwrap();
        group.remove().unwrap();
        for folder in group.folders() {
            let above = folder.ancestors().nth(2).unwrap();
            assert!(
                above.to_string_lossy().contains("cgtest") && !above.exists(),
                "{}",
                above.display()
            );
        }
        group.remove().unwrap();
    }

    #[test]
    fn a_machine_without_control_groups_says_which_file_is_missing() {
        let root = std::env::temp_dir().join(format!("cgtest-none-{}", std::process::id()));
        let made = Cgroup::make(&root, "a/b", &Limits { memory_bytes: Some(1 << 20), cpus: None });
        assert!(made.unwrap_err().to_string().contains("memory.limit_in_bytes"));
        let _ = fs::remove_dir_all(root);
    }

    #[test]
    fn limits_are_said_in_words() {
        let words = |memory_bytes, cpus| Limits { memory_bytes, cpus }.to_string();
        assert_eq!(
            [words(None, None), words(Some(32 << 20), None), words(Some(1 << 30), Some(1.5))],
            ["-", "32 MiB", "1024 MiB, 1.5 CPU"]
        );
    }
}
