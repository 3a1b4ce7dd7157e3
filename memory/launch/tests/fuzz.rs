//! Arbitrary input to a memory host or from a guide. Other borrowers keep their memory, and
//! programs read correct bytes.

mod far;

use far::*;
use memory_core::wire::{Hello, Op, Reply as Answer, Request, Status, Welcome};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

fn connect(address: &str) -> TcpStream {
    let s = TcpStream::connect(address).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    s
}

fn hello(slots: u64) -> Hello {
    Hello { lease: 0, slots, token: [0; 32], share: false, last: false }
}

fn borrow(address: &str, slots: u64) -> (TcpStream, Welcome) {
    let mut s = connect(address);
    memory_host::greet(&mut s, &hello(slots)).unwrap();
    let mut b = [0; Welcome::BYTES];
    s.read_exact(&mut b).unwrap();
    (s, Welcome::decode(&b).unwrap())
}

fn read_slot(s: &mut TcpStream, slot: u32) -> Vec<u8> {
    s.write_all(&Request { op: Op::Read, count: 1, serial: 9 }.encode()).unwrap();
    s.write_all(&slot.to_le_bytes()).unwrap();
    let mut b = vec![0; 16 + 4096];
    s.read_exact(&mut b).unwrap();
    b.split_off(16)
}

#[test]
fn a_memory_host_survives_nonsense() {
    let h = host(&["--size", "64MiB"]);
    let (mut honest, w) = borrow(&h.address, 64);
    assert_eq!((w.status, w.slots), (Status::Ok, 64));
    let page = content(1, 2, 4096);
    honest.write_all(&Request { op: Op::Write, count: 1, serial: 1 }.encode()).unwrap();
    honest.write_all(&5u32.to_le_bytes()).unwrap();
    honest.write_all(&page).unwrap();
    honest.read_exact(&mut [0; 16]).unwrap();
    for i in 0..600u64 {
        let noise = content(i, 7, 16 + (i as usize * 37) % 3000);
        let mut s = connect(&h.address);
        match i % 4 {
            0 => s.write_all(&noise).unwrap_or(()),
            // A correct greeting, then noise.
            1 => {
                let correct = hello(u64::from_le_bytes(noise[..8].try_into().unwrap()));
                memory_host::greet(&mut s, &correct).unwrap();
                s.write_all(&noise).unwrap_or(());
            }
            // A new lease, then noise as requests.
            2 => {
                let (mut mine, w) = borrow(&h.address, 1);
                if w.status == Status::Ok {
                    mine.write_all(&noise).unwrap_or(());
                }
                let _ = mine.shutdown(Shutdown::Write);
                let _ = mine.read_to_end(&mut vec![]);
            }
            // A well-formed request for a slot of another borrower.
            _ => {
                let (mut mine, w) = borrow(&h.address, 1);
                if w.status == Status::Ok {
                    mine.write_all(&Request { op: Op::Read, count: 1, serial: i }.encode())
                        .unwrap();
                    mine.write_all(&(1 + i as u32 * 7_000_000).to_le_bytes()).unwrap();
                    let mut b = [0; Answer::BYTES];
                    mine.read_exact(&mut b).unwrap();
                    assert_eq!(
                        Answer::decode(&b),
                        Ok(Answer { status: Status::BadRequest, serial: i })
                    );
                }
            }
        }
    }
    assert_eq!(read_slot(&mut honest, 5), page);
    assert_eq!(read_slot(&mut honest, 6), vec![0; 4096], "memory that nobody wrote reads as zeros");
}

/// Sets a limit of a process; returns the old one.
fn limit(pid: u32, what: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut was = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    unsafe {
        assert_eq!(libc::prlimit(pid as i32, what, std::ptr::null(), &mut was), 0);
        let now = libc::rlimit { rlim_cur: soft.min(was.rlim_max), ..was };
        assert_eq!(libc::prlimit(pid as i32, what, &now, std::ptr::null_mut()), 0);
    }
    was.rlim_cur
}

