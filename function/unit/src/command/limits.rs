//! The arguments that limit a unit's process.

use std::path::PathBuf;

use clap::Args;
use pando_walls::cgroup::{self, Limits};

use super::failure::Failure;

/// Limits of the process, on top of those of each call.
#[derive(Args, Clone)]
pub struct LimitArgs {
    /// MiB of memory for the whole process of the unit; beyond it, the process is killed
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..))]
    unit_memory_mib: Option<u64>,
    /// Processors for the process of the unit, for example 0.5
    #[arg(long, value_name = "CPUS", value_parser = processors)]
    unit_cpus: Option<f64>,
    /// File to write to in order to enter this process's control group
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
    /// Returns the limits, if there are any.
    pub fn limits(&self) -> Option<Limits> {
        let limits = Limits {
            memory_bytes: self.unit_memory_mib.map(|mib| mib << 20),
            cpus: self.unit_cpus,
        };
        (limits != Limits::default()).then_some(limits)
    }

    /// Enters the group that was made for this process, if there is one.
    pub fn enter(&self) -> Result<(), Failure> {
        cgroup::enter(&self.cgroup)
            .map_err(|e| Failure::Internal(format!("enter the unit's control group: {e}")))
    }
}
