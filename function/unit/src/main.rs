//! `pando-unit`: the program behind `pando fn`. Each subcommand is a module below `command`.
//!
//! Users call `pando fn`, which owns the flags and the help of `run` and `test`.

mod command;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let command = command::Command::parse();
    match command.run() {
        Ok(code) => code,
        Err(error) => {
            pando_walls::say!("pando fn: {error}");
            error.code().into()
        }
    }
}
