//! Starts that cannot work are refused with the cause and the next step, before the program starts.

mod far;

use far::*;
use memory_core::wire::{Challenge, Hello, Status, Welcome};
use std::os::unix::fs::PermissionsExt;

/// A memory host of 64 MiB, and the files of the cases.
struct Place {
    folder: Folder,
    host: Host,
    token: String,
}

impl Place {
    fn new(name: &str) -> Place {
        let folder = Folder::new(name);
        let token = file(&folder, "token", "correct horse");
        Place { host: host(&["--size", "64MiB", "--token-file", &token]), folder, token }
    }

    fn at(&self) -> &str {
        &self.host.address
    }

    /// Correct arguments up to the token. The case adds the rest.
    fn right(&self) -> [&str; 6] {
        ["--local", "32MiB", "--from", self.at(), "--token-file", &self.token]
    }
}

fn file(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.path.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// Arguments, a part of the message, and the exit code.
type Case<'c> = (&'c [&'c str], &'c str, i32);

/// Expects that each start is refused, after the arguments that all of them have.
fn refused(common: &[&str], cases: &[Case]) {
    for (args, why, code) in cases {
        let args = [common, args].concat();
        let out = run(&args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            out.status.code() == Some(*code) && said.contains(why),
            "{args:?} said {said:?} and {}, not {why:?} and {code}",
            out.status
        );
    }
}

/// Listens like a host of another kind. Sends `begin` to each connection, and `answer` once it has
/// received `first` bytes.
fn impostor(begin: Vec<u8>, first: usize, answer: Vec<u8>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut s in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut s, &begin);
            let _ = std::io::Read::read_exact(&mut s, &mut vec![0; first]);
            let _ = std::io::Write::write_all(&mut s, &answer);
        }
    });
    address
}

#[test]
fn hosts_that_do_not_lend() {
    let place = Place::new("lend");
    let at = place.at();
    let mail = impostor(vec![], 0, b"220 mail.example.org ESMTP, at your service\r\n".to_vec());
    // More than any machine has.
    let boast = impostor(
        Challenge { nonce: [0; 16] }.encode().to_vec(),
        Hello::BYTES,
        Welcome { status: Status::Ok, lease: 7, slots: u64::MAX }.encode().to_vec(),
    );
    let twice = format!("{at},{at}");
    let cases: &[Case] = &[
        (&["--from", "127.0.0.1:9", "--", "true"], "does not answer", 8),
        (&["--from", "nowhere", "--", "true"], "neither HOST:PORT nor unix:PATH", 3),
        (&["--from", &mail, "--", "true"], "another version", 3),
        (&["--from", &boast, "--", "true"], "are more than 2048 GiB", 3),
        (
            &["--from", &twice, "--token-file", &place.token, "--", "true"],
            "stands twice in --from",
            3,
        ),
        (&["--from", at, "--copies", "2", "--", "true"], "2 copies want at least 2", 3),
        (&["--from", at, "--copies", "9", "--", "true"], "want at least 9", 3),
        (
            &["--from", at, "--token-file", &place.token, "--far", "65MiB", "--", "true"],
            "has only 64.0 MiB free",
            5,
        ),
        (&["--", "true"], "--from", 2),
    ];
    refused(&["--local", "32MiB"], cases);
}

#[test]
fn wrong_tokens() {
    let place = Place::new("tokens");
    let (other, short) =
        (file(&place.folder, "other", "wrong battery"), file(&place.folder, "short", "abc"));
    let cases: &[Case] = &[
        (&["--", "true"], "refuses the token", 5),
        (&["--token-file", &other, "--", "true"], "refuses the token", 5),
        (&["--token-file", &short, "--", "true"], "wants 8 to 32", 3),
        (&["--token-file", "/dev/zero", "--", "true"], "4096 bytes or more; it wants 8 to 32", 3),
        (&["--token-file", "/no/such/file", "--", "true"], "makes one, the same for both sides", 4),
    ];
    refused(&["--local", "32MiB", "--from", place.at()], cases);
}

/// Each borrower proves its own token. The host serves a borrower once its line is in the list.
#[test]
fn borrowers_with_tokens_of_their_own() {
    let folder = Folder::new("borrowers");
    let list = file(&folder, "borrowers", "shop correct horse\n");
    let host = host(&["--size", "64MiB", "--borrowers", &list]);
    let (shop, bank) =
        (file(&folder, "shop", "correct horse"), file(&folder, "bank", "wrong battery"));
    let from =
        ["--local", "32MiB", "--from", host.address.as_str(), "--far", "16MiB", "--token-file"];
    let starts = |token: &str| run(&[&from[..], &[token, "--", "true"]].concat());
    assert!(starts(&shop).status.success());
    refused(&from, &[(&[&bank, "--", "true"], "refuses the token", 5)]);
    file(&folder, "borrowers", "shop correct horse\nbank wrong battery\n");
    until("the host serves the new borrower", || starts(&bank).status.success());
    assert!(starts(&shop).status.success());
}

