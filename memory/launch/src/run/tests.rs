//! The arguments of `pando mem run`, and its configuration as the pager reads it.

use super::*;
use crate::{Cli, Command as Chosen};
use clap::Parser;
use memory_core::prefetch::Kind;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The pager's own reader of the configuration.
#[path = "../../../pager/src/config.rs"]
#[allow(dead_code)]
mod config;

/// Parses the arguments before the program. Err = the exit code of clap.
fn parse(args: &[&str]) -> Result<Run, i32> {
    let all = ["pando mem", "run"].iter().chain(args).chain(&["--", "prog", "--arg", "-x"]);
    match Cli::try_parse_from(all).map_err(|e| e.exit_code())?.command {
        Chosen::Run(run) => Ok(run),
        _ => unreachable!("another command"),
    }
}

fn run(args: &[&str]) -> Run {
    parse(args).unwrap_or_else(|code| panic!("{args:?} is refused with {code}"))
}

const PROGRAM: fn() -> elf::Program = || elf::Program {
    path: "/bin/prog".into(),
    device: u64::MAX,
    inode: 17,
    own_allocator: true,
    raw_syscalls: false,
};

#[test]
fn the_pager_reads_what_the_launcher_writes() {
    let kinds = [
        ("none", Kind::None),
        ("sequential", Kind::Sequential),
        ("stride", Kind::Stride),
        ("extent", Kind::Extent),
    ];
    let names = ["10.1.2.3:7070", "[fe80::1]:65535", "0.0.0.0:1", "255.255.255.255:80"];
    let counters = File::open("/dev/null").unwrap();
    for (k, (name, kind)) in kinds.into_iter().enumerate() {
        let from = names[..k + 1].join(",");
        let args = ["--local", "1GiB", "--from", &from, "--prefetch", name, "--patience", "5m"];
        let run = run(&args);
        let leases = run.from.iter().map(|name| lease::spare(&name.parse().unwrap(), name));
        let borrowed = Borrowed {
            leases: leases.collect::<Result<Vec<_>, _>>().unwrap(),
            token: std::array::from_fn(|i| (i * 37 + k) as u8),
            copies: run.checked_copies().unwrap(),
            slots: u64::MAX >> k,
        };
        let text = run.config(&PROGRAM(), k % 2 == 0, k % 3 == 0, 1 << 30, &borrowed, &counters);
        let c = config::parse(&text).unwrap_or_else(|| panic!("the pager refuses {text:?}"));
        assert_eq!((c.exe, c.local_bytes, c.slots), ((u64::MAX, 17), 1 << 30, u64::MAX >> k));
        assert_eq!((c.copies, c.patience_ns), (2.min(k + 1), 300_000_000_000));
        assert_eq!((c.prefetch, c.sigbus, c.token), (kind, k % 2 == 0, borrowed.token));
        assert_eq!((c.hosts_len, c.stats), (k + 1, counters.as_raw_fd()));
        for (host, lease) in c.hosts.iter().zip(&borrowed.leases) {
            assert_eq!(host.lease, lease.id);
            assert_eq!(lease::hex(&host.bytes[..host.len]), lease.address);
        }
    }
}

#[test]
fn a_host_has_the_address_of_the_kernel() {
    let run = run(&["--local", "1G", "--from", "10.1.2.3:7070,[fe80::1]:65535"]);
    let leases = run.from.iter().map(|n| lease::spare(&n.parse().unwrap(), n).unwrap());
    let raw: Vec<Vec<u8>> = leases
        .map(|l| {
            let digits = |i: usize| u8::from_str_radix(&l.address[i..i + 2], 16).unwrap();
            (0..l.address.len()).step_by(2).map(digits).collect()
        })
        .collect();
    let v4: libc::sockaddr_in =
        unsafe { raw[0].as_ptr().cast::<libc::sockaddr_in>().read_unaligned() };
    assert_eq!((raw[0].len(), v4.sin_family), (size_of_val(&v4), libc::AF_INET as u16));
    assert_eq!(u16::from_be(v4.sin_port), 7070);
    assert_eq!(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), Ipv4Addr::new(10, 1, 2, 3));
    let v6: libc::sockaddr_in6 =
        unsafe { raw[1].as_ptr().cast::<libc::sockaddr_in6>().read_unaligned() };
    assert_eq!((raw[1].len(), v6.sin6_family), (size_of_val(&v6), libc::AF_INET6 as u16));
    assert_eq!(u16::from_be(v6.sin6_port), 65535);
    assert_eq!(Ipv6Addr::from(v6.sin6_addr.s6_addr), "fe80::1".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn copies_want_a_host_each() {
    let one = "a:1";
    let two = "a:1,b:1";
    let four = "a:1,b:1,c:1,d:1";
    for (from, copies, expected) in [
        (one, None, Some(1)),
        (two, None, Some(2)),
        (four, None, Some(2)),
        (four, Some("4"), Some(4)),
        (two, Some("1"), Some(1)),
        (two, Some("0"), Some(1)),
        (one, Some("2"), None),
        (four, Some("5"), None),
        ("a:1,b:1,c:1,d:1,e:1", None, None),
        ("a:1,b:1,a:1", None, None),
        (four, Some("18446744073709551615"), None),
    ] {
        let mut args = vec!["--local", "1G", "--from", from];
        args.extend(copies.iter().flat_map(|n| ["--copies", n]));
        let got = run(&args).checked_copies();
        assert_eq!(got.as_ref().ok(), expected.as_ref(), "{from} {copies:?}");
        assert!(got.err().is_none_or(|e| e.code == 3 && e.words.contains("--from")));
    }
}

#[test]
fn local_memory_is_enough_and_all_pages_can_be_numbered() {
    let page = PAGE_BYTES as u64;
    let local =
        |text: &str, slots: u64| run(&["--local", text, "--from", "a:1"]).local_bytes(slots);
    assert_eq!(local("16MiB", 1), Ok(16 << 20));
    assert!(local("16777215", 1).unwrap_err().words.contains("too little"));
    assert_eq!(local("25%", 1 << 20), Ok(1 << 30));
    assert!(local("25%", 1 << 10).unwrap_err().words.contains("too little"));
    assert!(local("0.0000001%", 1 << 20).is_err());
    let most = PAGES_MAX - (16 << 20) / page;
    assert_eq!(local("16MiB", most), Ok(16 << 20));
    assert!(local("16MiB", most + 1).unwrap_err().words.contains("lower --far"));
    for slots in [u64::MAX, u64::MAX / page, PAGES_MAX + 1] {
        assert!(local("16MiB", slots).is_err() && local("100%", slots).is_err(), "{slots}");
    }
    assert!(local("99999999999T", 1).is_err());
}

#[test]
fn arguments_that_mean_nothing_are_refused_before_anything_runs() {
    let fine = ["--local", "1G", "--from", "a:1"];
    assert!(parse(&fine).is_ok());
    for bad in [
        &["--local", "0%"][..],
        &["--local", "1 apple"],
        &["--patience", "0s"],
        &["--patience", "25h"],
        &["--prefetch", "magic"],
        &["--guide", "mysql"],
        &["--mode", "both"],
        &["--copies", "-1"],
        &["--far", "-1"],
    ] {
        let mut args = fine.to_vec();
        // A second --local is an error of its own, so it replaces the first.
        if bad[0] == "--local" {
            args.drain(..2);
        }
        args.extend(bad);
        assert_eq!(parse(&args).err(), Some(2), "{bad:?}");
    }
    let program = run(&fine).program;
    assert_eq!(program, ["prog", "--arg", "-x"], "the program's flags are its own");
}
