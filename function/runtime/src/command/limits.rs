//! The arguments that say how much a unit's process may use.

use std::path::PathBuf;

use clap::Args;
use pando_unit::cgroup::{self, Limits};

use super::Failure;

/// Limits of the process, on top of those of each call.
#[derive(Args, Clone)]
pub struct LimitArgs {
    /// MiB of memory that the unit's process may use in all; one that needs more is ended
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..))]
    unit_memory_mib: Option<u64>,
    /// Processors that the unit's process may use, for example 0.5
    #[arg(long, value_name = "CPUS", value_parser = processors)]
    unit_cpus: Option<f64>,
    /// What to write to, to enter the control group that was made for this process
    #[arg(long, hide = true)]
    cgroup: Vec<PathBuf>,
}

fn processors(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cpus @ 0.01..=1024.0) => Ok(cpus),
        _ => Err("a number from 0.01 to 1024".into()),
    }
}

impl LimitArgs {
    /// What is limited, if anything is.
    pub fn limits(&self) -> Option<Limits> {
        let limits = Limits { memory_bytes: self.unit_memory_mib.map(|mib| mib << 20), cpus: self.unit_cpus };
        (limits != Limits::default()).then_some(limits)
    }

    /// Enters the group that was made for this process, if one was.
    pub fn enter(&self) -> Result<(), Failure> {
        cgroup::enter(&self.cgroup).map_err(|e| Failure::Internal(format!("enter the unit's control group: {e}")))
    }
}
