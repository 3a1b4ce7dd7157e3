//! The commands of `pando fn`: arguments, files and messages. The library makes the decisions.

#[macro_use]
mod out;

mod build;
mod chain;
mod durable;
mod failure;
mod flags;
mod generate;
mod keys;
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

use std::process::ExitCode;

use clap::Parser;

pub use failure::Failure;

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
