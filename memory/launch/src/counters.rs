//! The file of counters of each program on far memory, which also shows whether the program still
//! lives.
//!
//! A process number is not unique across pid namespaces, and is reused. So a program lives as long
//! as its file is locked. The launcher takes the lock, and the pager's mapping of the file keeps
//! it. The kernel releases it with the last process of the program, forked children included. A
//! process that gets the lock may remove the file.

use crate::refusal::{self, Refusal};
use memory_core::stats::{STATS_MAGIC, Stats};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

const FILE_BYTES: usize = size_of::<Stats>().next_multiple_of(4096);

/// The folder for programs of root, and of users without a folder of their own.
const SHARED: &str = "/run/pando-mem";

fn folder() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| unsafe { libc::geteuid() } != 0);
    own.map_or(SHARED.into(), |base| PathBuf::from(base).join("pando-mem"))
}

/// Returns the number of this process' pid namespace.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// Makes the file of counters for this process, which is about to become a program on far memory.
/// The lock lasts as long as any copy of the descriptor.
pub fn create() -> Result<File, Refusal> {
    let dir = folder();
    let fail = |e: io::Error| {
        let mend = if e.kind() == io::ErrorKind::PermissionDenied {
            "; be root, or set XDG_RUNTIME_DIR to a folder of your own"
        } else {
            ""
        };
        refusal::of(&e, format!("cannot write the counters in {}: {e}{mend}", dir.display()))
    };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(fail)?;
    processes(None);
    let path = dir.join(format!("{}-{}", std::process::id(), namespace()));
    loop {
        // The former process with this number is gone.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        let file = match OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
        {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other.map_err(fail)?,
        };
        file.lock().map_err(fail)?;
        // Another process may have removed the file before it was locked.
        if is_at(&file, &path) {
            file.set_len(FILE_BYTES as u64).map_err(fail)?;
            return Ok(file);
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let number = |m: io::Result<fs::Metadata>| m.map(|m| (m.dev(), m.ino())).ok();
    let number_there = number(fs::metadata(path));
    number_there.is_some() && number_there == number(file.metadata())
}

/// One program's counters, mapped.
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub stats: &'static Stats,
}

impl Drop for Process {
    fn drop(&mut self) {
        unsafe { libc::munmap(std::ptr::from_ref(self.stats) as *mut _, FILE_BYTES) };
    }
}

/// Returns the living programs, or the one of a number. Removes the files of dead programs.
pub fn processes(only: Option<u32>) -> Vec<Process> {
    let here = namespace();
    let mut all: Vec<Process> = fs::read_dir(folder())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| open(&e.path(), here, only))
        .collect();
    all.sort_by_key(|p| p.pid);
    all
}

/// Whether there are programs of other users that this one may not read; `only` as in `processes`.
pub fn others(only: Option<u32>) -> bool {
    let here = namespace();
    fs::read_dir(SHARED).into_iter().flatten().flatten().any(|e| {
        let asked = owner(&e.path()).is_some_and(|(pid, namespace)| {
            only.is_none_or(|only| (only, here) == (pid, namespace))
        });
        asked && File::open(e.path()).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    })
}

/// Returns the process number of a file, and the number of its pid namespace.
fn owner(path: &Path) -> Option<(u32, u64)> {
    let (pid, namespace) = path.file_name()?.to_str()?.split_once('-')?;
    Some((pid.parse().ok()?, namespace.parse().ok()?))
}

/// Opens a file of counters, if its program lives. `only` is a number of this namespace.
fn open(path: &Path, here: u64, only: Option<u32>) -> Option<Process> {
    let (pid, namespace) = owner(path)?;
    let file = File::open(path).ok()?;
    if file.try_lock().is_ok() {
        // No other process removes the file under the lock, so a newer file of this name cannot
        // exist.
        if is_at(&file, path) {
            let _ = fs::remove_file(path);
        }
        return None;
    }
    if only.is_some_and(|only| (only, here) != (pid, namespace))
        || file.metadata().ok()?.len() < FILE_BYTES as u64
    {
        return None;
    }
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            FILE_BYTES,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    let name = if namespace == here {
        let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        String::from_utf8_lossy(&comm).trim().to_string()
    } else {
        format!("pid namespace {namespace}")
    };
    let process = Process { pid, name, stats: unsafe { &*at.cast::<Stats>() } };
    (process.stats.magic.load(Relaxed) == STATS_MAGIC).then_some(process)
}
