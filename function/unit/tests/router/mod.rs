//! A Linux router in its own network namespace, between two devices of this thread's namespace:
//! `inside` and `outside`.
#![allow(dead_code)] // each user takes its part

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pando_flow::checksum;
use pando_net::packet::Port;

/// The router's outer address.
pub const NAT: [u8; 4] = [203, 0, 113, 7];
/// The server that clients contact.
pub const SERVER: [u8; 4] = [192, 0, 2, 9];
const ROUTER_MAC: &str = "02:00:00:00:00:01";

pub struct Router {
    pub inside: Port,
    pub outside: Port,
    holder: Child,
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments}");
    String::from_utf8(output.stdout).unwrap()
}

fn net_of(holder: &Child) -> String {
    format!("--net=/proc/{}/ns/net", holder.id())
}

impl Router {
    /// Moves this thread into a fresh network namespace and puts a router beside it, with these
    /// nftables rules. Needs root; without root it reports that and returns `None`.
    pub fn new(rules: &str) -> Option<Router> {
        // SAFETY: plain system calls.
        if unsafe { libc::geteuid() } != 0 || unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: needs root for a network namespace");
            return None;
        }
        // It lives until its standard input closes, at the latest when this process ends.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let there = |program: &str, arguments: &str| {
            run("nsenter", &format!("{} {program} {arguments}", net_of(&holder)))
        };
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        there(
            "sysctl",
            "-qw net.ipv4.ip_forward=1 net.ipv6.conf.default.disable_ipv6=1 \
             net.ipv4.conf.all.rp_filter=0",
        );
        for (ours, theirs, address) in
            [("inside", "r_in", "10.0.0.1/8"), ("outside", "r_out", "203.0.113.7/24")]
        {
            run(
                "ip",
                &format!(
                    "link add name {ours} type veth peer name {theirs} address {ROUTER_MAC} netns \
                     {}",
                    holder.id()
                ),
            );
            run("ip", &format!("link set {ours} up"));
            there("ip", &format!("address add {address} dev {theirs}"));
            there("ip", &format!("link set {theirs} up"));
        }
        there("ip", "route add 192.0.2.0/24 via 203.0.113.1");
        there("ip", "neighbor add 203.0.113.1 lladdr 02:00:00:00:00:02 dev r_out");
        for client in 2..10 {
            there("ip", &format!("neighbor add 10.0.0.{client} lladdr 02:00:00:00:00:03 dev r_in"));
        }
        let mut nft =
            Command::new("nsenter").arg(net_of(&holder)).args(["nft", rules]).spawn().unwrap();
        assert!(nft.wait().unwrap().success(), "nft {rules}");
        Some(Router {
            inside: Port::open("inside", 512).unwrap(),
            outside: Port::open("outside", 512).unwrap(),
            holder,
        })
    }

    /// Runs a program in the router's namespace and returns its output.
    pub fn there(&self, program: &str, arguments: &str) -> String {
        run("nsenter", &format!("{} {program} {arguments}", self.net()))
    }

    /// Returns the argument that lets `nsenter` enter the router's namespace.
    pub fn net(&self) -> String {
        net_of(&self.holder)
    }

    /// Returns the packets that leave on a side, until `enough` accepts one or the time is over.
    pub fn leaving(
        port: &mut Port,
        time: Duration,
        mut enough: impl FnMut(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let deadline = Instant::now() + time;
        loop {
            let mut slots = Vec::new();
            port.receive(1, &mut slots);
            if let [slot] = slots[..] {
                let frame = port.frame(&slot).frame.to_vec();
                port.release(1);
                if enough(&frame) {
                    return Some(frame);
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut polled = libc::pollfd {
                fd: std::os::fd::AsRawFd::as_raw_fd(port),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid entry.
            unsafe { libc::poll(&mut polled, 1, left.as_millis().max(1) as i32) };
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// One end of a flow.
pub type End = ([u8; 4], u16);

/// Returns a frame for the router; without TCP `flags` it is UDP. Its checksums are right, or UDP's
/// is absent.
pub fn frame(
    from: End,
    to: End,
    flags: Option<u8>,
    sequence: u32,
    payload: &[u8],
    summed: bool,
) -> Vec<u8> {
    let header = if flags.is_some() { 20 } else { 8 };
    let total = (20 + header + payload.len()) as u16;
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    f.extend(total.to_be_bytes());
    f.extend([0, 1, 0x40, 0, 64, if flags.is_some() { 6 } else { 17 }, 0, 0]);
    f.extend([from.0, to.0].concat());
    f.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
    match flags {
        Some(flags) => {
            f.extend(sequence.to_be_bytes());
            f.extend([0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
        }
        None => f.extend([(total - 20).to_be_bytes(), [0, 0]].concat()),
    }
    f.extend(payload);
    checksum::fill(&mut f);
    if !summed && flags.is_none() {
        f[40..42].fill(0);
    }
    f
}
