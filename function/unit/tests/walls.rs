//! A tenant's code is compiled and run only in the sandbox, from its first byte on.

mod bed;
#[path = "../../twins/tests/modules/mod.rs"]
mod modules;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bed::bench;
use modules::{build, scratch};

const PATIENCE: Duration = Duration::from_secs(20);

fn pando(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pando-unit")).args(arguments).output().unwrap()
}

fn function(name: &str) -> String {
    format!("{}/../functions/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"))
}

/// Returns a field of a process's status, or of its limits.
fn field(pid: u32, file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(|rest| rest.split_whitespace().next().unwrap_or_default().to_owned())
}

fn is_walled(pid: u32) -> bool {
    field(pid, "status", "Seccomp:").as_deref() == Some("2")
        && field(pid, "status", "Uid:").is_some_and(|uid| uid != "0")
}

/// Returns the processor time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(11)?.parse().ok()
}

/// A child process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Native code next to a module is untrusted, at any age. This machine's cache stores code by the
/// module's digest.
#[test]
fn code_beside_a_module_is_not_run() {
    let directory = scratch("beside");
    let at = |name: &str| directory.join(name).display().to_string();
    std::fs::create_dir(at("policer")).unwrap();
    std::fs::copy(
        format!("{}/../functions/policer/policer.c", env!("CARGO_MANIFEST_DIR")),
        at("policer/policer.c"),
    )
    .unwrap();
    let built = pando(&["build", "--ahead", &at("policer"), "--data-dir", &at("data")]);
    assert!(built.status.success(), "{built:?}");
    let code = std::fs::read_dir(at("data/modules"))
        .unwrap()
        .next()
        .expect("it is in the cache")
        .unwrap()
        .path();
    std::fs::copy(function("nat"), at("nat.wasm")).unwrap();
    std::fs::copy(code, at("nat.cwasm")).unwrap();
    assert!(
        pando(&["generate", &at("in.pcap"), "--flows", "2", "--seconds", "1"]).status.success()
    );
    let tested =
        pando(&["test", &at("nat.wasm"), "--set", "address=192.0.2.1", "--pcap", &at("in.pcap")]);
    let said = String::from_utf8_lossy(&tested.stdout).into_owned();
    std::fs::remove_dir_all(directory).unwrap();
    assert!(tested.status.success() && said.starts_with("nat: "), "{tested:?}");
}

/// A module with long sections would cost its compiler minutes and gigabytes.
#[test]
fn a_module_of_200_000_functions_is_refused_at_once() {
    let directory = scratch("functions");
    let module = directory.join("many.wasm");
    let count = [0xc0, 0x9a, 0x0c]; // 200,000
    let types = [1, 4, 1, 0x60, 0, 0];
    let mut wasm = [&b"\0asm\x01\0\0\0"[..], &types, &[3, 0xc3, 0x9a, 0x0c], &count].concat();
    wasm.extend(std::iter::repeat_n(0, 200_000));
    std::fs::write(&module, wasm).unwrap();
    let tested = pando(&["test", module.to_str().unwrap(), "--pcap", "/dev/null"]);
    std::fs::remove_dir_all(directory).unwrap();
    let said = String::from_utf8_lossy(&tested.stderr);
    assert!(said.contains("too much to compile: it has 200000 functions"), "{said}");
}

#[test]
fn a_compiler_is_behind_walls_before_it_has_read_a_byte() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped: needs root");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
    let piped = command
        .args(["compile", "--tenant", "tenant"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let compiler = Ends(piped.spawn().unwrap());
    let pid = compiler.0.id();
    wait("the walls stand while the module has not come", || is_walled(pid));
    let limit = |name| field(pid, "limits", name).unwrap();
    assert_eq!(
        [limit("Max address space"), limit("Max cpu time")],
        [(1u64 << 30).to_string(), "30".into()]
    );
}

/// Its configuration never ends: the unit works on it for 10 seconds.
const SLOW: &str = r#"
#include <pando_nf.h>
struct state { uint32_t n; };
static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet) {
    (void)ctx; (void)packet; return PANDO_PASS;
}
static int forever(const uint8_t *c, uint32_t n) {
    (void)c; for (volatile uint32_t i = 0;;) i += n; return 0;
}
PANDO_FUNCTION_WITH("slow", struct state, process_packet, forever, 0);
"#;

#[test]
fn start_code_runs_behind_the_walls() {
    let Some(bench) = bench("walls") else { return };
    let module = build("walls", SLOW);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
    command.arg("run").arg(&module.wasm).args([
        "--iface",
        "far",
        "--name",
        "n",
        "--ring-frames",
        "4096",
    ]);
    command
        .arg("--run-dir")
        .arg(bench.directory.join("run"))
        .arg("--data-dir")
        .arg(bench.directory.join("data"));
    let watching = Ends(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", watching.0.id());
    let mut unit = 0;
    wait("the unit is started", || {
        unit = std::fs::read_to_string(&children)
            .unwrap_or_default()
            .split(' ')
            .next()
            .unwrap_or_default()
            .parse()
            .unwrap_or(0);
        unit > 0
    });
    // The unit's own start takes a small part of this.
    wait("the function runs", || ticks(unit).is_some_and(|ticks| ticks >= 100));
    assert!(is_walled(unit), "a function runs for 1 s already, and there are no walls");
    assert!(Path::new(&format!("/proc/{unit}")).exists());
}
