//! Promiscuous mode: a device passes packets for every address. A unit between two devices needs
//! it, because the packets on its wire are for the ends. The kernel ends it with the socket.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes `device` promiscuous until `socket`, a packet socket, and its duplicates are closed.
pub fn hold(socket: BorrowedFd, device: &str) -> io::Result<()> {
    let name = CString::new(device)?;
    // SAFETY: name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: an all-zero packet_mreq is valid.
    let mut wanted: libc::packet_mreq = unsafe { std::mem::zeroed() };
    wanted.mr_ifindex = index as i32;
    wanted.mr_type = libc::PACKET_MR_PROMISC as u16;
    let size = size_of::<libc::packet_mreq>() as libc::socklen_t;
    // SAFETY: wanted is a packet_mreq of size bytes.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const wanted).cast(),
            size,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
