//! The baseline for a unit's start: a native program that only handles packets as a unit does. It
//! opens the same ring on a device and runs the NAT's C code. It has no sandbox, meter, control
//! socket or watching process.

use std::os::fd::AsRawFd;

use pando_abi::BATCH_PACKETS;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Policy, Stage};
use pando_net::packet::Port;
use pando_twins::Twin;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, device, frames] = &arguments[..] else {
        panic!("usage: bench-start-native DEVICE FRAMES")
    };
    // It ends with its parent, however the parent ends.
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let twin = Twin::new("nat", b"address=203.0.113.7\n");
    let mut chain =
        Chain::new(vec![Stage::new(twin, Leases::new(32768..=65535))], Policy::default());
    let mut port =
        Port::open(device, frames.parse().expect("a number of frames")).expect("open the device");
    let mut slots = Vec::with_capacity(BATCH_PACKETS);
    loop {
        slots.clear();
        port.receive(BATCH_PACKETS, &mut slots);
        let mut done = 0;
        while done < slots.len() {
            let of = |slot| Arrival {
                frame: port.frame(slot).frame,
                time_ns: port.frame(slot).time_ns,
                outer: false,
                steered: None,
            };
            let arrivals: Vec<Arrival> = slots[done..].iter().map(of).collect();
            let count = chain.process(&arrivals);
            let frames: Vec<&[u8]> =
                chain.outputs(&arrivals).flat_map(|(_, out)| out.iter()).collect();
            port.send(&frames);
            port.release(count);
            done += count;
        }
        let mut polled = libc::pollfd { fd: port.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        if slots.is_empty() {
            // SAFETY: one valid entry.
            unsafe { libc::poll(&mut polled, 1, -1) };
        }
    }
}
