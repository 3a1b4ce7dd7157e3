//! AF_PACKET: receives packets from a ring that the kernel fills, and sends packets in batches.
//!
//! The ring is of version 2, which delivers each packet at once and copies no more than version 3.
//! Version 3 delivers when a block is full or its timer ends. For a quiet flow, the timer takes a
//! kernel tick (1 to 10 ms).
//!
//! Local senders make packets longer than a ring frame, for a device to cut. These packets arrive
//! through the socket's queue. The ring holds the beginning of each, which marks its place in the
//! order.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::offload::Offload;
use crate::sending::Sending;
use crate::socket::{self, Head, bind, index_of, set, set_of};

/// Frames of a ring. They last for 33 ms at a million packets per second while the unit is off its
/// core.
pub const RING_FRAMES: usize = 32_768;
const FRAME_BYTES: usize = 2048;
const BLOCK_BYTES: usize = 1 << 20;
/// Room for large packets while the unit is off its core, in bytes of the kernel's account: about
/// 200 packets of 64 KiB. Packets without room are dropped and counted as too long.
const QUEUE_BYTES: libc::c_int = 16 << 20;
/// The longest packet: 64 KiB of IP after an Ethernet header, a session and tags, or steering's
/// header.
const LARGE_BYTES: usize = 65_535 + 128;
/// Bytes in front of a packet from the queue: room for a tag, and the virtio header.
const IN_FRONT: usize = TAG_BYTES + Offload::LENGTH_BYTES;

/// A device that receives and sends packets.
pub struct Port {
    socket: OwnedFd,
    sending: Sending,
    ring: *mut u8,
    ring_bytes: usize,
    frames: usize,
    head: usize,
    /// Frames released so far, by this process and those before it.
    position: u64,
    /// Name of the device.
    pub device: String,
    /// Packets were lost since the last count. The kernel then flags each frame that it adds to the
    /// ring.
    losing: bool,
    /// Packets since the last count that exceeded a ring frame and found no room in the queue.
    too_long: u64,
    /// Large packets that were received and not released, each with its position in the ring.
    large: VecDeque<(u64, Vec<u8>)>,
    /// A large packet from the queue, read before its frame in the ring.
    ahead: Option<Vec<u8>>,
    /// Buffers of released large packets, for reuse.
    spare: Vec<Vec<u8>>,
}

// SAFETY: the ring belongs to this value alone.
unsafe impl Send for Port {}

/// A frame in the ring. [`Port::release`] returns it to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes from the Ethernet header on.
    pub frame: &'a [u8],
    /// The kernel's time of arrival.
    pub time_ns: u64,
    /// Bytes of payload in each piece into which the packet must be cut. 0 if it is short enough.
    pub segment: u16,
}

