//! `pando fn simulate`: runs `pando-simulate`, a separate program in the same folder or in the
//! PATH.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use super::failure::Failure;

/// Arguments.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Simulate {
    /// Options of the simulator
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<OsString>,
}

const PROGRAM: &str = "pando-simulate";

impl Simulate {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let beside = std::env::current_exe()
            .ok()
            .and_then(|own| Some(own.parent()?.join(PROGRAM)))
            .filter(|path| path.exists());
        let error =
            Command::new(beside.unwrap_or_else(|| PROGRAM.into())).args(self.arguments).exec();
        Err(Failure::NotFound(format!(
            "{PROGRAM} is neither next to pando-unit nor in the PATH ({error}); run `make build`"
        )))
    }
}
