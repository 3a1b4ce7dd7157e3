//! Sends packets on one device alone, many with one system call.
//!
//! The kernel takes the packets from a ring that this process fills, and sends them on the device
//! of the socket. The call names no device, so the walls of a unit refuse calls that name one
//! (`function/walls`). They could not refuse the addresses of `sendmmsg`, because seccomp does not
//! see behind pointers.
//!
//! The ring is empty again after each call. A slot stays the kernel's while a device has its
//! packet.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::offload::Offload;
use crate::socket::{self, Head, bind, check, set};

const SLOTS: usize = 512;
const SLOT_BYTES: usize = 2048;
const ETHERNET_BYTES: usize = 14;
const RING_BYTES: usize = SLOTS * SLOT_BYTES;
/// A packet follows the header of its slot.
const AT: usize = size_of::<Head>();
/// The room of a slot. Longer packets cost a call each.
const PACKET_BYTES: usize = SLOT_BYTES - AT - Offload::LENGTH_BYTES;

/// The sending half of a device.
pub(crate) struct Sending {
    socket: OwnedFd,
    ring: *mut u8,
    /// The longest packet in a slot. Of longer ones the kernel tests the length.
    bytes_max: usize,
    /// The slot that the kernel takes next.
    head: Cell<usize>,
}

// SAFETY: the ring belongs to this value alone.
unsafe impl Send for Sending {}

impl Sending {
    /// Opens a device by its name and its index. Needs CAP_NET_RAW.
    pub(crate) fn open(device: &str, index: i32) -> io::Result<Sending> {
        let socket = socket::open()?;
        set(&socket, libc::PACKET_VERSION, &1i32, "PACKET_VERSION")?;
        set(&socket, libc::PACKET_QDISC_BYPASS, &1i32, "PACKET_QDISC_BYPASS")?;
        set(&socket, libc::PACKET_VNET_HDR, &1i32, "PACKET_VNET_HDR")?;
        let request = [RING_BYTES, 1, SLOT_BYTES, SLOTS].map(|n| n as u32);
        set(&socket, libc::PACKET_TX_RING, &request, "PACKET_TX_RING")?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the kernel maps the ring that the socket was given.
        let ring = unsafe {
            libc::mmap(std::ptr::null_mut(), RING_BYTES, protection, flags, socket.as_raw_fd(), 0)
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (ring, head) = (ring.cast(), Cell::new(0));
        let mut sending = Sending { socket, ring, bytes_max: 0, head };
        // The kernel tests no length of a packet in this ring.
        sending.bytes_max = PACKET_BYTES.min(mtu(&sending.socket, device)? + ETHERNET_BYTES);
        bind(&sending.socket, 0, index)?;
        Ok(sending)
    }

    /// Sends frames in their order and returns how many the kernel took. A frame without a slot
    /// leaves through `other`, a socket of the same device.
    pub(crate) fn send(&self, frames: &[&[u8]], other: BorrowedFd) -> usize {
        let (mut next, mut sent) = (0, 0);
        while next < frames.len() {
            let filled = self.fill(&frames[next..]);
            let refused = if filled > 0 { self.flush() } else { None };
            let taken = self.taken(filled);
            (next, sent) = (next + taken, sent + taken);
            match refused {
                _ if taken > 0 && taken == filled => {}
                // A device that is down or too short lost this frame, as on a wire.
                Some(cause) if cause != libc::EAGAIN => next += 1,
                _ if taken > 0 => {}
                _ => {
                    sent += usize::from(alone(frames[next], other));
                    next += 1;
                }
            }
        }
        sent
    }

    fn slot(&self, place: usize) -> *mut Head {
        // SAFETY: the result is inside of the ring.
        unsafe { self.ring.add((self.head.get() + place) % SLOTS * SLOT_BYTES).cast() }
    }

    fn status(&self, place: usize) -> &AtomicU32 {
        // SAFETY: the kernel and this process change the status of a slot as one word only.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.slot(place)).status) }
    }

    /// Fills slots with the first frames. Returns their number: up to a long frame, or to a slot
    /// that a device still has.
    fn fill(&self, frames: &[&[u8]]) -> usize {
        let fits = |(place, frame): &(usize, &&[u8])| {
            frame.len() <= self.bytes_max
                && self.status(*place).load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE
        };
        let mut filled = 0;
        for (place, frame) in frames.iter().enumerate().take(SLOTS).take_while(fits) {
            // The header length makes the kernel copy the whole packet, so that the programs of a
            // device may read all of it.
            let mut offload = Offload::NONE;
            offload[2..4].copy_from_slice(&(frame.len() as u16).to_ne_bytes());
            // SAFETY: the slot is ours, and has room for both.
            unsafe {
                let slot = self.slot(place);
                (*slot).length = (offload.len() + frame.len()) as u32;
                let bytes = slot.cast::<u8>().add(AT);
                bytes.copy_from_nonoverlapping(offload.as_ptr(), offload.len());
                bytes.add(offload.len()).copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            }
            self.status(place).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
            filled = place + 1;
        }
        filled
    }

    /// Makes the kernel send the filled slots. Returns the reason if it stopped at one of them.
    fn flush(&self) -> Option<libc::c_int> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: a call without data and without an address.
        let result = unsafe {
            libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }

    /// Returns how many of the filled slots the kernel has taken, and takes back the others.
    fn taken(&self, filled: usize) -> usize {
        let waits = |place: &usize| {
            let status = self.status(*place).load(Ordering::Acquire);
            status & (libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT) != 0
        };
        let taken = (0..filled).find(waits).unwrap_or(filled);
        for place in taken..filled {
            self.status(place).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
        }
        self.head.set((self.head.get() + taken) % SLOTS);
        taken
    }
}

/// Returns the longest packet of a device, without its Ethernet header.
fn mtu(socket: &OwnedFd, device: &str) -> io::Result<usize> {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes().take(room)) {
        *to = from as libc::c_char;
    }
    // SAFETY: request is an ifreq with the name of a device.
    let read = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    check(read, "read the MTU of the device")?;
    // SAFETY: the call has set this field.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
}

/// Sends one frame of any length. Waits while the socket's buffer is full.
fn alone(frame: &[u8], socket: BorrowedFd) -> bool {
    let vector = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let vectors = [vector(&Offload::NONE), vector(frame)];
    // SAFETY: both vectors live during the call.
    unsafe { libc::writev(socket.as_raw_fd(), vectors.as_ptr(), 2) >= 0 }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.ring.cast(), RING_BYTES) };
    }
}