impl Port {
    /// Opens `device` with a ring of `frames` frames, rounded up to a multiple of 512. Needs
    /// CAP_NET_RAW.
    pub fn open(device: &str, frames: usize) -> io::Result<Port> {
        let name = CString::new(device)
            .map_err(|_| io::Error::other("a device's name has no zero byte"))?;
        // SAFETY: name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no network device {device} here: `ip link` lists them"),
            ));
        }
        // The protocol stays 0 until the bind, so that no packet of another device enters the ring.
        let socket = socket::open()?;
        set(&socket, libc::PACKET_VERSION, &1i32, "PACKET_VERSION")?;
        set(&socket, PACKET_IGNORE_OUTGOING, &1i32, "PACKET_IGNORE_OUTGOING")?;
        set(&socket, libc::PACKET_QDISC_BYPASS, &1i32, "PACKET_QDISC_BYPASS")?;
        set(&socket, libc::PACKET_RESERVE, &(TAG_BYTES as u32), "PACKET_RESERVE")?;
        set(&socket, libc::PACKET_VNET_HDR, &1i32, "PACKET_VNET_HDR")?;
        set(&socket, libc::PACKET_COPY_THRESH, &1i32, "PACKET_COPY_THRESH")?;
        // Without CAP_NET_ADMIN, the system's limit bounds the queue.
        set_of(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE_BYTES, "SO_RCVBUFFORCE")
            .or_else(|_| {
                set_of(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &QUEUE_BYTES, "SO_RCVBUF")
            })?;
        let frames = frames.next_multiple_of(BLOCK_BYTES / FRAME_BYTES);
        let ring_bytes = frames * FRAME_BYTES;
        let index = index as i32;
        let request = [
            BLOCK_BYTES as u32,
            (ring_bytes / BLOCK_BYTES) as u32,
            FRAME_BYTES as u32,
            frames as u32,
        ];
        set(&socket, libc::PACKET_RX_RING, &request, "PACKET_RX_RING")?;
        let port = Port::map(socket, device, index, frames)?;
        bind(&port.socket, libc::ETH_P_ALL as u16, index)?;
        Ok(port)
    }

    /// Maps the ring of `frames` frames that another process opened on `device`. Both processes may
    /// map it, but only one may use it.
    pub fn adopt(socket: OwnedFd, device: &str, frames: usize) -> io::Result<Port> {
        let index = index_of(&socket)?;
        Port::map(socket, device, index, frames)
    }

    fn map(socket: OwnedFd, device: &str, index: i32, frames: usize) -> io::Result<Port> {
        let sending = Sending::open(device, index)?;
        let frames = frames.next_multiple_of(BLOCK_BYTES / FRAME_BYTES);
        let ring_bytes = frames * FRAME_BYTES;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the kernel maps the ring that the socket was given.
        let ring = unsafe {
            libc::mmap(std::ptr::null_mut(), ring_bytes, protection, flags, socket.as_raw_fd(), 0)
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let device = device.to_owned();
        Ok(Port {
            socket,
            sending,
            ring: ring.cast(),
            ring_bytes,
            frames,
            head: 0,
            position: 0,
            device,
            losing: false,
            too_long: 0,
            large: VecDeque::new(),
            ahead: None,
            spare: Vec::new(),
        })
    }

    /// Returns another descriptor of the same socket. The ring and its contents last while one is
    /// open.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Returns the number of frames released so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Continues at frame `position` of the ring. The frames from `released` up to there may still
    /// need their release.
    pub fn resume(&mut self, released: u64, position: u64) {
        (self.position, self.head) = (released, (released % self.frames as u64) as usize);
        self.release((position.saturating_sub(released) as usize).min(self.frames));
        (self.position, self.head) = (position, (position % self.frames as u64) as usize);
    }

    fn head_at(&self, place: usize) -> *mut Head {
        // SAFETY: place is below frames, so the result is inside of the ring.
        unsafe { self.ring.add((self.head + place) % self.frames * FRAME_BYTES).cast() }
    }

    /// Appends at most `max` received frames to `into`. Completes checksums that were left to a
    /// device, and restores a VLAN tag that the kernel removed. A packet without room in the queue
    /// becomes an empty frame.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Slot>) {
        for place in 0..max.min(self.frames) {
            let head = self.head_at(place);
            // SAFETY: head points to a header in the ring; the kernel sets its status last.
            let status_at = unsafe { &raw mut (*head).status };
            // SAFETY: as above.
            let status = unsafe { AtomicU32::from_ptr(status_at) }.load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                return;
            }
            self.losing |= status & libc::TP_STATUS_LOSING != 0;
            // SAFETY: with that status, the header and the frame behind it are ours.
            let head = unsafe { &mut *head };
            let start = self.frame_of(place, head.mac);
            let slot = if head.captured < head.length {
                self.queued(place, start, head, status)
            } else {
                self.in_ring(start, head, status)
            };
            if status & DONE_HERE != 0 {
                // If this process dies, the next reader of the frame must repeat neither step.
                // SAFETY: as above, the header is ours until it is released.
                unsafe { AtomicU32::from_ptr(status_at) }
                    .store(status & !DONE_HERE, Ordering::Release);
            }
            into.push(slot);
        }
    }

    /// Receives a packet that is whole in the ring, at offset `start`.
    fn in_ring(&mut self, mut start: usize, head: &mut Head, status: u32) -> Slot {
        const BEFORE: usize = Offload::LENGTH_BYTES;
        let mut length = head.captured as usize;
        // SAFETY: in front of the frame is the virtio header, and in front of that the room of
        // PACKET_RESERVE; both and the captured bytes are ours.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.ring.add(start - IN_FRONT), IN_FRONT + length)
        };
        let offload = Offload::read(bytes[TAG_BYTES..IN_FRONT].try_into().expect("it is as long"));
        if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            offload.complete(&mut bytes[IN_FRONT..]);
        }
        if length >= 2 * ADDRESS_BYTES && status & libc::TP_STATUS_VLAN_VALID != 0 {
            bytes.copy_within(TAG_BYTES..IN_FRONT, 0);
            tag(&mut bytes[BEFORE..], head, status);
            start -= TAG_BYTES;
            length += TAG_BYTES;
            head.mac -= TAG_BYTES as u16;
            (head.captured, head.length) =
                (head.captured + TAG_BYTES as u32, head.length + TAG_BYTES as u32);
        }
        Slot { start, length, time_ns: head.time_ns(), segment: offload.segment, large: None }
    }

    /// Receives a packet that is too long for its ring frame at offset `start`. The queue holds the
    /// whole packet unless it was full.
    fn queued(&mut self, place: usize, start: usize, head: &Head, status: u32) -> Slot {
        let none = Slot { start, length: 0, time_ns: head.time_ns(), segment: 0, large: None };
        // SAFETY: captured bytes from start are ours.
        let beginning = unsafe {
            std::slice::from_raw_parts(
                self.ring.add(start),
                (head.captured as usize).min(FRAME_BYTES),
            )
        };
        let copied = status & libc::TP_STATUS_COPY != 0;
        let Some(mut bytes) =
            copied.then(|| self.ahead.take().or_else(|| self.dequeue())).flatten()
        else {
            self.too_long += 1;
            return none;
        };
        if !bytes[IN_FRONT..].starts_with(beginning) {
            // A process that used this ring before took the packet from the queue and died. These
            // bytes are the next packet.
            self.ahead = Some(bytes);
            self.too_long += 1;
            return none;
        }
        let offload = Offload::read(bytes[TAG_BYTES..IN_FRONT].try_into().expect("it is as long"));
        offload.complete(&mut bytes[IN_FRONT..]);
        let mut start = IN_FRONT;
        if status & libc::TP_STATUS_VLAN_VALID != 0 {
            start -= TAG_BYTES;
            tag(&mut bytes[start..], head, status);
        }
        let (length, position) = (bytes.len() - start, self.position + place as u64);
        self.large.push_back((position, bytes));
        Slot { start, length, segment: offload.segment, large: Some(position), ..none }
    }

    /// Returns the next packet of the queue, after room for a tag and its virtio header.
    fn dequeue(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(IN_FRONT + LARGE_BYTES, 0);
        let room = &mut bytes[TAG_BYTES..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: room is ours.
        let came = unsafe {
            libc::recv(self.socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags)
        };
        let length =
            usize::try_from(came).ok().filter(|length| (IN_FRONT..=room.len()).contains(length))?;
        bytes.truncate(TAG_BYTES + length);
        Some(bytes)
    }

    fn frame_of(&self, place: usize, mac: u16) -> usize {
        (self.head + place) % self.frames * FRAME_BYTES + usize::from(mac)
    }

    /// Returns the bytes of a frame that [`Port::receive`] returned and that is not yet released.
    #[inline]
    pub fn frame(&self, slot: &Slot) -> Received<'_> {
        let Slot { start, length, time_ns, segment, .. } = *slot;
        if let Some(position) = slot.large {
            let at = self
                .large
                .binary_search_by_key(&position, |large| large.0)
                .expect("it was not released");
            return Received { frame: &self.large[at].1[start..start + length], time_ns, segment };
        }
        assert!(start + length <= self.ring_bytes);
        // SAFETY: inside of the ring, and ours until it is released, which needs &mut self.
        let frame = unsafe { std::slice::from_raw_parts(self.ring.add(start), length) };
        Received { frame, time_ns, segment }
    }

    /// Releases the oldest `count` frames to the kernel.
    pub fn release(&mut self, count: usize) {
        for place in 0..count {
            // SAFETY: as in receive; these frames were ours.
            unsafe { AtomicU32::from_ptr(&raw mut (*self.head_at(place)).status) }
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.head = (self.head + count) % self.frames;
        self.position += count as u64;
        while self.large.front().is_some_and(|large| large.0 < self.position) {
            self.spare.extend(
                self.large.pop_front().map(|large| large.1).filter(|_| self.spare.len() < SPARE),
            );
        }
    }

    /// Sends frames and returns how many the kernel took. It takes fewer when the device's queue is
    /// full.
    pub fn send(&self, frames: &[&[u8]]) -> usize {
        self.sending.send(frames, self.socket.as_fd())
    }

    /// Returns [`Port::lost`] if a received frame reported a loss, else 0 without asking the
    /// kernel.
    pub fn noticed(&mut self) -> u64 {
        if std::mem::take(&mut self.losing) { self.lost() } else { 0 }
    }

    /// Returns the number of packets since the last call that were too long and found no room.
    pub fn too_long(&mut self) -> u64 {
        std::mem::take(&mut self.too_long)
    }

    /// Returns the number of packets since the last call that the kernel could not put into the
    /// ring.
    pub fn lost(&self) -> u64 {
        let mut statistics = [0u32; 2];
        let mut size = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: statistics has size bytes.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &mut size,
            )
        };
        if result == 0 { statistics[1].into() } else { 0 }
    }
}

