//! The commands of `pando fn`: arguments, files and words. What they decide is decided in the library.

mod build;
mod chain;
mod generate;
mod new;
mod places;
mod receive;
mod replay;
mod run;
mod test;
mod units;

use std::process::ExitCode;

use clap::Parser;
use pando_unit::pcap::PcapError;

/// Network functions: write, build, test and run them.
#[derive(Parser)]
#[command(name = "pando fn", version, disable_help_subcommand = true)]
pub enum Command {
    /// Makes a directory with a function to begin with.
    New(new::New),
    /// Builds the function in a directory: C with clang, Go with the Go toolchain.
    Build(build::Build),
    /// Sends a capture through functions, and compares what comes out with what is expected.
    Test(test::Test),
    /// Runs functions on a device of this machine.
    Run(Box<run::Run>),
    /// Plays a capture on a device of this machine.
    Replay(replay::Replay),
    /// Counts what `replay --stamp` sent: how long it took, what is missing.
    Receive(receive::Receive),
    /// Makes a capture to test and play.
    Generate(generate::Generate),
    /// Lists the units of this machine.
    Ls(units::List),
    /// Shows what the units do, again and again.
    Top(units::Top),
    /// Prints what a unit and its functions said.
    Logs(units::Logs),
    /// Ends units.
    Rm(units::Remove),
    /// Says what each tenant owes: packets and fuel, per function.
    Bill(units::Bill),
}

impl Command {
    /// Runs it.
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Command::New(c) => c.run(),
            Command::Build(c) => c.run(),
            Command::Test(c) => c.run(),
            Command::Run(c) => c.run(),
            Command::Replay(c) => c.run(),
            Command::Receive(c) => c.run(),
            Command::Generate(c) => c.run(),
            Command::Ls(c) => c.run(),
            Command::Top(c) => c.run(),
            Command::Logs(c) => c.run(),
            Command::Rm(c) => c.run(),
            Command::Bill(c) => c.run(),
        }
    }
}

/// How a command ends in an error; the exit codes are those of `pando`.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something that should work did not.
    #[error("{0}")]
    Internal(String),
    /// What was given makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such unit.
    #[error("{0}")]
    NotFound(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Internal(_) => 1,
            Failure::Invalid(_) => 3,
            Failure::NotFound(_) => 4,
        }
    }

    /// Why a device could not be opened.
    pub fn of_device(device: &str, e: &std::io::Error) -> Failure {
        match e.kind() {
            std::io::ErrorKind::NotFound => Failure::NotFound(e.to_string()),
            std::io::ErrorKind::PermissionDenied => {
                Failure::Invalid(format!("{device}: {e}: packet sockets need CAP_NET_RAW; run it as root"))
            }
            _ => Failure::Internal(format!("{device}: {e}")),
        }
    }
}

impl From<pando_unit::module::ModuleError> for Failure {
    fn from(e: pando_unit::module::ModuleError) -> Self {
        Failure::Invalid(e.to_string())
    }
}

impl From<PcapError> for Failure {
    fn from(e: PcapError) -> Self {
        match &e {
            PcapError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Failure::NotFound(e.to_string()),
            _ => Failure::Invalid(e.to_string()),
        }
    }
}

/// How results are written.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}
