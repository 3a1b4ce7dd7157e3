//! The test bed of a group: a network namespace, a wire for units to stand in, and `pando`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use pando_net::packet::Port;

pub struct Bench {
    pub directory: PathBuf,
    pub inner: Port,
    pub outer: Port,
    /// After this time without a packet, the missing packets are lost.
    pub patience: Duration,
}

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Moves this thread into its own network namespace, with a wire for units: inner–inner1,
/// outer1–outer. The source of the functions is in the directory of the tests.
pub fn bench(name: &str, functions: &[&str]) -> Option<Bench> {
    // SAFETY: plain system calls.
    if unsafe { libc::geteuid() } != 0 || unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        println!("skipped: needs root for a network namespace");
        return None;
    }
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    run(Command::new("ip").args(["link", "set", "lo", "up"])); // for states by UDP
    for end in ["inner", "outer"] {
        run(Command::new("ip")
            .args(["link", "add", end, "type", "veth", "peer", "name"])
            .arg(format!("{end}1")));
        run(Command::new("ip").args(["link", "set", end, "up"]));
        run(Command::new("ip").args(["link", "set"]).arg(format!("{end}1")).arg("up"));
    }
    super::clear("pando-group-");
    let directory = std::env::temp_dir().join(format!("pando-group-{name}-{}", std::process::id()));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let unit = env!("CARGO_BIN_EXE_pando-unit");
    for function in functions {
        let (folder, source) =
            (directory.join(function), Path::new(function).join(function).with_extension("c"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(here.join("tests").join(&source), directory.join(&source)).unwrap();
        run(Command::new(unit).arg("build").arg(folder));
    }
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(directory.join("pando"))
        .arg("./cmd/pando")
        .current_dir(here.join("../..")));
    std::os::unix::fs::symlink(unit, directory.join("pando-unit")).unwrap();
    let open = |device| Port::open(device, 16_384).unwrap();
    Some(Bench {
        directory,
        inner: open("inner"),
        outer: open("outer"),
        patience: Duration::from_secs(5),
    })
}

impl Bench {
    pub fn pando(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.directory.join("pando"));
        let (run, data) = (self.directory.join("run"), self.directory.join("data"));
        command.arg("fn").args(arguments).arg("--run-dir").arg(run);
        if arguments[0] != "logs" {
            command.arg("--data-dir").arg(data);
        }
        command.output().unwrap()
    }

    /// Returns the path of a function that [`bench`] built.
    pub fn module(&self, function: &str) -> PathBuf {
        self.directory.join(function).join(function).with_extension("wasm")
    }

    pub fn start_chain(&self, chain: &[&Path], more: &[&str]) {
        let mut arguments = vec!["run"];
        arguments.extend(chain.iter().map(|module| module.to_str().unwrap()));
        arguments.extend(["--iface", "inner1", "--out", "outer1", "--name", "g", "--detach"]);
        arguments.extend(["--ring-frames", "4096", "--unit-capacity", "40M"]);
        arguments.extend(more);
        let output = self.pando(&arguments);
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns the status of the group or of one of its units.
    pub fn status(&self, name: &str) -> serde_json::Value {
        let output = self.pando(&["ls", "-o", "json"]);
        let listed: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        listed.as_array().unwrap().iter().find(|u| u["name"] == name).cloned().unwrap_or_default()
    }

    pub fn bill(&self) -> serde_json::Value {
        let output = self.pando(&["bill", "-o", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }

    pub fn billed(&self) -> u64 {
        self.bill()["owed"][0]["packets"].as_u64().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", String::from_utf8_lossy(&self.pando(&["logs", "g"]).stdout));
        }
        self.pando(&["rm", "g"]);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
