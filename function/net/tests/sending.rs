//! A device sends all frames that fit, of all lengths and in order, and counts the refused ones.

use std::process::Command;
use std::time::{Duration, Instant};

use pando_net::packet::Port;

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}");
}

/// Moves this thread into a fresh network namespace with a veth `near` - `far`. The near end has
/// this MTU. Returns both ends.
fn wire(mtu: u32) -> Option<[Port; 2]> {
    // SAFETY: plain system calls.
    if unsafe { libc::geteuid() } != 0 || unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        println!("skipped: needs root for a network namespace");
        return None;
    }
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip(&format!("link add name near mtu {mtu} type veth peer name far mtu 9000"));
    ip("link set near up");
    ip("link set far up");
    Some(["near", "far"].map(|device| Port::open(device, 8192).unwrap()))
}

/// Returns a frame of this length, with its number.
fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.resize(bytes, number as u8);
    frame
}

/// Sends frames in one call, and returns how many the device took.
fn send(port: &Port, frames: &[Vec<u8>]) -> usize {
    port.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Receives as many frames.
fn receive(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let (mut came, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while came.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} frames came", came.len());
        let mut slots = Vec::new();
        port.receive(256, &mut slots);
        came.extend(slots.iter().map(|slot| port.frame(slot).frame.to_vec()));
        port.release(slots.len());
    }
    came
}

#[test]
fn frames_of_all_lengths_come_in_order() {
    let Some([near, mut far]) = wire(9000) else { return };
    let lengths = [60, 1514, 2005, 2006, 2007, 9014, 64, 2048, 61, 3000, 3001, 1500];
    let frames: Vec<Vec<u8>> =
        (0..3000).map(|n| frame(n, lengths[n as usize % lengths.len()])).collect();
    for part in frames.chunks(700) {
        assert_eq!(send(&near, part), part.len());
        assert!(receive(&mut far, part.len()) == part, "other frames came, or in another order");
    }
}

/// A frame that is too long for the device costs none of its neighbours.
#[test]
fn a_refused_frame_is_counted_and_the_others_leave() {
    let Some([near, mut far]) = wire(1500) else { return };
    let lengths = [60, 1514, 1515, 2100, 1514, 9014, 60];
    let frames: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(&l, n)| frame(n, l)).collect();
    for _ in 0..200 {
        assert_eq!(send(&near, &frames), 4);
        let came = receive(&mut far, 4);
        assert!(came == [0, 1, 4, 6].map(|n| frames[n].clone()));
    }
}

#[test]
fn a_device_that_is_down_refuses_and_later_sends_again() {
    let Some([near, mut far]) = wire(1500) else { return };
    let frames: Vec<Vec<u8>> = (0..40).map(|n| frame(n, 60 + n as usize)).collect();
    for _ in 0..30 {
        ip("link set near down");
        assert_eq!(send(&near, &frames), 0);
        ip("link set near up");
        assert_eq!(send(&near, &frames), frames.len());
        assert!(receive(&mut far, frames.len()) == frames);
    }
}
