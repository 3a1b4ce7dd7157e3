//! The counters of a program exist exactly as long as it lives, even if another process reads them.

mod far;

use far::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program on far memory that waits, and its file of counters.
fn waiting(from: &str) -> (Running, PathBuf) {
    let mut command = Command::new(pando_mem());
    command
        .args(["run", "--local", "16MiB", "--far", "32MiB", "--from", from, "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = Running(bound(&mut command).spawn().unwrap());
    // It answers once it runs.
    running.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    running.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let files: Vec<PathBuf> = files()
        .into_iter()
        .filter(|f| name(f).starts_with(&format!("{}-", running.0.id())))
        .collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    (running, file.clone())
}

fn files() -> Vec<PathBuf> {
    std::fs::read_dir("/run/pando-mem").unwrap().flatten().map(|e| e.path()).collect()
}

fn name(file: &std::path::Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn another_pid_namespace_takes_nobodys_counters() {
    let h = host(&["--size", "64MiB"]);
    let (running, file) = waiting(&h.address);
    let top = || {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(pando_mem())
            .args(["top", "--once", "-o", "json"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let line = |text: &str| {
        text.lines()
            .find(|l| l.contains(&format!("\"pid\":{},", running.0.id())))
            .map(str::to_string)
    };
    let there = line(&top()).expect("it is seen from there");
    assert!(
        there.contains("\"name\":\"pid namespace "),
        "a number there is another process: {there}"
    );
    assert!(file.exists());
    assert_eq!(figure(running.0.id(), "copies_now"), 1);
    drop(running);
}

#[test]
fn counters_go_with_their_program_though_another_has_its_number() {
    let h = host(&["--size", "64MiB"]);
    let (running, file) = waiting(&h.address);
    // A file of a dead program that had the number of this process.
    let mine = name(&file).replace(&running.0.id().to_string(), &std::process::id().to_string());
    let mine = file.with_file_name(mine);
    std::fs::copy(&file, &mine).unwrap();
    assert_eq!(figure(running.0.id(), "copies_now"), 1);
    assert!(file.exists() && !mine.exists());
    drop(running);
    let _ = Command::new(pando_mem()).args(["top", "--once"]).output().unwrap();
    assert!(!file.exists());
}

#[test]
fn a_small_write_to_a_socket_pins_no_page_that_is_here() {
    let h = host(&["--size", "1GiB"]);
    let mut command = Command::new(pando_mem());
    command
        .args(["run", "--local", "16MiB", "--far", "256MiB", "--from", &h.address])
        .args(["--mode", "sigbus", "--"])
        .arg(example("probes"))
        .arg("small writes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = Running(bound(&mut command).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "wrong 0\n");
    // The last write is from a page that is away, so it is pinned. A thousand are not.
    let pinned = figure(running.0.id(), "syscalls_pinned");
    assert!((1..100).contains(&pinned), "{pinned} of 1,001 writes were pinned");
}

#[test]
fn another_user_hears_that_he_may_not_look() {
    let h = host(&["--size", "64MiB"]);
    let (running, _) = waiting(&h.address);
    let top = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(pando_mem())
            .args(["top", "--once"])
            .args(args);
        String::from_utf8(command.env_remove("XDG_RUNTIME_DIR").output().unwrap().stderr).unwrap()
    };
    let pid = running.0.id().to_string();
    for args in [&[][..], &["--pid", &pid]] {
        assert!(top(args).contains("you may not look at them"), "{args:?}: {}", top(args));
    }
    assert!(top(&["--pid", "1"]).contains("process 1 borrows no memory"));
}

#[test]
fn a_folder_of_a_killed_test_is_removed_by_the_next() {
    let left = std::env::temp_dir().join(format!("pando-mem-test-{}-left", std::process::id()));
    std::fs::create_dir_all(left.join("deep")).unwrap();
    let folder = Folder::new("next");
    assert!(!left.exists() && folder.path.exists());
    let other = Folder::new("other");
    assert!(folder.path.exists() && other.path.exists());
    let path = folder.path.clone();
    let failed = std::thread::spawn(move || {
        let _folder = folder;
        std::panic::panic_any("on purpose");
    });
    assert!(failed.join().is_err() && !path.exists());
}
