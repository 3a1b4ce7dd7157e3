//! Where units are found, and where their bills are kept.

use std::path::PathBuf;

use clap::Args;

/// The two directories.
#[derive(Args, Clone, Debug)]
pub struct Places {
    /// Where running units have their sockets and logs
    #[arg(long, default_value = "/run/pando/fn")]
    pub run_dir: PathBuf,
    /// Where the meters are kept
    #[arg(long, default_value = "/var/lib/pando/fn")]
    pub data_dir: PathBuf,
}

/// The files of one unit.
pub struct UnitPlace {
    /// Removed when the unit ends in order.
    pub directory: PathBuf,
}

impl Places {
    /// The files of the unit with this name.
    pub fn unit(&self, name: &str) -> UnitPlace {
        UnitPlace { directory: self.run_dir.join(name) }
    }

    /// Names of all units that run or crashed.
    pub fn names(&self) -> Vec<String> {
        let listed = std::fs::read_dir(&self.run_dir).into_iter().flatten();
        let mut names: Vec<String> = listed.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

impl UnitPlace {
    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// What the unit printed.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}
