//! The arguments that choose the functions and configure them.

use std::path::{Path, PathBuf};

use clap::Args;
use pando_abi::executor::Executor;
use pando_chain::leases::Leases;
use pando_chain::{Chain, Policy, Stage};
use pando_rules::{self as rules, Force, Pattern, Variables};
use pando_wasm::{Compiler, Function, Limits, Prepared, Runtime};

use super::failure::Failure;

/// Functions, in the order of the packets' path, and their configuration.
#[derive(Args, Clone, Debug)]
pub struct ChainArgs {
    /// The functions (.wasm), in the order of the packets' path
    #[arg(required = true, num_args = 1..)]
    pub functions: Vec<PathBuf>,
    /// A configuration line, `key=value`; `NAME.key=value` selects one function of several
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// A file of Snort rules for the IDS (any file named ids*.wasm)
    #[arg(long = "rules", value_name = "FILE")]
    pub rules: Vec<PathBuf>,
    /// A variable of the rules; by default, $HOME_NET is the private networks of IPv4 and
    /// $EXTERNAL_NET the rest
    #[arg(long = "rules-var", value_name = "NAME=VALUE")]
    pub variables: Vec<String>,
    /// Refuse rules with unsupported parts instead of skipping them
    #[arg(long)]
    pub strict_rules: bool,
    /// Numbers that this unit may lease to flows (a NAT's ports)
    #[arg(long, default_value = "32768-65535", value_parser = block)]
    pub ports: (u32, u32),
    /// The most flows with state
    #[arg(long, default_value_t = 65536)]
    pub flows_max: usize,
    /// Forget a flow after this many seconds of silence
    #[arg(long, default_value_t = 300)]
    pub idle_seconds: u64,
    /// Fuel per packet; about one per instruction
    #[arg(long, default_value_t = Limits::default().fuel_per_packet)]
    pub fuel_per_packet: u64,
    /// Memory of one function, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub memory_mib: u32,
    /// The fate of a packet on which a function trapped
    #[arg(long, value_enum, default_value_t = OnTrap::Drop)]
    pub on_trap: OnTrap,
}

/// The fate of a packet on which a function trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnTrap {
    /// Drop it.
    Drop,
    /// Pass it unchanged.
    Pass,
}

