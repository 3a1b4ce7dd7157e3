//! Programs on far memory where the kernel cannot move pages (before Linux 6.8): the pager copies
//! them. `--copy-pages` does the same on a newer kernel.

mod far;

use far::*;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a program in a mode with copied pages; returns its output and exit code.
fn copied(h: &Host, mode: &str, program: &str, args: &[&str]) -> (String, Option<i32>) {
    let program = example(program);
    let how = ["--local", "16MiB", "--far", "256MiB", "--from", &h.address, "--mode", mode];
    let rest = ["--copy-pages", "--", program.to_str().unwrap()];
    let out = run(&[&how[..], &rest, args].concat());
    let text = String::from_utf8_lossy(&out.stdout).trim().to_string();
    (text + &String::from_utf8_lossy(&out.stderr), out.status.code())
}

#[test]
fn every_byte_is_right_and_no_write_is_lost() {
    let h = host(&["--size", "1GiB"]);
    for mode in ["sigbus", "thread"] {
        let (output, code) = copied(&h, mode, "touch", &["64", "16", "40000", "7"]);
        assert!(code == Some(0) && output.contains("wrong 0"), "{mode}: {code:?} {output}");
        for (case, finds) in [
            ("counted", "wrong 0"),
            ("files", "[] wrong 0"),
            ("stacks", "0 wrong 0"),
            ("split", "0 wrong 0"),
            ("under way", "child 0 wrong 0"),
        ] {
            let (output, code) = copied(&h, mode, "probes", &[case]);
            assert!(code == Some(0) && output == finds, "{case} in {mode}: {code:?} {output:?}");
        }
    }
}

#[test]
fn pages_leave_while_a_child_shares_them() {
    let h = host(&["--size", "1GiB"]);
    let program = example("probes");
    for mode in ["sigbus", "thread"] {
        let how = ["--local", "16MiB", "--far", "256MiB", "--from", &h.address, "--mode", mode];
        let moved = run(&[&how[..], &["--", program.to_str().unwrap(), "shared"]].concat());
        assert_eq!(String::from_utf8_lossy(&moved.stdout).trim(), "leave true", "{mode}");
        assert_eq!(copied(&h, mode, "probes", &["shared"]).0, "leave true", "copies in {mode}");
    }
}

#[test]
fn a_direct_read_is_refused_only_where_pages_are_copied() {
    let h = host(&["--size", "1GiB"]);
    for mode in ["sigbus", "thread"] {
        let refused = format!("{:?}", [libc::EINVAL; 4]);
        assert_eq!(copied(&h, mode, "probes", &["direct"]), (refused, Some(0)), "{mode}");
    }
    let program = example("probes");
    let all = ["--local", "16MiB", "--from", &h.address, "--", program.to_str().unwrap(), "direct"];
    assert_eq!(String::from_utf8_lossy(&run(&all).stdout).trim(), "[0, 0, 0, 0]");
}

#[test]
fn a_snapshot_holds_the_moment_of_its_fork_while_pages_leave() {
    const KEYS: u64 = 1200;
    let h = host(&["--size", "512MiB"]);
    let args = ["--local", "20MiB", "--from", &h.address, "--copy-pages"];
    let r = redis("copies", &args, &["--rdb-key-save-delay", "500"]);
    let mut c = r.client();
    let key = |k: u64| format!("k{k}").into_bytes();
    let ok = Reply::Text(b"OK".into());
    (0..KEYS).for_each(|k| assert_eq!(c.call(&[b"SET", &key(k), &value(k, 0)]), ok));
    assert!(matches!(c.call(&[b"BGSAVE"]), Reply::Text(_)));
    for k in 0..KEYS {
        let (key, new) = (key(k), value(k, 1));
        assert!(k % 3 > 0 || c.call(&[b"SET", &key, &new]) == ok);
        assert!(c.call(&[b"GET", &key]) == Reply::Text(if k % 3 > 0 { value(k, 0) } else { new }));
    }
    until("the snapshot is written", || match c.call(&[b"INFO", b"persistence"]) {
        Reply::Text(t) => String::from_utf8_lossy(&t).contains("rdb_bgsave_in_progress:0"),
        other => panic!("{other:?}"),
    });
    let plain = redis("copies-plain", &[], &["--dir", r.dir.to_str().unwrap()]);
    let mut before = plain.client();
    for k in 0..KEYS {
        assert!(before.call(&[b"GET", &key(k)]) == Reply::Text(value(k, 0)), "key {k} is wrong");
    }
}

