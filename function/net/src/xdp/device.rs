//! The kernel's facts about a device, from netlink and the ioctls of ethtool. Both answer for the
//! thread's network namespace; sysfs shows the namespace of its mount.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const IFLA_MTU: u16 = 4;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// A network device, as AF_XDP needs it.
#[derive(Debug, PartialEq)]
pub struct Device {
    /// The index.
    pub index: i32,
    /// Bytes of the longest packet, without the Ethernet header.
    pub mtu: usize,
    /// The device is on a bus: its packets come over a wire, or from the host of this virtual
    /// machine.
    pub physical: bool,
    /// Receive queues.
    pub queues: u32,
    /// The device removes VLAN tags before a program sees the frame.
    pub takes_tags: bool,
}

impl Device {
    /// Reads the facts about the device of this name.
    pub fn of(name: &str) -> io::Result<Device> {
        let text =
            CString::new(name).map_err(|_| io::Error::other("a device's name has no zero byte"))?;
        // SAFETY: text ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) } as i32;
        if index == 0 {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no network device {name} here: `ip link` lists them"),
            ));
        }
        let answer = link(index)?;
        let number = |kind| Some(u32::from_ne_bytes(attribute(&answer, kind)?.try_into().ok()?));
        let mtu = number(IFLA_MTU)
            .ok_or_else(|| io::Error::other("the kernel does not tell the device's MTU"))?
            as usize;
        let physical = attribute(&answer, IFLA_PARENT_DEV_NAME).is_some();
        let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        // struct ethtool_channels: four limits, then the counts of receive, send, other and
        // combined queues.
        let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        let told = ask(&socket, name, &mut channels).is_ok().then(|| channels[5] + channels[8]);
        let queues = told.or(number(IFLA_NUM_RX_QUEUES)).unwrap_or(1).max(1);
        let mut flags = [ETHTOOL_GFLAGS, 0];
        let takes_tags =
            physical && ask(&socket, name, &mut flags).is_ok() && flags[1] & ETH_FLAG_RXVLAN != 0;
        Ok(Device { index, mtu, physical, queues, takes_tags })
    }
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call.
    match unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just opened.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Sends one ethtool request. It begins with its command and is answered in place.
fn ask<const N: usize>(socket: &OwnedFd, name: &str, question: &mut [u32; N]) -> io::Result<()> {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()).take(libc::IFNAMSIZ - 1) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = question.as_mut_ptr().cast();
    // SAFETY: the request has its command's size and lives during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the kernel's netlink attributes of a device, one after the other.
fn link(index: i32) -> io::Result<Vec<u8>> {
    const HEADERS: usize = 16 + 16;
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let mut request = [0u8; HEADERS]; // struct nlmsghdr, struct ifinfomsg
    request[..4].copy_from_slice(&(HEADERS as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[20..24].copy_from_slice(&index.to_ne_bytes());
    let mut answer = vec![0u8; 1 << 16];
    // SAFETY: request and answer are valid for their lengths.
    let length = unsafe {
        libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0);
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0)
    };
    answer.truncate(usize::try_from(length).map_err(|_| io::Error::last_os_error())?);
    Ok(answer.split_off(HEADERS.min(answer.len())))
}

/// Returns the value of one netlink attribute.
fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([c, d]) == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}
