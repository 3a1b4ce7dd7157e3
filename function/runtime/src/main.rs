//! `pando-unit`: what `pando fn` runs. Each subcommand is a module of its own below `command`.

mod command;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let command = command::Command::parse();
    match command.run() {
        Ok(code) => code,
        Err(error) => {
            pando_unit::say!("pando fn: {error}");
            error.code().into()
        }
    }
}
