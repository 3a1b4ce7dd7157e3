//! `pando-mem`: lends memory (`serve`), starts programs that borrow it (`run`), and shows how they
//! fare (`top`, `metrics`).

mod counters;
mod elf;
mod kernel;
mod lease;
mod mode;
mod refusal;
mod run;
mod serve;
mod size;
mod token;
mod top;

use clap::{Parser, Subcommand};

/// Far memory: a program larger than its host's memory, unmodified.
#[derive(Parser)]
#[command(name = "pando mem", bin_name = "pando mem", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lend memory of this machine
    Serve(serve::Serve),
    /// Start a program with its memory on memory hosts
    Run(run::Run),
    /// Show the programs of this machine that borrow memory
    Top(top::Top),
    /// Print the figures of `top` for Prometheus
    Metrics(top::Metrics),
}

fn main() {
    let done = match Cli::parse().command {
        Command::Serve(c) => c.run(),
        Command::Run(c) => c.run(),
        Command::Top(c) => c.run(),
        Command::Metrics(c) => c.run(),
    };
    if let Err(e) = done {
        eprintln!("pando-mem: {e}");
        std::process::exit(e.downcast_ref::<refusal::Refusal>().map_or(1, |r| r.code));
    }
}
