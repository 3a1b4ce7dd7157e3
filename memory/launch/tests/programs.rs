//! Programs on far memory read correct bytes.

mod far;

use far::*;
use std::io::Read;

fn touch(from: &str, extra: &[&str], mib: &str, threads: &str, accesses: &str) {
    let program = example("touch");
    let mut args = vec!["--local", "16MiB", "--far", "256MiB", "--from", from];
    args.extend(extra);
    let pando_mem = pando_mem();
    args.extend([
        "--",
        program.to_str().unwrap(),
        mib,
        threads,
        accesses,
        "7",
        pando_mem.to_str().unwrap(),
    ]);
    let out = run(&args);
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.contains("wrong 0"), "{:?} {text}", out.status);
    assert!(!text.contains("handled 0 "), "the timer never fired: {text}");
    // Otherwise the test did not use far memory.
    let (fetched, accesses) = (figure_in(&text, "pages_fetched"), accesses.parse::<u64>().unwrap());
    println!(
        "{accesses} accesses, {fetched} pages fetched, {} times room was short",
        figure_in(&text, "faults_room")
    );
    assert!(fetched * 10 >= accesses, "{fetched} pages fetched: {text}");
}

#[test]
fn every_byte_in_64_threads_inside_malloc_and_inside_signal_handlers() {
    // Room for two leases: a busy host may still hold the first when the second mode asks.
    let h = host(&["--size", "512MiB"]);
    for mode in ["sigbus", "thread"] {
        touch(
            &h.address,
            &["--mode", mode],
            "64",
            "64",
            &times("PANDO_ACCESSES", 60_000).to_string(),
        );
    }
}

