//! What cannot work is refused with its cause and the next step, before the program starts.

mod far;

use far::*;
use memory_core::wire::{Hello, Status, Welcome};
use std::os::unix::fs::PermissionsExt;

#[test]
fn bad_input() {
    let folder = Folder::new("refused");
    let dir = &folder.path;
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (token, other, short) = (file("token", "correct horse"), file("other", "wrong battery"), file("short", "abc"));
    let setuid = dir.join("setuid");
    std::fs::copy("/bin/true", &setuid).unwrap();
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).unwrap();
    let h = host(&["--size", "64MiB", "--token-file", &token]);
    let at = h.address.as_str();
    // Something else listens there, and says something else.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let strange = stranger.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut s in stranger.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut s, b"220 mail.example.org ESMTP, at your service\r\n");
        }
    });
    // A memory host lends more than there can be.
    let boaster = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let boast = boaster.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let welcome = Welcome { status: Status::Ok, lease: 7, slots: u64::MAX }.encode();
        for mut s in boaster.incoming().flatten() {
            let _ = std::io::Read::read_exact(&mut s, &mut [0; Hello::BYTES]);
            let _ = std::io::Write::write_all(&mut s, &welcome);
        }
    });
    let script = file("script", "#!/bin/sh\n");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let setuid = setuid.to_str().unwrap();
    let cases: &[(&[&str], &str, i32)] = &[
        (&["--local", "32MiB", "--from", "127.0.0.1:9", "--", "true"], "does not answer", 8),
        (&["--local", "32MiB", "--from", at, "--", "true"], "refuses the token", 5),
        (&["--local", "32MiB", "--from", at, "--token-file", &other, "--", "true"], "refuses the token", 5),
        (&["--local", "32MiB", "--from", at, "--token-file", &short, "--", "true"], "wants 8 to 32", 3),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--far", "65MiB", "--", "true"], "has only 64.0 MiB free", 5),
        (&["--local", "1MiB", "--from", at, "--token-file", &token, "--", "true"], "give at least 16.0 MiB", 3),
        (&["--local", "10%", "--from", at, "--token-file", &token, "--", "true"], "give at least 16.0 MiB", 3),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--", setuid], "setuid", 11),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--", "no-such-program"], "there is no program", 4),
        (&["--local", "32MiB", "--from", "nowhere", "--", "true"], "neither HOST:PORT nor unix:PATH", 3),
        (&["--local", "32MiB", "--from", at, "--copies", "2", "--", "true"], "2 copies want at least 2", 3),
        (&["--local", "lots", "--from", at, "--", "true"], "is no size", 2),
        (&["--local", "32MiB", "--from", at, "--", &token], "`chmod +x` makes a program of it", 3),
        (&["--local", "32MiB", "--from", at, "--", "/tmp"], "is a folder", 3),
        (&["--local", "32MiB", "--from", at, "--token-file", "/dev/zero", "--", "true"], "4096 bytes or more; it wants 8 to 32", 3),
        (&["--local", "32MiB", "--from", at, "--", "/sbin/ldconfig"], "statically linked", 11),
        (&["--local", "32MiB", "--from", at, "--", &script], "is a script", 11),
        (&["--local", "32MiB", "--from", &strange, "--", "true"], "another version", 3),
        (&["--local", "32MiB", "--from", &boast, "--", "true"], "are more than 2048 GiB", 3),
        (&["--local", "32MiB", "--from", at, "--token-file", "/no/such/file", "--", "true"], "makes one, the same for both sides", 4),
        (&["--local", "32MiB", "--from", at, "--copies", "9", "--", "true"], "want at least 9", 3),
        (&["--local", "0%", "--from", at, "--", "true"], "is no share", 2),
        (&["--local", "32MiB", "--from", at, "--patience", "60", "--", "true"], "write for example 90s or 5m", 2),
        (&["--local", "32MiB", "--from", &format!("{at},{at}"), "--token-file", &token, "--", "true"], "stands twice in --from", 3),
        (&["--local", "32MiB", "--", "true"], "--from", 2),
        (
            &["--local", "32MiB", "--fron", at, "--", "true"],
            "unexpected argument '--fron' found\n\n  tip: a similar argument exists: '--from'",
            2,
        ),
        (&["--local", "32MiB", "--from", at], "<PROGRAM>", 2),
    ];
    for (args, why, code) in cases {
        let out = run(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            out.status.code() == Some(*code) && said.contains(why),
            "{args:?} said {said:?} and {}, not {why:?} and {code}",
            out.status
        );
    }
    // What a refused start has leased it gives back at once (a host lets a lease run out after 10 s), and a right start works.
    let lost = format!("{at},127.0.0.1:9");
    let start = std::time::Instant::now();
    for from in [lost.as_str(), at] {
        until("what was refused is free again", || {
            let out = run(&["--local", "32MiB", "--from", from, "--token-file", &token, "--far", "60MiB", "--", "true"]);
            let said = String::from_utf8_lossy(&out.stderr);
            if from == at {
                out.status.success()
            } else {
                said.contains("127.0.0.1:9 does not answer")
            }
        });
    }
    assert!(start.elapsed().as_secs() < 8, "the lease ran out, it was not given back");
    // A program that has ended has given back what it borrowed.
    let again = run(&["--local", "32MiB", "--from", at, "--token-file", &token, "--far", "60MiB", "--", "true"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    std::fs::remove_dir_all(dir).unwrap();
}

/// What a memory host may listen at is a name of its own: no file of the user's gives way to it.
#[test]
fn a_socket_takes_no_file_away() {
    let folder = Folder::new("place");
    let file = folder.path.join("precious");
    std::fs::write(&file, "precious").unwrap();
    let mut serve = std::process::Command::new("timeout");
    serve.args(["-s", "KILL", "60"]).arg(pando_mem()).args(["serve", "--size", "1MiB", "--listen", &format!("unix:{}", file.display())]);
    let out = serve.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(6) && said.contains("Address already in use"), "{}: {said}", out.status);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    // A socket that a killed host has left is taken over.
    let left = folder.path.join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    host(&["--size", "1MiB", "--listen", &format!("unix:{}", left.display())]);
}