#[test]
fn who_says_nothing_takes_no_place_and_no_want_ends_a_memory_host() {
    let h = host(&["--size", "64MiB"]);
    let pid = h.process.0.id();
    let (mut honest, w) = borrow(&h.address, 64);
    assert_eq!(w.status, Status::Ok);
    // The host has no memory for another thread, so it closes further connections.
    let address_space = limit(pid, libc::RLIMIT_AS, 1);
    assert!(!matches!(connect(&h.address).read(&mut [0]), Ok(1..)), "there is nothing to say");
    limit(pid, libc::RLIMIT_AS, address_space);
    assert_eq!(borrow(&h.address, 1).1.status, Status::Ok);
    // It has no descriptor either: silent connections hold all of them.
    limit(pid, libc::RLIMIT_NOFILE, 32);
    let silent: Vec<TcpStream> = (0..64).map(|_| connect(&h.address)).collect();
    assert_eq!(read_slot(&mut honest, 5), vec![0; 4096]);
    let mut late = connect(&h.address);
    late.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut b = [0; Welcome::BYTES];
    memory_host::greet(&mut late, &hello(1))
        .and_then(|()| late.read_exact(&mut b))
        .expect("the silent ones are turned away");
    assert_eq!(Welcome::decode(&b).unwrap().status, Status::Ok);
    drop(silent);
}

#[test]
fn a_borrower_whose_machine_is_gone_is_noticed() {
    let h = host(&["--size", "64MiB"]);
    let (_borrower, w) = borrow(&h.address, 64);
    assert_eq!(w.status, Status::Ok);
    let port = format!(":{}", h.address.rsplit(':').next().unwrap());
    // Until the borrower's kernel has acknowledged the answer, another timer runs.
    until("the kernel asks for it", || {
        let out = std::process::Command::new("ss")
            .args(["-Htno", "state", "established", "sport", "=", &port])
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).contains("timer:(keepalive")
    });
}

#[test]
fn memory_is_zeroed_between_borrowers() {
    let h = host(&["--size", "1MiB"]);
    let (mut first, w) = borrow(&h.address, 0);
    for slot in 0..w.slots as u32 {
        first.write_all(&Request { op: Op::Write, count: 1, serial: 1 }.encode()).unwrap();
        first.write_all(&slot.to_le_bytes()).unwrap();
        first.write_all(&[0xAA; 4096]).unwrap();
        first.read_exact(&mut [0; 16]).unwrap();
    }
    drop(first);
    let mut next = None;
    until("the lease runs out", || {
        let (s, w) = borrow(&h.address, 0);
        next = (w.status == Status::Ok).then_some((s, w));
        next.is_some()
    });
    let (mut s, w) = next.unwrap();
    for slot in 0..w.slots as u32 {
        assert_eq!(read_slot(&mut s, slot), vec![0; 4096]);
    }
}

#[test]
fn a_guide_may_say_anything() {
    let h = host(&["--size", "256MiB"]);
    let program = example("hints");
    let out = run(&[
        "--local",
        "16MiB",
        "--far",
        "128MiB",
        "--from",
        &h.address,
        "--",
        program.to_str().unwrap(),
        "3000",
        "11",
    ]);
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(
        out.status.success() && text.contains("wrong 0") && !text.contains("fetched 0 "),
        "{:?} {text}",
        out.status
    );
}

/// The upcall of a guide: it reads the program's array at each fault and names
/// the pages that the program visits next. Pages leave meanwhile, and no read sees a wrong byte.
#[test]
fn a_callback_reads_the_programs_structures() {
    let h = host(&["--size", "256MiB"]);
    let program = example("upcall");
    for mode in ["sigbus", "thread"] {
        let visit = |reads: &[&str]| {
            let mut args = vec!["--local", "16MiB", "--far", "64MiB", "--from", &h.address];
            args.extend(["--prefetch", "none", "--mode", mode, "--"]);
            args.extend([program.to_str().unwrap(), "8192"]);
            args.extend(reads);
            let out = run(&args);
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{mode}: {:?} {text} {out:?}", out.status);
            let numbers: Vec<u64> =
                text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [faults, wrong, short] = numbers[..] else { panic!("{text}") };
            assert_eq!(wrong, 0, "{mode}: {text}");
            (faults, short)
        };
        let (alone, led) = (visit(&[]), visit(&["reads"]));
        println!("{mode}: {} faults without reading, {} with it", alone.0, led.0);
        assert!(led.0 * 4 < alone.0, "{mode}: {} faults, then {}", alone.0, led.0);
        assert!(led.1 > 0, "{mode}: a read of an absent page ends there");
    }
}