#[test]
fn threads_end_while_what_the_c_library_noted_of_them_is_away() {
    let h = host(&["--size", "256MiB"]);
    let program = example("threads");
    let out = run(&[
        "--local",
        "16MiB",
        "--far",
        "128MiB",
        "--from",
        &h.address,
        "--",
        program.to_str().unwrap(),
        "48",
        "6",
    ]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text == "ended 288\n",
        "{:?} {text} {}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn without_the_right_to_handler_threads_a_program_serves_itself_and_says_so() {
    let h = host(&["--size", "256MiB"]);
    let folder = Folder::new("denied");
    let denied = |mode: &str, program: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args([
            "-m",
            "sh",
            "-c",
            "[ ! -e /dev/userfaultfd ] || mount --bind /dev/null /dev/userfaultfd; exec \"$@\"",
            "sh",
        ]);
        command
            .args(["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"])
            .arg(pando_mem());
        command.args([
            "run", "--local", "16MiB", "--far", "128MiB", "--from", &h.address, "--mode", mode,
            "--", program,
        ]);
        let out = command.args(["24", "2", "20000", "7"]).output().unwrap();
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stdout).into_owned(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    let (code, said, why) = denied("auto", example("touch").to_str().unwrap());
    assert!(code == Some(0) && said.contains("wrong 0"), "{code:?} {said} {why}");
    assert!(
        why.matches("serves its own faults (sigbus mode)").count() == 1
            && why.contains("/dev/userfaultfd"),
        "{why}"
    );
    let (code, _, why) = denied("thread", example("touch").to_str().unwrap());
    assert!(
        code == Some(10) && why.contains("--mode thread is not allowed here"),
        "{code:?} {why}"
    );
    let (code, _, why) = denied("auto", with_io_uring(&folder).to_str().unwrap());
    assert!(code == Some(10) && why.contains("uses io_uring"), "{code:?} {why}");
}

#[test]
fn a_program_gets_handler_threads_by_itself() {
    let h = host(&["--size", "256MiB"]);
    let program = example("touch");
    let mut command = std::process::Command::new(pando_mem());
    command.args([
        "run",
        "--local",
        "16MiB",
        "--far",
        "128MiB",
        "--from",
        &h.address,
        "--",
        program.to_str().unwrap(),
    ]);
    let mut running = Running(
        command
            .args(["48", "2", "60000", "7"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let pid = running.0.id();
    let named = |t: std::fs::DirEntry| {
        std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.starts_with("pando-handler"))
    };
    until("handler threads", || {
        std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().any(named)
    });
    let mut text = String::new();
    running.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(running.0.wait().unwrap().success() && text.contains("wrong 0"), "{text}");
}

#[test]
fn every_byte_by_each_prefetcher() {
    let h = host(&["--size", "1GiB"]);
    for p in ["none", "sequential", "stride"] {
        touch(&h.address, &["--prefetch", p], "48", "3", "40000");
    }
}

#[test]
fn every_byte_over_shared_memory() {
    let folder = Folder::new("shared");
    let listen = format!("unix:{}", folder.path.join("socket").display());
    let h = host(&["--size", "256MiB", "--listen", &listen]);
    touch(&h.address, &[], "64", "8", "100000");
}

#[test]
fn forks_while_threads_map_and_unmap() {
    let h = host(&["--size", "512MiB"]);
    for mode in ["sigbus", "thread"] {
        let (program, forks) = (example("churn"), times("PANDO_FORKS", 24).to_string());
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
        ];
        let out = run(&[&args[..], &["32", "3", &forks, "11"]].concat());
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(
            out.status.success() && text.contains("wrong 0") && !text.contains("handled 0 "),
            "{mode}: {:?} {text}",
            out.status
        );
    }
}

/// The C library changes the user only of its own threads.
#[test]
fn no_thread_stays_root_when_the_program_drops_root() {
    let h = host(&["--size", "512MiB"]);
    let program = example("calls");
    for mode in ["sigbus", "thread"] {
        let given = [
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
            "root",
        ];
        let out = run(&given);
        let (said, why) =
            (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let one = "Uid: 1236 1236 1236 1236 Gid: 1235 1235 1235 1235 Groups: 1234";
        assert!(
            out.status.success() && said.trim() == format!("7 {{{one:?}}}"),
            "{mode}: {:?} {said:?} {why}",
            out.status
        );
    }
}

/// The usual fault handling does not work inside these calls.
#[test]
fn calls_on_memory_that_is_away() {
    let h = host(&["--size", "8GiB"]);
    let program = example("calls");
    for (case, finds) in [
        ("output", "first second\nthird"),
        ("passwd", "true"),
        ("names", "0"),
        ("blocked", "found 7"),
        ("timers", "found 15"),
        ("messages", "found 15 [107, 107]"),
        ("asynchronous", "-1 true -11"),
        ("alternate", "found 7"),
        ("system", "away\n0"),
        ("popen", "away 0"),
        ("spawn", "away sh\n0 0"),
        ("streams", "300"),
        ("closed", "700"),
        ("cancel", "-1"),
        ("fork", "700"),
        ("clone", "700"),
        ("bare", "700"),
        ("arguments", "2996\n2996\n0 0 0"),
        ("vfork", "700 7"),
        ("children", "[140, 148] true"),
        ("stack", "0 0"),
        ("descriptors", "7"),
        ("mutexes", "true 0"),
        ("objects", "true true true"),
        ("run", "true"),
        ("growing", "0 7 0"),
    ] {
        for mode in ["sigbus", "thread"] {
            // Handler threads also serve the C library's own threads: nothing is refused.
            if (case, mode) == ("asynchronous", "thread") {
                continue;
            }
            let given = [
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
            let out = run(&given);
            let (said, why) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(
                out.status.success() && said.trim() == finds,
                "{case} in {mode} mode: {:?} {said:?} {why}",
                out.status
            );
        }
    }
}

#[test]
fn more_than_fits_is_told_and_then_the_end() {
    let h = host(&["--size", "256MiB"]);
    // The program maps all its memory before it uses any. Later it could not get more.
    let script = "import mmap, sys\n\
        all = [mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in \
        range(int(sys.argv[1]))]\n\
        places = [(m, at) for m in all for at in range(0, len(m), 4096)]\n\
        for m, at in places: m[at:at + 8] = at.to_bytes(8, 'big')\n\
        print(min(m[at:at + 8] == at.to_bytes(8, 'big') for m, at in places))";
    for (maps, ends, said) in [
        ("2", 0, &[][..]),
        ("6", 0, &["stays local, over the budget"]),
        ("14", 97, &["stays local, over the budget", "stopped at twice its --local"]),
    ] {
        let out = run(&[
            "--local",
            "24MiB",
            "--far",
            "32MiB",
            "--from",
            &h.address,
            "--",
            "/usr/bin/python3",
            "-c",
            script,
            maps,
        ]);
        let why = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(ends), "{maps} maps: {why}");
        assert!(
            why.matches("is full").count() == said.len() && said.iter().all(|s| why.contains(s)),
            "{maps} maps: {why}"
        );
        assert!(ends != 0 || out.stdout == b"True\n", "{maps} maps: a wrong byte");
    }
}

/// Starts a Python that ends when its standard input does.
fn python(from: &str, script: &str) -> Running {
    let mut command = std::process::Command::new(pando_mem());
    command.args([
        "run",
        "--local",
        "24MiB",
        "--far",
        "64MiB",
        "--from",
        from,
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ]);
    let piped = std::process::Stdio::piped;
    Running(bound(&mut command).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap())
}

#[test]
fn memory_that_stays_outside_is_told_once() {
    let h = host(&["--size", "256MiB"]);
    const TAKES: &str = "import mmap, os, sys\ndef take(flags):\n m = mmap.mmap(-1, 64 << 20, \
        flags=flags | mmap.MAP_ANONYMOUS)\n\
        \x20for at in range(0, len(m), 4096): m[at] = 1\n return m\n";
    for (figure_name, whose, script) in [
        ("outside_now", "of the program", "m = take(mmap.MAP_SHARED)\nsys.stdin.read()"),
        (
            "children_now",
            "of a forked child",
            "if os.fork(): os.wait()\nelse: m = take(mmap.MAP_SHARED); m = take(mmap.MAP_PRIVATE)\n\
             sys.stdin.read()",
        ),
    ] {
        let mut running = python(&h.address, &format!("{TAKES}{script}"));
        let (pid, mut said) =
            (running.0.id(), std::io::BufReader::new(running.0.stderr.take().unwrap()));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert!(line.contains("outside far memory") && line.contains(whose), "{line}");
        until("the gauge shows it", || figure(pid, figure_name) > 24 << 20);
        drop(running.0.stdin.take());
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(running.0.wait().unwrap().success() && !rest.contains("outside"), "{rest}");
    }
}

#[test]
fn numpy_computes_the_same() {
    let h = host(&["--size", "512MiB"]);
    let code = "import numpy as n; a=n.random.default_rng(5).integers(0,1<<30,6_000_000); \
        a.sort(); b=n.cumsum(a)%1000003; c=a[::-1]^b; print(a[::9999].sum(), c.sum(), \
        n.linalg.norm(c.astype(float)), n.unique(b[:100000]).size)";
    let python = "/usr/bin/python3";
    let plain = std::process::Command::new(python).args(["-c", code]).output().unwrap();
    let out = run(&["--local", "40MiB", "--from", &h.address, "--", python, "-c", code]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!plain.stdout.is_empty() && plain.stdout == out.stdout);
}

/// Returns the path of a program, if this machine has it.
fn installed(name: &str) -> Option<String> {
    let out = std::process::Command::new("sh")
        .args(["-c", &format!("readlink -f \"$(command -v {name})\"")])
        .output()
        .unwrap();
    let path = String::from_utf8_lossy(&out.stdout).trim().to_string();
    (!path.is_empty() && path.starts_with('/')).then_some(path)
}

#[test]
fn programs_that_were_not_written_for_it_run() {
    let h = host(&["--size", "1GiB"]);
    let folder = Folder::new("ordinary");
    let path = |name: &str| folder.path.join(name).to_str().unwrap().to_string();
    let lines: Vec<String> = (0..400_000u64)
        .map(|i| format!("{:016x} {i}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    std::fs::write(path("lines"), lines.join("\n") + "\n").unwrap();
    let sort: Vec<String> =
        ["/usr/bin/sort", "-S", "40M", "--parallel=1", &path("lines")].map(String::from).into();
    let plain = std::process::Command::new(&sort[0]).args(&sort[1..]).output().unwrap();
    for mode in ["sigbus", "thread"] {
        let mut args =
            vec!["--local", "16MiB", "--far", "256MiB", "--from", &h.address, "--mode", mode, "--"];
        args.extend(sort.iter().map(String::as_str));
        let out = run(&args);
        assert!(
            out.status.success() && out.stdout == plain.stdout,
            "{mode}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    let Some(java) = installed("java") else {
        println!("skipped: java is not installed");
        return;
    };
    let code = "public class Sum { public static void main(String[] a) {
        var m = new java.util.HashMap<Integer, String>(); long s = 0;
        for (int i = 0; i < 100000; i++) m.put(i, \"v\" + i);
        for (int i = 0; i < 100000; i++) s += m.get(i).length();
        System.out.println(s); } }";
    std::fs::write(path("Sum.java"), code).unwrap();
    let out = run(&[
        "--local",
        "96MiB",
        "--far",
        "512MiB",
        "--from",
        &h.address,
        "--",
        &java,
        "-Xmx200m",
        &path("Sum.java"),
    ]);
    assert!(
        out.status.success() && out.stdout == b"588890\n",
        "{:?} {}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn a_program_that_walks_and_reads_files_sees_the_same() {
    let h = host(&["--size", "512MiB"]);
    let code = "import os,hashlib\nkeep=[];h=hashlib.sha256()\n\
        for d,s,f in os.walk('/usr/share/doc'):\n s.sort()\n for n in sorted(f):\n\
        \x20 p=os.path.join(d,n); st=os.lstat(p)\n\
        \x20 h.update(p.encode()+str(st.st_size).encode())\n\
        \x20 if os.path.isfile(p): b=open(p,'rb').read(); h.update(b); keep.append(b)\n\
        \x20if len(keep)>6000: break\n\
        for b in keep[::-1]: h.update(b)\nprint(len(keep),sum(map(len,keep)),h.hexdigest())";
    let python = "/usr/bin/python3";
    let plain = std::process::Command::new(python).args(["-c", code]).output().unwrap();
    let begun = std::time::Instant::now();
    let out = run(&["--local", "16MiB", "--from", &h.address, "--", python, "-c", code]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // If the buffers of folders and streams stayed for good, almost no page could leave. Then it
    // took a hundred times as long.
    assert!(begun.elapsed().as_secs() < 60, "it took {:?}", begun.elapsed());
    assert!(
        !plain.stdout.is_empty() && plain.stdout == out.stdout,
        "{} {}",
        String::from_utf8_lossy(&plain.stdout),
        String::from_utf8_lossy(&out.stdout)
    );
}