#[test]
fn io_uring_is_refused_where_pages_are_copied() {
    let h = host(&["--size", "64MiB"]);
    let folder = Folder::new("copied-rings");
    let program = with_io_uring(&folder);
    let args =
        ["--local", "16MiB", "--from", &h.address, "--copy-pages", "--", program.to_str().unwrap()];
    let out = run(&args);
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(11) && why.contains("boot Linux 6.8"), "{out:?}");
}

/// Has a filter of system calls refuse userfaultfd, as that of Docker does.
fn filtered(command: &mut Command) -> &mut Command {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_userfaultfd as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    unsafe {
        command.pre_exec(move || {
            let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
            let set = [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
            ];
            if set == [0, 0] { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    }
}

#[test]
fn behind_a_filter_of_calls_the_device_serves_and_a_refusal_names_the_filter() {
    let h = host(&["--size", "256MiB"]);
    let start = |prepare: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]);
        command.arg(pando_mem()).args(["run", "--local", "16MiB", "--from", &h.address, "--"]);
        filtered(command.arg(example("touch")).args(["24", "2", "20000", "7"])).output().unwrap()
    };
    let (open, hidden) = (start("true"), start("mount -t tmpfs none /dev"));
    let output = String::from_utf8_lossy(&open.stdout);
    assert!(open.status.success() && output.contains("wrong 0"), "{open:?}");
    assert!(open.stderr.is_empty(), "thread mode has no message: {open:?}");
    let why = String::from_utf8_lossy(&hidden.stderr);
    assert!(hidden.status.code() == Some(10), "{hidden:?}");
    for part in ["(seccomp) refuses userfaultfd", "--device /dev/userfaultfd"] {
        assert!(why.contains(part), "{why:?} has no {part:?}");
    }
}

/// Touches pages in both modes. Then a Redis with twice its local memory saves a snapshot, which an
/// ordinary Redis reads.
const ON_THE_OLDEST: &str = "
set -e
case $(uname -r) in 6.1.*) ;; *) uname -r; exit 1;; esac
mkdir -p /usr/lib/x86_64-linux-gnu
cp /bin/libjemalloc.so.2 /usr/lib/x86_64-linux-gnu/
cd /tmp
pando-mem serve --size 512MiB --listen 127.0.0.1:7070 >lending &
until grep -q lending lending; do sleep 0.1; done
far='pando-mem run --local 16MiB --far 96MiB --from 127.0.0.1:7070 --mode'
for mode in sigbus thread; do $far $mode -- touch 24 1 1000 7; done
redis=\"redis-server --enable-debug-command yes --save ''\"
$far thread -- $redis >log &
until redis-cli ping >asked 2>&1 && grep PONG asked; do sleep 0.1; done
redis-cli debug populate 800 key 32000
redis-cli debug digest >before
redis-cli bgsave
until redis-cli info persistence | grep rdb_bgsave_in_progress:0; do sleep 0.1; done
redis-cli debug digest >after
pando-mem top --once -o json
redis-cli shutdown nosave
$redis >log &
until redis-cli debug digest >saved 2>&1 && ! grep -e LOADING -e refused saved; do sleep 0.1; done
cat before after saved
cmp before after
cmp before saved
";

#[test]
fn the_oldest_kernel_runs_programs_on_far_memory() {
    let has_qemu = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if unsafe { libc::geteuid() } != 0 || !has_qemu {
        return eprintln!("skipped: root and qemu-system-x86_64 make virtual machines");
    }
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = |name: &str| pando_mem().with_file_name(name);
    let mut vm = Command::new(repository.join("deploy/in-kernel"));
    vm.env("SECONDS_MAX", "540").args(["6.1", "grep", "cmp", "redis-server", "redis-cli"]);
    vm.arg(pando_mem()).arg(beside("libpando_pager.so"));
    vm.arg("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2").arg(example("touch"));
    let mut vm = bound(&mut vm).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    vm.stdin.take().unwrap().write_all(ON_THE_OLDEST.as_bytes()).unwrap();
    let out = vm.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{:?}\n{output}", out.status);
    assert!(output.matches("wrong 0").count() == 2 && figure_in(&output, "pages_fetched") > 1000);
}