const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const ADDRESS_BYTES: usize = 6;
const TAG_BYTES: usize = 4;
/// Maximum buffers of large packets to keep: as many as arrive at once.
const SPARE: usize = 32;
/// EtherType of a VLAN tag (802.1Q).
const TAGGED: u16 = 0x8100;
/// Status bits of work that the kernel left and [`Port::receive`] does.
const DONE_HERE: u32 = libc::TP_STATUS_COPY
    | libc::TP_STATUS_CSUMNOTREADY
    | libc::TP_STATUS_VLAN_VALID
    | libc::TP_STATUS_VLAN_TPID_VALID;

/// Inserts the VLAN tag of the ring's header into a frame. The frame must start after room for it.
fn tag(frame: &mut [u8], head: &Head, status: u32) {
    let ethertype =
        if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { head.vlan_type } else { TAGGED };
    frame.copy_within(TAG_BYTES..TAG_BYTES + 2 * ADDRESS_BYTES, 0);
    frame[2 * ADDRESS_BYTES..][..2].copy_from_slice(&ethertype.to_be_bytes());
    frame[2 * ADDRESS_BYTES + 2..][..2].copy_from_slice(&head.vlan.to_be_bytes());
}

/// Place of a received frame.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) time_ns: u64,
    /// Payload bytes per piece of a packet that has to be cut; 0 if it is short enough.
    pub segment: u16,
    /// Ring position of a large packet, which has its bytes outside of the ring.
    pub(crate) large: Option<u64>,
}

impl AsRawFd for Port {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: mapped in open, and no frame outlives the port.
        unsafe { libc::munmap(self.ring.cast(), self.ring_bytes) };
    }
}
