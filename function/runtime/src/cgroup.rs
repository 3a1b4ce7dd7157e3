//! The control group of a unit's process: how much memory and processor time it may use, by the kernel's account.
//!
//! Whoever starts a unit makes its group and removes it; the unit enters it by itself, before it does anything else. v1 (and
//! hybrid) and v2, as in driver/cgroup, which does the same for groups of units.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where the hierarchies usually are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";

/// What a unit's process may use; what is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, in bytes. A unit that needs more is ended by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processors, of which it may be given a part. A unit that could use more waits.
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
/// The kernel's least.
const QUOTA_US_MIN: u64 = 1_000;

/// A control group, in each hierarchy that it needs.
#[derive(Clone, Debug)]
pub struct Cgroup {
    root: PathBuf,
    folders: Vec<PathBuf>,
    v2: bool,
}

impl Cgroup {
    /// Makes the group `name` (a path below the root of each hierarchy) with these limits. One that is left of an earlier
    /// run goes first, with its counts.
    pub fn make(root: &Path, name: &str, limits: &Limits) -> io::Result<Cgroup> {
        let v2 = root.join("cgroup.controllers").exists();
        let needed = [("memory", limits.memory_bytes.is_some()), ("cpu", limits.cpus.is_some())];
        let needed = needed.into_iter().filter(|(_, needed)| *needed).map(|(controller, _)| controller);
        let folders = if v2 { vec![root.join(name)] } else { needed.map(|controller| root.join(controller).join(name)).collect() };
        let group = Cgroup { root: root.into(), folders, v2 };
        group.remove()?;
        for folder in &group.folders {
            // Another run may be removing an empty folder on the way.
            let made = (0..3).map(|_| fs::create_dir_all(folder)).find(|made| !matches!(made, Err(e) if e.kind() == ErrorKind::NotFound));
            made.unwrap_or(Err(ErrorKind::NotFound.into())).map_err(|e| about(folder, &e))?;
        }
        if v2 {
            group.hand_down();
        }
        group.limit(limits).inspect_err(|_| drop(group.remove()))?;
        Ok(group)
    }

    /// The group that is made of these folders, as [`Cgroup::folders`] said them.
    pub fn of(root: &Path, folders: Vec<PathBuf>) -> Cgroup {
        Cgroup { root: root.into(), folders, v2: root.join("cgroup.controllers").exists() }
    }

    /// Its folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// What whoever enters it writes to, see [`enter`].
    pub fn entries(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.folders.iter().map(|folder| folder.join(if self.v2 { "cgroup.procs" } else { "tasks" }))
    }

    /// A controller that cannot be had is an error of the limit that wants it.
    fn hand_down(&self) {
        let above = self.folders[0].ancestors().skip(1).take_while(|above| above.starts_with(&self.root));
        let above: Vec<&Path> = above.collect();
        for folder in above.iter().rev() {
            for controller in ["+memory", "+cpu"] {
                let _ = put(&folder.join("cgroup.subtree_control"), controller);
            }
        }
    }

    fn file(&self, controller: &str, v1: &str, v2: &str) -> PathBuf {
        let of = |folder: &&PathBuf| self.v2 || folder.starts_with(self.root.join(controller));
        self.folders.iter().find(of).map_or_else(PathBuf::new, |folder| folder.join(if self.v2 { v2 } else { v1 }))
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            put(&self.file("memory", "memory.limit_in_bytes", "memory.max"), &bytes.to_string())?;
            // A limit that swap softens is none; without swap's account there is no such file.
            let swap = if self.v2 { "0".into() } else { bytes.to_string() };
            let _ = put(&self.file("memory", "memory.memsw.limit_in_bytes", "memory.swap.max"), &swap);
        }
        if let Some(cpus) = limits.cpus {
            let quota = ((cpus * PERIOD_US as f64) as u64).max(QUOTA_US_MIN);
            let value = if self.v2 { format!("{quota} {PERIOD_US}") } else { quota.to_string() };
            put(&self.file("cpu", "cpu.cfs_quota_us", "cpu.max"), &value)?;
        }
        Ok(())
    }

    /// Processes that the kernel ended because the group needed more memory than it may.
    pub fn out_of_memory(&self) -> u64 {
        let counts = fs::read_to_string(self.file("memory", "memory.oom_control", "memory.events")).unwrap_or_default();
        counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes it, and what is empty above it. Its last process may be just leaving it.
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
            // The first that somebody else is in ends it.
            let _ = folder.ancestors().skip(1).take_while(|above| above.components().count() > depth).try_for_each(fs::remove_dir);
        }
        Ok(())
    }
}

/// Enters a group by its entries. To be called while the process has one thread.
pub fn enter(entries: &[PathBuf]) -> io::Result<()> {
    entries.iter().try_for_each(|entry| put(entry, "0"))
}

/// Writes a file that has to be there: a folder that is no control group would take any.
fn put(path: &Path, value: &str) -> io::Result<()> {
    let written = fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
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
        assert_eq!(read(group.file("memory", "memory.limit_in_bytes", "memory.max")).trim(), (64 << 20).to_string());
        assert!(read(group.file("cpu", "cpu.cfs_quota_us", "cpu.max")).starts_with("50000"));
        assert_eq!(group.out_of_memory(), 0);
        // Another run finds it: it is made anew.
        let group = Cgroup::make(Path::new(ROOT), &name, &limits).unwrap();
        group.remove().unwrap();
        for folder in group.folders() {
            let above = folder.ancestors().nth(2).unwrap();
            assert!(above.to_string_lossy().contains("cgtest") && !above.exists(), "{}", above.display());
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
        assert_eq!([words(None, None), words(Some(32 << 20), None), words(Some(1 << 30), Some(1.5))], ["-", "32 MiB", "1024 MiB, 1.5 CPU"]);
    }
}
