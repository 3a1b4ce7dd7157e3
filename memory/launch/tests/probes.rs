//! Programs that close descriptors, send without copying and use small stacks: no byte of their
//! memory is wrong.

mod far;

use far::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a case of the program in a mode; returns its output and exit code.
fn probe(h: &Host, mode: &str, case: &str) -> (String, Option<i32>) {
    let program = example("probes");
    let args = [
        "--local",
        "16MiB",
        "--far",
        "256MiB",
        "--from",
        &h.address,
        "--mode",
        mode,
        "--",
        program.to_str().unwrap(),
        case,
    ];
    let out = run(&args);
    let text = String::from_utf8_lossy(&out.stdout).trim().to_string();
    (text + &String::from_utf8_lossy(&out.stderr), out.status.code())
}

/// Runs the cases, each in both modes.
fn find(h: &Host, cases: &[(&str, &str)]) {
    for (case, finds) in cases {
        for mode in ["sigbus", "thread"] {
            let (said, code) = probe(h, mode, case);
            assert!(
                code == Some(0) && said == *finds,
                "{case} in {mode} mode: {code:?} {said:?}, not {finds:?}"
            );
        }
    }
}

#[test]
fn descriptors_are_out_of_reach() {
    let h = host(&["--size", "1GiB"]);
    for how in [
        "dup2",
        "dup3",
        "syscall close",
        "syscall dup2",
        "syscall close_range",
        "raw close",
        "raw close_range",
        "raw dup2",
    ] {
        find(&h, &[(how, "wrong 0")]);
    }
    find(&h, &[("under way", "child 0 wrong 0")]);
}

#[test]
fn a_child_without_the_right_to_handler_threads_reads_its_snapshot() {
    let h = host(&["--size", "1GiB"]);
    find(&h, &[("dropped", "child 0 wrong 0")]);
}

#[test]
fn a_poisoned_page_that_is_away_is_fetched_again() {
    let h = host(&["--size", "1GiB"]);
    assert_eq!(probe(&h, "sigbus", "poisoned"), ("0 65536 wrong 0".into(), Some(0)));
}

#[test]
fn a_fault_takes_little_of_the_programs_stack() {
    let h = host(&["--size", "1GiB"]);
    find(&h, &[("stacks", "0 wrong 0")]);
}

#[test]
fn files_are_read_and_written_whole() {
    let h = host(&["--size", "1GiB"]);
    find(&h, &[("files", "[] wrong 0")]);
}

#[test]
fn nothing_is_sent_without_a_copy() {
    let h = host(&["--size", "1GiB"]);
    let (unsupported, invalid) = (libc::ENOPROTOOPT, libc::EINVAL);
    let zerocopy = format!("[{unsupported}, {unsupported}] true wrong 0");
    let vmsplice = format!("[{invalid}, {invalid}] 4096 wrong 0");
    find(&h, &[("zerocopy", &zerocopy), ("vmsplice", &vmsplice)]);
}

#[test]
fn a_mapping_does_not_replace_far_memory_unasked() {
    let h = host(&["--size", "1GiB"]);
    find(&h, &[("taken", &format!("{} wrong 0", libc::EEXIST))]);
}

#[test]
fn a_parent_may_have_blocked_the_signal_of_faults() {
    let h = host(&["--size", "1GiB"]);
    let mut command = Command::new(pando_mem());
    command.args(["run", "--local", "16MiB", "--from", &h.address, "--mode", "sigbus", "--"]);
    unsafe {
        command.pre_exec(|| {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGBUS);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Ok(())
        })
    };
    let out = command.arg(example("probes")).arg("direct").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "[0, 0, 0, 0]", "{out:?}");
}

/// A run of pages crosses mappings, and some of its pages cannot be moved.
#[test]
fn a_mapping_that_the_program_splits_and_locks_is_still_far_memory() {
    let h = host(&["--size", "1GiB"]);
    find(&h, &[("split", "0 wrong 0")]);
}

/// Advice that is not followed fails. `madvise(DONTFORK)` and `madvise(WIPEONFORK)` keep secrets from
/// children, so a 0 without effect would show them.
#[test]
fn calls_on_far_memory_do_what_they_answer() {
    let h = host(&["--size", "1GiB"]);
    let (exists, invalid) = (libc::EEXIST, libc::EINVAL);
    let (memory, access) = (libc::ENOMEM, libc::EACCES);
    let i = invalid;
    let advice =
        format!("{:?} true {:?} {i} wrong 0", [0, 0, 0, 0, 0, 0, i, i, i, i, i, i], [i, i, i]);
    let remaps = format!("{:?} wrong 0", [0, 0, 0, 0, i, i, i, i, i, i]);
    let maps = format!("{:?} wrong 0", [0, 0, exists, exists, i, i, i, i]);
    let rarer = format!("{:?} wrong 0", [memory, memory, memory, memory, access, 0, i, i, i, i, i]);
    find(&h, &[("promises", &[advice, remaps, maps, rarer].join("; "))]);
}

/// `env` becomes the program, which then has no far memory.
#[test]
fn a_wrapper_does_not_lose_far_memory_in_silence() {
    let h = host(&["--size", "256MiB"]);
    let (program, mode) = (example("probes"), "sigbus");
    let program = program.to_str().unwrap();
    let args = ["--local", "16MiB", "--far", "128MiB", "--from", &h.address, "--mode", mode, "--"];
    let out = run(&[&args[..], &["env", "A=1", program, "taken"]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    let sentence = format!("has become {program}, which has no far memory; ");
    assert_eq!(said.matches(&sentence).count(), 1, "{said}");
}

/// The program gives number 2 to a file of its own, and then its far memory is lost.
#[test]
fn a_message_of_the_pager_never_goes_to_a_file_of_the_program() {
    let folder = Folder::new("errors");
    // A raw call reaches the copy of standard error in sigbus mode: only there nothing is said. A
    // child has no copy, but its parent may report the loss too.
    for (how, mode, is_said) in [
        ("closed", "sigbus", Some(true)),
        ("closed", "thread", Some(true)),
        ("raw replaced", "sigbus", Some(false)),
        ("child", "thread", None),
    ] {
        let mut h = host(&["--size", "256MiB"]);
        let file = folder.path.join(format!("{mode} {how}"));
        let mut command = Command::new(pando_mem());
        command.args(["run", "--local", "16MiB", "--far", "128MiB", "--from", &h.address]);
        command.args(["--mode", mode, "--"]).arg(example("probes")).arg(how).arg(&file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut p = Running(bound(&mut command).spawn().unwrap());
        let (mut out, mut line) = (BufReader::new(p.0.stdout.take().unwrap()), String::new());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{how} in {mode} mode");
        h.kill();
        p.0.stdin.take().unwrap().write_all(b"x").unwrap();
        let code = p.0.wait().unwrap().code();
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap(); // up to the end of a child
        assert_eq!(said, "", "{how} in {mode} mode");
        p.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!((code, &*written), (Some(97), ""), "{how} in {mode} mode: {said}");
        let says = said.contains("pando-mem: far memory is lost");
        assert!(is_said.is_none_or(|is| is == says), "{how} in {mode} mode: {said}");
    }
}