fn block(text: &str) -> Result<(u32, u32), String> {
    let (first, last) =
        text.split_once('-').ok_or("a block is FIRST-LAST, for example 32768-65535")?;
    let number = |t: &str| {
        t.parse::<u16>().map(u32::from).map_err(|_| format!("{t:?} is not a number below 65536"))
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last { Err(format!("the block {first}-{last} is empty")) } else { Ok((first, last)) }
}

/// The functions of a chain, compiled. None of them has run yet.
pub struct Code {
    functions: Vec<Prepared>,
    /// How many rules are in force, if the chain has an IDS.
    pub force: Option<Force>,
    /// A digest of the modules, their configurations and the numbers that they lease. It is the
    /// same on every host.
    pub digest: u64,
}

impl ChainArgs {
    /// Compiles the functions.
    pub fn prepare(&self, compiler: &Compiler) -> Result<Code, Failure> {
        let limits = Limits {
            fuel_per_packet: self.fuel_per_packet,
            memory_bytes: (self.memory_mib as usize) << 20,
        };
        // A new instance is made before the trapped one is gone, so each function needs two places.
        let runtime = Runtime::new(limits, 2 * self.functions.len() as u32);
        self.check_settings()?;
        let (patterns, force) = self.read_rules()?;
        let functions = self.functions.iter().map(|path| {
            if path.is_dir() {
                let built = path.join(stem(path)).with_extension("wasm");
                return Err(Failure::Invalid(format!(
                    "{} is a directory: the module that was built in it is {}",
                    path.display(),
                    built.display()
                )));
            }
            Ok(runtime.prepare(path, &self.configuration(path, &patterns)?, compiler)?)
        });
        let functions = functions.collect::<Result<Vec<Prepared>, Failure>>()?;
        let digest = functions
            .iter()
            .fold(u64::from(self.ports.0) << 32 | u64::from(self.ports.1), |digest, function| {
                digest.rotate_left(1) ^ function.digest
            });
        Ok(Code { functions, force: (!self.rules.is_empty()).then_some(force), digest })
    }

    /// Compiles the functions while another thread runs `other`. The kernel takes some 10 ms to
    /// make a ring of packets. If both fail, returns the error of `other`.
    pub fn prepare_while<T: Send>(
        &self,
        compiler: &Compiler,
        other: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<(T, Code), Failure> {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            let code = self.prepare(compiler);
            let other = other
                .join()
                .map_err(|_| Failure::Internal("a thread of the start panicked".into()))?;
            Ok((other?, code?))
        })
    }

    /// Runs the functions for the first time. A unit calls it inside its sandbox.
    pub fn start(&self, code: Code) -> Result<Chain<Function>, Failure> {
        let stages = code.functions.into_iter().map(|function| {
            Ok(Stage::new(function.start()?, Leases::new(self.ports.0..=self.ports.1)))
        });
        Ok(Chain::new(stages.collect::<Result<_, Failure>>()?, self.policy()))
    }

    fn policy(&self) -> Policy {
        Policy {
            flows_max: self.flows_max,
            idle_ns: self.idle_seconds.saturating_mul(1_000_000_000),
            trapped_passes: self.on_trap == OnTrap::Pass,
        }
    }

    /// Refuses settings that reach no function and rules without an IDS: they are silent mistakes
    /// otherwise.
    fn check_settings(&self) -> Result<(), Failure> {
        let names: Vec<String> = self.functions.iter().map(|path| stem(path)).collect();
        for line in &self.settings {
            let Some((key, _)) = line.split_once('=') else {
                return Err(Failure::Invalid(format!(
                    "--set {line}: a setting is KEY=VALUE, or NAME.KEY=VALUE for one of several \
                     functions"
                )));
            };
            if let Some((name, _)) = key.split_once('.')
                && !names.iter().any(|n| n == name)
            {
                return Err(Failure::Invalid(format!(
                    "--set {line}: no function {name} here, only {}",
                    names.join(" and ")
                )));
            }
        }
        match (names.iter().find(|n| takes_rules(n)), self.rules.is_empty()) {
            (Some(ids), true) => Err(Failure::Invalid(format!(
                "{ids} has nothing to look for: give it rules with --rules FILE"
            ))),
            (None, false) => Err(Failure::Invalid(format!(
                "--rules is for a function ids*.wasm, and here is only {}",
                names.join(" and ")
            ))),
            _ => Ok(()),
        }
    }

    /// Reads all rule files; returns the rules in force and their count.
    fn read_rules(&self) -> Result<(Vec<Pattern>, Force), Failure> {
        let mut variables = Variables::default();
        for line in &self.variables {
            let (name, value) = line.split_once('=').ok_or_else(|| {
                Failure::Invalid(format!(
                    "--rules-var {line}: a variable is NAME=VALUE, for \
                    example HOME_NET=192.0.2.0/24"
                ))
            })?;
            variables.set(name.trim_start_matches('$'), value);
        }
        let (mut patterns, mut force) = (Vec::new(), Force::default());
        for file in &self.rules {
            let bytes = std::fs::read(file).map_err(|e| Failure::of_file("read", file, &e))?;
            let shown = file.display().to_string();
            let read = rules::parse(&String::from_utf8_lossy(&bytes), &shown, &variables)
                .map_err(|e| Failure::Invalid(e.to_string()))?;
            if let (true, Some((line, sid, part))) = (self.strict_rules, read.others.first()) {
                let words = format!(
                    "{shown}:{line}: rule {sid} has {part}, which is not looked at: without \
                     --strict-rules it is left out"
                );
                return Err(Failure::Invalid(words));
            }
            force.add(&read);
            patterns.extend(read.patterns);
        }
        patterns.sort();
        Ok((patterns, force))
    }

    /// Returns a function's configuration. An IDS gets the rules. Any other function gets the lines
    /// without a name and those with its file's name.
    fn configuration(&self, path: &Path, patterns: &[Pattern]) -> Result<Vec<u8>, Failure> {
        let own = stem(path);
        if takes_rules(&own) {
            return rules::compile(patterns).map_err(Failure::Invalid);
        }
        let lines = self.settings.iter().filter_map(|line| {
            let key = line.split('=').next().unwrap_or(line);
            match key.split_once('.') {
                Some((name, _)) if name == own => Some(&line[name.len() + 1..]),
                Some(_) => None,
                None => Some(line.as_str()),
            }
        });
        Ok(lines.flat_map(|line| format!("{line}\n").into_bytes()).collect())
    }
}

/// Returns a function's name in settings: its file's name.
fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn takes_rules(function: &str) -> bool {
    function.starts_with("ids")
}

/// Returns the names of a chain, joined: `policer+ids`.
pub fn name_of<E: Executor>(chain: &Chain<E>) -> String {
    chain.names().collect::<Vec<_>>().join("+")
}
