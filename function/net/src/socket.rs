//! Packet sockets: their options, their device, and the header of a slot in their rings.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The kernel's `struct tpacket2_hdr`.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) status: u32,
    pub(crate) length: u32,
    pub(crate) captured: u32,
    pub(crate) mac: u16,
    pub(crate) net: u16,
    pub(crate) seconds: u32,
    pub(crate) nanoseconds: u32,
    pub(crate) vlan: u16,
    pub(crate) vlan_type: u16,
    padding: [u8; 4],
}

impl Head {
    /// Returns the time of arrival.
    pub(crate) fn time_ns(&self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000 + u64::from(self.nanoseconds)
    }
}

/// Opens a packet socket of protocol 0, which receives nothing before a bind. Needs CAP_NET_RAW.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: plain system call.
    let socket = check(
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) },
        "open a packet socket",
    )?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Returns the result of a system call, or its error with the name of the call.
pub(crate) fn check(result: libc::c_int, what: &str) -> io::Result<libc::c_int> {
    if result >= 0 {
        return Ok(result);
    }
    let cause = io::Error::last_os_error();
    Err(io::Error::new(cause.kind(), format!("{what}: {cause}")))
}

/// Sets an option of packet sockets.
pub(crate) fn set<T>(
    socket: &OwnedFd,
    option: libc::c_int,
    value: &T,
    what: &str,
) -> io::Result<()> {
    set_of(socket, libc::SOL_PACKET, option, value, what)
}

/// Sets an option of any level.
pub(crate) fn set_of<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
    what: &str,
) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: value points to size bytes.
    check(
        unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (value as *const T).cast(), size)
        },
        what,
    )
    .map(drop)
}

/// Binds a packet socket to the device with this index.
pub(crate) fn bind(socket: &OwnedFd, protocol: u16, index: i32) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: address is a sockaddr_ll of size bytes.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    check(bound, "bind to the device").map(drop)
}

/// Returns the index of the device that a packet socket is bound to.
pub(crate) fn index_of(socket: &OwnedFd) -> io::Result<i32> {
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: address is a sockaddr_ll of size bytes.
    let read =
        unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &mut size) };
    check(read, "read the device of a packet socket")?;
    Ok(address.sll_ifindex)
}