#[test]
fn wrong_sizes_and_flags() {
    let place = Place::new("sizes");
    let unknown =
        "unexpected argument '--fron' found\n\n  tip: a similar argument exists: '--from'";
    let cases: &[Case] = &[
        (
            &["--local", "1MiB", "--token-file", &place.token, "--", "true"],
            "give at least 16.0 MiB",
            3,
        ),
        (
            &["--local", "10%", "--token-file", &place.token, "--", "true"],
            "give at least 16.0 MiB",
            3,
        ),
        (&["--local", "lots", "--", "true"], "is no size", 2),
        (&["--local", "0%", "--", "true"], "is no share", 2),
        (&["--local", "32MiB", "--patience", "60", "--", "true"], "write for example 90s or 5m", 2),
        (&["--local", "32MiB"], "<PROGRAM>", 2),
    ];
    refused(&["--from", place.at()], cases);
    refused(&[], &[(&["--local", "32MiB", "--fron", place.at(), "--", "true"], unknown, 2)]);
}

#[test]
fn programs_that_cannot_run_on_far_memory() {
    let place = Place::new("programs");
    let setuid = place.folder.path.join("setuid");
    std::fs::copy("/bin/true", &setuid).unwrap();
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).unwrap();
    let script = file(&place.folder, "script", "#!/bin/sh\n");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let cases: &[Case] = &[
        (&["--", setuid.to_str().unwrap()], "setuid", 11),
        (&["--", "no-such-program"], "there is no program", 4),
        (&["--", &place.token], "`chmod +x` makes a program of it", 3),
        (&["--", "/tmp"], "is a folder", 3),
        (&["--", "/sbin/ldconfig"], "statically linked", 11),
        (&["--", &script], "is a script", 11),
    ];
    refused(&place.right(), cases);
}

/// A host lets a lease run out after 10 s. A refused start, and a program that has ended, give it
/// back at once.
#[test]
fn a_refused_start_gives_back_its_lease() {
    let place = Place::new("back");
    let (at, token) = (place.at(), place.token.as_str());
    let lost = format!("{at},127.0.0.1:9");
    let start = std::time::Instant::now();
    for from in [lost.as_str(), at] {
        until("the lease of the refused start is free again", || {
            let out = run(&[
                "--local",
                "32MiB",
                "--from",
                from,
                "--token-file",
                token,
                "--far",
                "60MiB",
                "--",
                "true",
            ]);
            let said = String::from_utf8_lossy(&out.stderr);
            if from == at {
                out.status.success()
            } else {
                said.contains("127.0.0.1:9 does not answer")
            }
        });
    }
    assert!(start.elapsed().as_secs() < 8, "the lease ran out, it was not given back");
    let again = run(&[
        "--local",
        "32MiB",
        "--from",
        at,
        "--token-file",
        token,
        "--far",
        "60MiB",
        "--",
        "true",
    ]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
}

/// A memory host makes its socket under a new name, and never removes a file of the user.
#[test]
fn a_socket_takes_no_file_away() {
    let folder = Folder::new("place");
    let file = folder.path.join("precious");
    std::fs::write(&file, "precious").unwrap();
    let mut serve = std::process::Command::new("timeout");
    serve.args(["-s", "KILL", "60"]).arg(pando_mem()).args([
        "serve",
        "--size",
        "1MiB",
        "--listen",
        &format!("unix:{}", file.display()),
    ]);
    let out = serve.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(6) && said.contains("Address already in use"),
        "{}: {said}",
        out.status
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    // A socket of a killed host is replaced.
    let left = folder.path.join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    host(&["--size", "1MiB", "--listen", &format!("unix:{}", left.display())]);
}

/// An arbitrary configuration leads to a message or to an ordinary start, never to a crash.
#[test]
fn any_configuration_is_read_or_refused() {
    let pager = pando_mem().with_file_name("libpando_pager.so");
    let good = "exe=0:0 local=33554432 slots=16384 copies=1 patience=60000000000 prefetch=extent \
        mode=sigbus token=00 stats=/dev/null host=02001b9e7f000001/77";
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
        let out = std::process::Command::new("/bin/true")
            .env("LD_PRELOAD", &pager)
            .env("PANDO_MEM", &text)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let refused = out.status.code() == Some(97)
            && said.contains("start the program with `pando mem run`");
        assert!(refused || out.status.success(), "{text:?}: {:?} {said}", out.status);
        refusals += refused as u32;
    }
    assert!((10..150).contains(&refusals), "{refusals} of 150 refused");
}

#[test]
fn a_port_that_is_taken_and_a_process_that_borrows_nothing_are_named() {
    let h = host(&["--size", "64MiB"]);
    for (args, want) in [
        (
            ["serve", "--size", "64MiB", "--listen", &h.address].as_slice(),
            format!("cannot listen at {}: ", h.address),
        ),
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
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(host.0.stdout.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    let address = line.trim().rsplit(' ').next().unwrap();
    let mut command = std::process::Command::new(pando_mem());
    command
        .args(["run", "--local", "16MiB", "--far", "32MiB", "--from", address, "--", "/bin/cat"]);
    let mut borrower = Running(bound(&mut command).stdin(piped()).stdout(piped()).spawn().unwrap());
    // It answers, so its lease exists.
    std::io::Write::write_all(borrower.0.stdin.as_mut().unwrap(), b"x").unwrap();
    std::io::Read::read_exact(borrower.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    unsafe { libc::kill(host.0.id() as i32, libc::SIGTERM) };
    let mut said = String::new();
    std::io::Read::read_to_string(host.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("ending with 32.0 MiB lent to 127.0.0.1:"), "{said}");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&host.0.wait().unwrap()),
        Some(libc::SIGTERM)
    );
}
