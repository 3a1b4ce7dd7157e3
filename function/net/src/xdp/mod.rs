//! AF_XDP: packets arrive in the unit's own memory before the kernel processes them. Each queue of
//! the device has one socket. If the driver can, the device writes into that memory itself
//! (zero-copy).
//!
//! ```text
//!   memory of a queue:   | chunk | chunk | …  to receive | chunk | …  to send (queue 0) |
//!   fill        unit ──► kernel   chunks that may be filled
//!   rx          kernel ──► unit   chunks with a packet
//!   tx          unit ──► kernel   chunks to send
//!   completion  kernel ──► unit   chunks that were sent
//! ```
//!
//! A received chunk moves from `rx` to `fill` when its packet is released. All packets leave by
//! queue 0, so that they stay in order.

mod device;
mod program;
mod queue;
mod ring;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use libc::xdp_desc as Entry;
use pando_flow::checksum;

use crate::packet::{Received, Slot};
use device::Device;
use program::{Program, STAMP_BYTES};
use queue::{Memory, Queue, SEND_CHUNKS, Sending, during, get};

/// Bytes that the kernel keeps free before each received packet; they end with the stamp.
const HEADROOM_BYTES: usize = 256;
/// Ethernet header and one VLAN tag.
const LINK_BYTES: usize = 18;
const ETHERNET_BYTES: usize = 14;
/// A chunk is at most a page.
const CHUNK_BYTES: [usize; 2] = [2048, 4096];
const RECEIVE_CHUNKS_MIN: usize = 256;

/// A device to receive from and send to.
pub struct Port {
    /// Dropped first: later packets go to the kernel again.
    _program: Program,
    queues: Vec<Queue>,
    sending: RefCell<Sending>,
    memory: Memory,
    chunk_bytes: usize,
    /// The queues of the packets that were received and not released.
    taken: VecDeque<u16>,
    /// The first queue to look at.
    turn: usize,
    /// Packets released so far.
    position: u64,
    /// Packets come from this machine, where checksums may be left to hardware that does not exist.
    complete: bool,
    /// A queue has been full since its losses were last counted, or still is.
    losing: bool,
    reported: u64,
    frame_bytes_max: usize,
    /// The device writes into the unit's memory itself.
    pub zero_copy: bool,
    /// Name of the device.
    pub device: String,
}

// SAFETY: memory and rings belong to this value alone.
unsafe impl Send for Port {}

/// Reports whether AF_XDP is the default for a device: it is for physical ones. Other devices have
/// both ends on this machine and gain nothing from it.
pub fn suits(device: &str) -> io::Result<bool> {
    Ok(Device::of(device)?.physical)
}

