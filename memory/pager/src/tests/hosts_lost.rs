//! The ends of a program that has lost its far memory. Each runs in a process of its own.

use super::hosts::{World, world};
use super::*;
use crate::sys;
use std::process::Command;

/// Names the end that this process is to meet.
const VARIABLE: &str = "PANDO_TEST_END";
/// The exit code of a program that lost its far memory.
const LOST: i32 = 97;

/// Runs this test again in a process of its own, which must end with these words.
fn ends(test: &str, words: &[&str], end: impl FnOnce()) {
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        end();
        panic!("it goes further than its end");
    }
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::hosts_lost::{test}"), "--nocapture"])
        .env(VARIABLE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(LOST), "{text}");
    for part in words {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    assert!(text.ends_with('\n'), "{text:?}");
}

fn single() -> World {
    let mut w = world(1, 1, DEADLINE);
    w.write(&[0], &[1]);
    w
}

#[test]
fn a_read_of_the_only_copy_on_a_host_that_is_gone() {
    let words = ["far memory is lost: memory host 1 held the only copy and is gone"];
    ends("a_read_of_the_only_copy_on_a_host_that_is_gone", &words, || {
        let mut w = single();
        w.links[0].cut();
        w.reads(&[0], &[1], usize::MAX);
    });
}

#[test]
fn a_write_to_the_only_copy_on_a_host_that_is_gone() {
    let words = ["far memory is lost: memory host 1", "name two hosts in --from"];
    ends("a_write_to_the_only_copy_on_a_host_that_is_gone", &words, || {
        let mut w = single();
        w.links[0].cut();
        w.write(&[0], &[2]);
    });
}

#[test]
fn a_lease_that_the_only_host_forgot() {
    let words = ["memory host 1 held the only copy", "it was restarted, or the lease ran out"];
    ends("a_lease_that_the_only_host_forgot", &words, || {
        let mut w = single();
        w.hosts.all[0].lease.store(4, std::sync::atomic::Ordering::SeqCst);
        w.reads(&[0], &[1], usize::MAX);
    });
}

#[test]
fn two_copies_that_are_gone_at_once() {
    let words = ["far memory is lost: no copy answers", "The forked child is stopped"];
    ends("two_copies_that_are_gone_at_once", &words, || {
        let mut w = world(2, 2, DEADLINE);
        w.write(&[0], &[1]);
        w.hosts.become_child();
        w.links.iter().for_each(|link| link.cut());
        w.reads(&[0], &[1], usize::MAX);
    });
}

#[test]
fn a_wrong_page_without_another_copy() {
    let words = ["no other copy of the page is whole"];
    ends("a_wrong_page_without_another_copy", &words, || {
        single().reads(&[0], &[1], 0);
    });
}

#[test]
fn a_message_that_is_too_long_is_cut_and_still_a_line() {
    ends("a_message_that_is_too_long_is_cut_and_still_a_line", &["pando-mem: xxx"], || {
        sys::die(format_args!("{}", "x".repeat(5000)));
    });
}
