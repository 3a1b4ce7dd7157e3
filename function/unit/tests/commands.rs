//! Tests the commands with odd files and outputs from users.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const FUNCTION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/policer/policer.wasm");

/// A test's folder, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let at = std::env::temp_dir().join(format!("pando-commands-{name}-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        Folder(at)
    }

    /// Runs a command in this folder. Returns its exit code and its error text.
    fn run(&self, line: &str, out: Stdio) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
        command
            .args(line.split(' ').map(|w| if w == "FUNCTION" { FUNCTION } else { w }))
            .current_dir(&self.0);
        let Output { status, stderr, .. } =
            command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TEST: &str = "test FUNCTION --set rate=1000000 --pcap";

#[test]
fn output_that_nobody_takes_ends_nothing_halfway() {
    let folder = Folder::new("out");
    let full = || File::options().write(true).open("/dev/full").unwrap().into();
    let left = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer.into()
    };
    let generate = "generate in.pcap --flows 10 --seconds 1";
    let (code, said) = folder.run(generate, full());
    assert_eq!(
        (code, said.trim()),
        (Some(1), "pando fn: the output is incomplete: No space left on device (os error 28)")
    );
    for line in [
        generate,
        &format!("{TEST} in.pcap"),
        &format!("{TEST} in.pcap -o json"),
        "bill --data-dir none",
        "top",
    ] {
        assert_eq!(folder.run(line, left()), (Some(141), String::new()), "{line}");
    }
}

#[test]
fn what_is_read_is_bounded_and_not_overwritten() {
    let folder = Folder::new("in");
    assert_eq!(folder.run("generate in.pcap --flows 10 --seconds 1", Stdio::null()).0, Some(0));
    let (code, said) = folder.run(&format!("{TEST} /dev/zero"), Stdio::null());
    assert!(
        code == Some(3) && said.contains("/dev/zero: neither pcap nor pcapng"),
        "{code:?}: {said}"
    );

    let before = fs::read(folder.0.join("in.pcap")).unwrap();
    std::os::unix::fs::symlink("in.pcap", folder.0.join("alias.pcap")).unwrap();
    for (flags, named) in [
        ("in.pcap --write alias.pcap", "--pcap"),
        ("in.pcap --expect alias.pcap --write ./in.pcap", "--pcap"),
    ] {
        let (code, said) = folder.run(&format!("{TEST} {flags}"), Stdio::null());
        assert!(
            code == Some(6) && said.contains(&format!("would overwrite the capture of {named}")),
            "{code:?}: {said}"
        );
    }
    assert_eq!(folder.run(&format!("{TEST} in.pcap --write out.pcap"), Stdio::null()).0, Some(0));
    let (code, said) =
        folder.run(&format!("{TEST} in.pcap --expect out.pcap --write out.pcap"), Stdio::null());
    assert!(code == Some(6) && said.contains("--expect"), "{code:?}: {said}");
    assert_eq!(fs::read(folder.0.join("in.pcap")).unwrap(), before);
}

/// An unset shell variable is an empty name, which once meant the folder of all units.
#[test]
fn what_is_no_unit_is_not_removed() {
    let folder = Folder::new("rm");
    fs::create_dir_all(folder.0.join("run/one")).unwrap();
    fs::create_dir_all(folder.0.join("beside")).unwrap();
    let remove = |names: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
        let Output { status, stderr, .. } = command
            .args(["rm", "--run-dir", "run"])
            .args(names)
            .current_dir(&folder.0)
            .output()
            .unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    for name in ["", ".", "..", "../beside", "one/", "two"] {
        assert_eq!(
            remove(&["one", name]),
            (Some(4), format!("pando fn: no unit {name:?}: `pando fn ls` lists them\n"))
        );
    }
    assert!(folder.0.join("run/one").exists() && folder.0.join("beside").exists());
    assert_eq!(remove(&["one", "one"]), (Some(0), String::new()));
    assert!(!folder.0.join("run/one").exists());
}

#[test]
fn a_compiler_that_is_missing_is_named() {
    let folder = Folder::new("build");
    assert_eq!(folder.run("new one", Stdio::null()).0, Some(0));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pando-unit"));
    let Output { status, stderr, .. } = command
        .args(["build", "one"])
        .current_dir(&folder.0)
        .env("PATH", "/none")
        .output()
        .unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(
        status.code() == Some(4)
            && said.contains("the PATH does not have clang (Debian: apt-get install clang lld)"),
        "{status}: {said}"
    );
}