impl Port {
    /// Opens `device` with room for `frames` packets in all its queues together. Needs root.
    pub fn open(device: &str, frames: usize) -> io::Result<Port> {
        let found = Device::of(device)?;
        let unsupported = |why: String| io::Error::new(io::ErrorKind::Unsupported, why);
        let frame_bytes_max = found.mtu + LINK_BYTES;
        let Some(chunk_bytes) =
            CHUNK_BYTES.into_iter().find(|chunk| frame_bytes_max + HEADROOM_BYTES <= *chunk)
        else {
            let most = CHUNK_BYTES[1] - HEADROOM_BYTES - LINK_BYTES;
            return Err(unsupported(format!(
                "a packet has to fit into a page: `ip link set {device} mtu {most}` or less, it \
                 is {}",
                found.mtu
            )));
        };
        if found.takes_tags {
            return Err(unsupported(format!(
                "it takes VLAN tags out of frames, unseen: `ethtool -K {device} rxvlan off`"
            )));
        }
        let chunks = (frames / found.queues as usize)
            .clamp(RECEIVE_CHUNKS_MIN, 1 << 22)
            .next_power_of_two() as u32;
        let program = Program::attach(found.index, found.queues)?;
        let first = (chunks + SEND_CHUNKS) as usize * chunk_bytes;
        let other = chunks as usize * chunk_bytes;
        let memory = Memory::new(first + (found.queues as usize - 1) * other)
            .map_err(during("memory for packets"))?;
        let (mut queues, mut sending) = (Vec::new(), None);
        for queue in 0..found.queues {
            let base = if queue == 0 { 0 } else { first + (queue as usize - 1) * other };
            let (opened, sends) = Queue::open(&found, queue, &memory, base, chunk_bytes, chunks)?;
            program
                .add(queue, opened.socket.as_fd())
                .map_err(during("put a socket into the table"))?;
            queues.push(opened);
            sending.get_or_insert(sends);
        }
        let zero_copy = queues.iter().all(|queue| {
            get::<libc::xdp_options>(&queue.socket, libc::XDP_OPTIONS)
                .is_ok_and(|o| o.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
        });
        Ok(Port {
            _program: program,
            sending: RefCell::new(sending.expect("a device has a queue")),
            queues,
            memory,
            chunk_bytes,
            taken: VecDeque::new(),
            turn: 0,
            position: 0,
            complete: !found.physical,
            losing: false,
            reported: 0,
            frame_bytes_max,
            zero_copy,
            device: device.to_owned(),
        })
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the sockets; one of them is readable when there are packets.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.queues.iter().map(|queue| queue.socket.as_raw_fd())
    }

    /// Returns the number of packets released so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Appends to `into` at most `max` packets that were not released.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Slot>) {
        self.taken.clear();
        let (first, mut ahead, mut full) = (into.len(), None, false);
        for step in 0..self.queues.len() {
            let number = (self.turn + step) % self.queues.len();
            let queue = &self.queues[number];
            let ready = queue.received.ready();
            full |= ready == queue.chunks;
            let room = max - (into.len() - first);
            for place in 0..ready.min(room as u32) {
                let entry = queue.received.peek(place);
                let start = queue.base + entry.addr as usize;
                // SAFETY: the kernel names chunks of the memory, with its headroom before the
                // packet.
                let frame = unsafe {
                    std::slice::from_raw_parts_mut(self.memory.at(start), entry.len as usize)
                };
                if self.complete {
                    checksum::complete_partial(frame);
                }
                let time_ns = match self.stamp(start) {
                    0 => crate::clock::wall().as_nanos() as u64,
                    stamp => stamp.saturating_sub(*ahead.get_or_insert_with(tai_ahead_ns)),
                };
                into.push(Slot { start, length: frame.len(), time_ns, segment: 0, large: None });
                self.taken.push_back(number as u16);
            }
        }
        self.turn = (self.turn + 1) % self.queues.len();
        self.losing |= full;
    }

    /// Returns when the packet at `start` arrived, by CLOCK_TAI; 0 if the driver left no room for a
    /// stamp.
    fn stamp(&self, start: usize) -> u64 {
        // SAFETY: each packet has its headroom before it.
        unsafe { self.memory.at(start - STAMP_BYTES).cast::<u64>().read_unaligned() }
    }

