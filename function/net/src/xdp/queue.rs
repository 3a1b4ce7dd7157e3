//! One queue of a device: its socket, its rings, and the memory that it shares with the kernel.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use libc::{SOL_XDP, xdp_desc as Entry};

use super::device::Device;
use super::ring::{Ring, Side};

/// Chunks to send. The unit never waits for one, so this bounds the packets in flight in the
/// device.
pub const SEND_CHUNKS: u32 = 2048;
/// A queue is free within this time after its last user ended.
const LET_GO: Duration = Duration::from_secs(1);

/// One queue of a device: its socket, and the rings by which packets arrive.
pub struct Queue {
    pub socket: OwnedFd,
    /// The start of its chunks in the memory.
    pub base: usize,
    pub chunks: u32,
    pub fill: Ring<u64>,
    pub received: Ring<Entry>,
}

/// The sending side of queue 0. Its rings change while received packets are borrowed.
pub struct Sending {
    pub ring: Ring<Entry>,
    pub completed: Ring<u64>,
    pub free: Vec<u64>,
}

/// The chunks of all queues.
pub struct Memory {
    start: NonNull<u8>,
    pub bytes: usize,
}

impl Memory {
    /// Maps fresh memory.
    pub fn new(bytes: usize) -> io::Result<Memory> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
        );
        // SAFETY: a fresh mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { start: NonNull::new(start.cast()).expect("a mapping is not at 0"), bytes })
    }

    /// Returns the address of an offset.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in new; the kernel holds its pages as long as it needs them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Queue {
    /// Opens one queue of a device, with its chunks in `memory` from `base` on. Returns the queue
    /// and its sending side; only the one of queue 0 is used.
    pub fn open(
        device: &Device,
        queue: u32,
        memory: &Memory,
        base: usize,
        chunk_bytes: usize,
        chunks: u32,
    ) -> io::Result<(Queue, Sending)> {
        let socket = open_socket()?;
        let send_chunks = if queue == 0 { SEND_CHUNKS } else { 0 };
        let registered = libc::xdp_umem_reg {
            addr: memory.at(base) as u64,
            len: (chunks + send_chunks) as u64 * chunk_bytes as u64,
            chunk_size: chunk_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&socket, libc::XDP_UMEM_REG, &registered, "XDP_UMEM_REG")?;
        let (mut fill, received, ring, completed) = rings(&socket, chunks)?;
        (0..u64::from(chunks)).for_each(|chunk| fill.push(chunk * chunk_bytes as u64));
        fill.publish();
        let free = (chunks..chunks + send_chunks)
            .map(|chunk| u64::from(chunk) * chunk_bytes as u64)
            .collect();
        bind(&socket, device.index as u32, queue)?;
        let sending = Sending { ring, completed, free };
        Ok((Queue { socket, base, chunks, fill, received }, sending))
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain system call.
    match unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(during("open an XDP socket")(io::Error::last_os_error())),
        // SAFETY: just opened.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// The rings of a socket: fill, rx, tx and completion.
type Rings = (Ring<u64>, Ring<Entry>, Ring<Entry>, Ring<u64>);

/// Makes the rings of a socket and maps them.
fn rings(socket: &OwnedFd, chunks: u32) -> io::Result<Rings> {
    set(socket, libc::XDP_UMEM_FILL_RING, &chunks, "XDP_UMEM_FILL_RING")?;
    set(socket, libc::XDP_UMEM_COMPLETION_RING, &SEND_CHUNKS, "XDP_UMEM_COMPLETION_RING")?;
    set(socket, libc::XDP_RX_RING, &chunks, "XDP_RX_RING")?;
    set(socket, libc::XDP_TX_RING, &SEND_CHUNKS, "XDP_TX_RING")?;
    let offsets: libc::xdp_mmap_offsets =
        get(socket, libc::XDP_MMAP_OFFSETS).map_err(during("XDP_MMAP_OFFSETS"))?;
    let mapped = during("map a ring");
    let fill = libc::XDP_UMEM_PGOFF_FILL_RING as i64;
    let fill = Ring::map(socket, fill, &offsets.fr, chunks, Side::Producer).map_err(&mapped)?;
    let tx = libc::XDP_PGOFF_TX_RING;
    let tx = Ring::map(socket, tx, &offsets.tx, SEND_CHUNKS, Side::Producer).map_err(&mapped)?;
    let completion = libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64;
    let completion =
        Ring::map(socket, completion, &offsets.cr, SEND_CHUNKS, Side::Consumer).map_err(&mapped)?;
    let rx = libc::XDP_PGOFF_RX_RING;
    let rx = Ring::map(socket, rx, &offsets.rx, chunks, Side::Consumer).map_err(&mapped)?;
    Ok((fill, rx, tx, completion))
}

/// Binds a socket to a queue of the device with this index. The kernel frees a queue some time
/// after its last user has ended.
fn bind(socket: &OwnedFd, index: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP, // the driver decides on zero-copy
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let (start, bytes) = ((&raw const address).cast(), size_of_val(&address) as u32);
    let deadline = Instant::now() + LET_GO;
    // SAFETY: address has the stated size.
    while unsafe { libc::bind(socket.as_raw_fd(), start, bytes) } != 0 {
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= deadline {
            return Err(taken(queue, e));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Sending {
    /// Takes sent chunks back.
    pub fn reclaim(&mut self) {
        for _ in 0..self.completed.ready() {
            self.free.push(self.completed.peek(0));
            self.completed.skip();
        }
        self.completed.publish();
    }
}

/// Returns the reason why a queue has no socket.
fn taken(queue: u32, e: io::Error) -> io::Error {
    let (kind, why) = match e.raw_os_error() {
        Some(libc::EBUSY) => (io::ErrorKind::ResourceBusy, "another program has it: end that one"),
        Some(libc::EINVAL) => (
            io::ErrorKind::Unsupported,
            "there is none, or the driver does not do AF_XDP on it: `ethtool -L` sets how many \
             there are",
        ),
        _ => (e.kind(), "bind a socket to it"),
    };
    io::Error::new(kind, format!("queue {queue}: {why} ({e})"))
}

/// Returns a function that puts the failed step before an error.
pub fn during(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{what}: {e}"))
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T, what: &'static str) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: value points to size bytes.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), SOL_XDP, option, (value as *const T).cast(), size)
    } {
        0 => Ok(()),
        _ => Err(during(what)(io::Error::last_os_error())),
    }
}

/// Reads an option of a socket. Zero bytes must be valid for its type.
pub fn get<T>(socket: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: all requested options consist of integers.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: value has size bytes.
    match unsafe {
        libc::getsockopt(socket.as_raw_fd(), SOL_XDP, option, (&raw mut value).cast(), &mut size)
    } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}