/// What the launcher tells the pager may be anything, where somebody else wrote it: a sentence or an ordinary start, no crash.
#[test]
fn any_configuration_is_read_or_refused() {
    let pager = pando_mem().with_file_name("libpando_pager.so");
    let good = "exe=0:0 local=33554432 slots=16384 copies=1 patience=60000000000 prefetch=extent mode=sigbus token=00 stats=/dev/null host=02001b9e7f000001/77";
    let mut refusals = 0;
    for i in 0..150u64 {
        let mut text = good.as_bytes().to_vec();
        let noise = content(i, 3, 12);
        for pair in noise.chunks(2).take(1 + i as usize % 6) {
            let at = pair[0] as usize % text.len().max(1);
            match i % 3 {
                0 if at < text.len() => text[at] = pair[1].max(1),
                0 | 1 => text.truncate(at),
                _ => text.insert(at, b" =/:0-"[pair[1] as usize % 6]),
            }
        }
        let text = <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(text);
        let out = std::process::Command::new("/bin/true").env("LD_PRELOAD", &pager).env("PANDO_MEM", &text).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let refused = out.status.code() == Some(97) && said.contains("start the program with `pando mem run`");
        assert!(refused || out.status.success(), "{text:?}: {:?} {said}", out.status);
        refusals += refused as u32;
    }
    assert!((10..150).contains(&refusals), "{refusals} of 150 refused");
}

#[test]
fn a_port_that_is_taken_and_a_process_that_borrows_nothing_are_named() {
    let h = host(&["--size", "64MiB"]);
    for (args, want) in [
        (["serve", "--size", "64MiB", "--listen", &h.address].as_slice(), format!("cannot listen at {}: ", h.address)),
        (&["top", "--once", "--pid", "1"], "process 1 borrows no memory".into()),
    ] {
        let out = std::process::Command::new(pando_mem()).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(&want), "{args:?}: {text}");
    }
}

#[test]
fn a_memory_host_that_ends_says_what_it_held_for_whom() {
    let mut command = std::process::Command::new(pando_mem());
    command.args(["serve", "--size", "64MiB", "--listen", "127.0.0.1:0"]);
    let piped = std::process::Stdio::piped;
    let mut host = Running(bound(&mut command).stdout(piped()).stderr(piped()).spawn().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(host.0.stdout.as_mut().unwrap()), &mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap();
    let mut command = std::process::Command::new(pando_mem());
    command.args(["run", "--local", "16MiB", "--far", "32MiB", "--from", address, "--", "/bin/cat"]);
    let mut borrower = Running(bound(&mut command).stdin(piped()).stdout(piped()).spawn().unwrap());
    // It answers, so its lease is there.
    std::io::Write::write_all(borrower.0.stdin.as_mut().unwrap(), b"x").unwrap();
    std::io::Read::read_exact(borrower.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    let mut said = String::new();
    std::io::Read::read_to_string(host.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("ending with 32.0 MiB lent to 127.0.0.1:"), "{said}");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&host.0.wait().unwrap()), Some(libc::SIGTERM));
}