    /// Returns the bytes of a packet from [`Port::receive`] that is not released yet.
    #[inline]
    pub fn frame(&self, slot: &Slot) -> Received<'_> {
        assert!(slot.start + slot.length <= self.memory.bytes);
        // SAFETY: inside the memory, and ours until it is released, which needs &mut self.
        let frame = unsafe { std::slice::from_raw_parts(self.memory.at(slot.start), slot.length) };
        Received { frame, time_ns: slot.time_ns, segment: 0 }
    }

    /// Returns the oldest `count` received packets to the kernel.
    pub fn release(&mut self, count: usize) {
        for number in self.taken.drain(..count) {
            let queue = &mut self.queues[usize::from(number)];
            let entry = queue.received.peek(0);
            // Clear the stamp: if the next packet gets none, this one must not stand for it.
            // SAFETY: the chunk is ours until it is in the fill ring.
            unsafe {
                self.memory
                    .at(queue.base + entry.addr as usize - STAMP_BYTES)
                    .cast::<u64>()
                    .write_unaligned(0)
            };
            queue.received.skip();
            queue.fill.push(entry.addr & !(self.chunk_bytes as u64 - 1));
        }
        for queue in &self.queues {
            // In this order, or a refilled chunk finds no room in the other ring.
            queue.received.publish();
            queue.fill.publish();
        }
        self.position += count as u64;
    }

    /// Sends frames; returns how many the kernel took. It takes fewer when the device's queue is
    /// full.
    pub fn send(&self, frames: &[&[u8]]) -> usize {
        let sending = &mut *self.sending.borrow_mut();
        let (mut sent, mut dropped) = (0, 0);
        for frame in frames
            .iter()
            .filter(|frame| (ETHERNET_BYTES..=self.frame_bytes_max).contains(&frame.len()))
        {
            if sending.free.is_empty() {
                sending.ring.publish();
                dropped += self.push(sending);
                sending.reclaim();
            }
            let Some(chunk) = sending.free.pop() else { break };
            // SAFETY: the chunk is not the kernel's, and has room for the longest frame.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    frame.as_ptr(),
                    self.memory.at(self.queues[0].base + chunk as usize),
                    frame.len(),
                )
            };
            sending.ring.push(Entry { addr: chunk, len: frame.len() as u32, options: 0 });
            sent += 1;
        }
        sending.ring.publish();
        dropped += self.push(sending);
        sending.reclaim();
        sent - dropped.min(sent)
    }

    /// Makes the kernel send waiting packets; returns how many the device did not take.
    fn push(&self, sending: &Sending) -> usize {
        let mut dropped = 0;
        let mut waiting = sending.ring.waiting();
        while waiting > 0 && sending.ring.needs_wakeup() {
            let socket = self.queues[0].socket.as_raw_fd();
            // SAFETY: a call without data.
            let result = unsafe {
                libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            if result >= 0 {
                break;
            }
            match io::Error::last_os_error().raw_os_error() {
                // The device lost one packet, as on a wire; the others still wait.
                Some(libc::EBUSY) if dropped < waiting as usize => dropped += 1,
                // A call sends a few. Without progress, the rest waits for the next call.
                Some(libc::EAGAIN) if sending.ring.waiting() < waiting => {}
                _ => break,
            }
            waiting = sending.ring.waiting();
        }
        dropped
    }

    /// Reports whether packets wait and the kernel needs another call to send them.
    pub fn is_behind(&self) -> bool {
        let sending = self.sending.borrow();
        sending.ring.waiting() > 0 && sending.ring.needs_wakeup()
    }

    /// Returns [`Port::lost`] if a queue was full since the last call; else 0, without asking the
    /// kernel.
    pub fn noticed(&mut self) -> u64 {
        if !self.losing {
            return 0;
        }
        self.losing = self.queues.iter().any(|queue| queue.received.ready() == queue.chunks);
        self.lost()
    }

    /// Returns the number of packets lost for lack of room since the last call. With zero-copy,
    /// losses inside the device appear only in the device's own counters.
    pub fn lost(&mut self) -> u64 {
        let of = |queue: &Queue| {
            get::<libc::xdp_statistics>(&queue.socket, libc::XDP_STATISTICS)
                .map_or(0, |s| s.rx_dropped + s.rx_ring_full)
        };
        let lost = self.queues.iter().map(of).sum::<u64>();
        lost.saturating_sub(std::mem::replace(&mut self.reported, lost))
    }
}

/// Returns how far CLOCK_TAI is ahead of the time of day, in whole seconds.
fn tai_ahead_ns() -> u64 {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: time is valid.
        unsafe { libc::clock_gettime(clock, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let ahead = read(libc::CLOCK_TAI).saturating_sub(read(libc::CLOCK_REALTIME));
    1_000_000_000 * (ahead + Duration::from_millis(500)).as_secs()
}
