//! The commands of `pando fn`: arguments, files and messages. The library makes the decisions.

#[macro_use]
mod out;

mod build;
mod chain;
mod durable;
mod flags;
mod generate;
mod limits;
mod log;
mod member;
mod new;
mod places;
mod process;
mod receive;
mod replay;
mod run;
mod simulate;
mod test;
mod units;

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use pando_traffic::pcap::PcapError;
use pando_wasm::ModuleError;

/// Network functions: write, build, test and run them.
#[derive(Parser)]
#[command(
    name = "pando fn",
    bin_name = "pando fn",
    version,
    disable_help_subcommand = true,
    after_help = "Example: pando fn new hundred && pando fn build hundred && pando fn test \
        hundred/hundred.wasm --pcap capture.pcap\n\n\
Exit codes: 0 done, 1 a defect, or a difference (test, build --check), 2 a wrong command line, 3 \
invalid input, 4 not found, 6 conflict, 10 not allowed.\n\
A guide: docs/guides/network-function.md."
)]
pub enum Command {
    /// Make a directory with a first function.
    New(new::New),
    /// Build the function in a directory: C with clang, Go with the Go toolchain.
    Build(build::Build),
    /// Send a capture through functions and compare the output.
    Test(test::Test),
    /// Run functions on a device of this machine.
    Run(Box<flags::Run>),
    /// Play a capture on a device of this machine.
    Replay(replay::Replay),
    /// Measure the packets of `replay --stamp`: latency and losses.
    Receive(receive::Receive),
    /// Make a capture to test and play.
    Generate(generate::Generate),
    /// Keep the output log of units on other hosts.
    Log(log::Log),
    /// Run one unit of a group, with descriptors that the group has opened.
    #[command(hide = true)]
    Member(Box<member::Member>),
    /// Compile the module on standard input, inside a sandbox.
    #[command(hide = true)]
    Compile {
        /// The tenant of the module
        #[arg(long)]
        tenant: String,
    },
    /// List the units of this machine.
    Ls(units::List),
    /// Show the load of the units, again and again.
    Top(units::Top),
    /// Print the log of a unit and its functions.
    Logs(units::Logs),
    /// End units.
    Rm(units::Remove),
    /// Print each tenant's bill: packets and fuel, per function.
    Bill(units::Bill),
    /// Play captures through units in virtual time and compare rules of assignment.
    Simulate(simulate::Simulate),
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode, Failure> {
        self.does().map(out::ended)
    }

    fn does(self) -> Result<ExitCode, Failure> {
        match self {
            Command::New(c) => c.run(),
            Command::Build(c) => c.run(),
            Command::Test(c) => c.run(),
            Command::Run(c) => c.run(),
            Command::Replay(c) => c.run(),
            Command::Receive(c) => c.run(),
            Command::Generate(c) => c.run(),
            Command::Log(c) => c.run(),
            Command::Member(c) => c.run(),
            Command::Compile { tenant } => Ok(pando_wasm::behind_walls(&tenant).into()),
            Command::Ls(c) => c.run(),
            Command::Top(c) => c.run(),
            Command::Logs(c) => c.run(),
            Command::Rm(c) => c.run(),
            Command::Bill(c) => c.run(),
            Command::Simulate(c) => c.run(),
        }
    }
}

/// The errors of commands; the exit codes are those of `pando`.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation failed that should work.
    #[error("{0}")]
    Internal(String),
    /// The input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such unit, device or file.
    #[error("{0}")]
    NotFound(String),
    /// An existing object is in the way.
    #[error("{0}")]
    Conflict(String),
    /// The user lacks the permission.
    #[error("{0}")]
    Denied(String),
}

impl Failure {
    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Internal(_) => 1,
            Failure::Invalid(_) => 3,
            Failure::NotFound(_) => 4,
            Failure::Conflict(_) => 6,
            Failure::Denied(_) => 10,
        }
    }

    /// Returns the error of another process of this program, from its exit code and its message.
    pub fn from_code(code: Option<i32>, words: String) -> Failure {
        match code {
            Some(3) => Failure::Invalid(words),
            Some(4) => Failure::NotFound(words),
            Some(6) => Failure::Conflict(words),
            Some(10) => Failure::Denied(words),
            _ => Failure::Internal(words),
        }
    }

    /// Returns the error of reading or writing a file that the user named.
    pub fn of_file(doing: &str, file: &Path, e: &Error) -> Failure {
        let mut words = format!("{doing} {}: {e}", file.display());
        // Writing to a file fails with NotFound only if its folder is missing.
        if let (ErrorKind::NotFound, "write", Some(folder)) = (e.kind(), doing, file.parent()) {
            words += &format!(": `mkdir -p {}` makes its folder", folder.display());
        }
        if (e.kind(), doing) == (ErrorKind::PermissionDenied, "remove") {
            words += ": run it as root";
        }
        match e.kind() {
            ErrorKind::NotFound => Failure::NotFound(words),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Failure::Denied(words),
            ErrorKind::IsADirectory | ErrorKind::NotADirectory => Failure::Invalid(words),
            _ => Failure::Internal(words),
        }
    }

    /// Returns the error of opening a device.
    pub fn of_device(device: &str, e: &Error) -> Failure {
        match e.kind() {
            ErrorKind::NotFound => Failure::NotFound(e.to_string()),
            ErrorKind::PermissionDenied => Failure::Denied(format!(
                "{device}: {e}: packet sockets need CAP_NET_RAW; run it as root"
            )),
            ErrorKind::Unsupported => Failure::Invalid(format!(
                "{device} cannot do AF_XDP: {e}; --port packet goes without"
            )),
            ErrorKind::ResourceBusy => {
                Failure::Conflict(format!("{device}: {e}; --port packet goes without"))
            }
            _ => Failure::Internal(format!("{device}: {e}")),
        }
    }
}

impl From<ModuleError> for Failure {
    fn from(e: ModuleError) -> Self {
        match &e {
            ModuleError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                Failure::NotFound(format!("{e}: `pando fn build DIR` makes DIR/DIR.wasm"))
            }
            _ => Failure::Invalid(e.to_string()),
        }
    }
}

impl From<PcapError> for Failure {
    fn from(e: PcapError) -> Self {
        match &e {
            PcapError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                Failure::NotFound(format!("{e}: `pando fn generate FILE` makes a capture"))
            }
            _ => Failure::Invalid(e.to_string()),
        }
    }
}

/// The format of results.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

fn print_json(value: &impl serde::Serialize) {
    tell!("{}", serde_json::to_string_pretty(value).expect("it is JSON"));
}
