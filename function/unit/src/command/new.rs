//! `pando fn new`: writes a first function, in C or Go.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::out::{Format, print_json};

/// Arguments.
#[derive(Args)]
#[command(after_help = "Example: pando fn new --lang go hundred")]
pub struct New {
    /// A directory that does not exist yet; it names the function
    directory: PathBuf,
    /// The language of the function
    #[arg(long, value_enum, default_value_t = Language::C)]
    lang: Language,
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Language {
    C,
    Go,
}

const C: &str = include_str!("template.c");
/// A new Go function starts as the SDK's example, which is built and tested.
const GO: &str = include_str!("../../../../sdk/function/go/main.go");
const GO_SDK: &str = include_str!("../../../../sdk/function/go/pando.go");
const GO_MODULE: &str = include_str!("../../../../sdk/function/go/go.mod");
const GO_NAME: &str = "function-go";

impl New {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let shown = self.directory.display();
        let name = self.directory.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.is_empty()
            || name.len() > 35
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        {
            return Err(Failure::Invalid(format!(
                "{shown}: a function's name is at most 35 letters, digits, - and _"
            )));
        }
        if self.directory.exists() {
            return Err(Failure::Conflict(format!(
                "{shown} exists already: remove it, or give another directory"
            )));
        }
        let failed = |e: std::io::Error| Failure::of_file("write", &self.directory, &e);
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        let files: Vec<(String, String)> = match self.lang {
            Language::C => vec![(format!("{name}.c"), C.replace("@NAME@", name))],
            Language::Go => vec![
                ("main.go".into(), GO.replace(GO_NAME, name)),
                ("pando.go".into(), GO_SDK.into()),
                ("go.mod".into(), GO_MODULE.replace(GO_NAME, name)),
            ],
        };
        for (file, text) in &files {
            std::fs::write(self.directory.join(file), text).map_err(failed)?;
        }
        if self.output == Format::Json {
            let names: Vec<&String> = files.iter().map(|(file, _)| file).collect();
            print_json(&serde_json::json!({"directory": self.directory, "files": names}));
            return Ok(ExitCode::SUCCESS);
        }
        tell!(
            "{shown}: now `pando fn build {shown}` and `pando fn test {shown}/{name}.wasm --pcap \
             CAPTURE`"
        );
        Ok(ExitCode::SUCCESS)
    }
}
