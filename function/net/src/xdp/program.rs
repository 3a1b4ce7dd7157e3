//! The program before the sockets. It stamps a packet and passes it to the socket of its queue.
//!
//! Nothing is pinned. The unit owns the descriptor of the program's link, so the program disappears
//! with the unit, even after a crash. A packet goes to the kernel if its queue has no socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// Native mode only: the generic mode costs more than AF_PACKET.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Bytes before a frame that hold its time of arrival, in nanoseconds of CLOCK_TAI.
pub const STAMP_BYTES: usize = 8;

/// The program on a device, and its table of sockets.
pub struct Program {
    sockets: OwnedFd,
    /// Dropping it removes the program.
    _link: OwnedFd,
}

/// Calls bpf() and returns the descriptor.
fn open<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: attributes are those of the command, and all their pointers live during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

const fn named(text: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    let mut n = 0;
    while n < text.len() {
        name[n] = text[n];
        n += 1;
    }
    name
}

impl Program {
    /// Puts the program on the device. Until sockets are added, all packets go to the kernel.
    pub fn attach(device: i32, queues: u32) -> io::Result<Program> {
        #[repr(C)]
        struct Link {
            program: i32,
            device: i32,
            kind: u32,
            flags: u32,
        }
        let during = |what: &'static str| {
            move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"))
        };
        let sockets = sockets(queues).map_err(during("make the table of sockets (XSKMAP)"))?;
        let program =
            load(&instructions(sockets.as_raw_fd())).map_err(during("load the XDP program"))?;
        let link =
            Link { program: program.as_raw_fd(), device, kind: BPF_XDP, flags: XDP_FLAGS_DRV_MODE };
        // The link holds the program, and the program holds its table.
        Ok(Program { sockets, _link: open(BPF_LINK_CREATE, &link).map_err(refused)? })
    }

    /// Sends the packets of `queue` to `socket` from now on.
    pub fn add(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            map: i32,
            _pad: u32,
            key: *const u32,
            value: *const i32,
            flags: u64,
        }
        let value = socket.as_raw_fd();
        let update =
            Update { map: self.sockets.as_raw_fd(), _pad: 0, key: &queue, value: &value, flags: 0 };
        // SAFETY: key and value have the table's sizes and live during the call.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &update, size_of::<Update>())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns the reason why a device refuses the program.
fn refused(e: io::Error) -> io::Error {
    let (kind, why) = match e.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => (
            io::ErrorKind::ResourceBusy,
            "another XDP program is attached (`ip link` shows it): take it off",
        ),
        Some(libc::EOPNOTSUPP) => (io::ErrorKind::Unsupported, "its driver has no native XDP"),
        Some(libc::ERANGE | libc::EINVAL) => (
            io::ErrorKind::Unsupported,
            "its driver takes no XDP program as it is set up: a smaller MTU (also of a veth's \
             peer), LRO off",
        ),
        _ => (e.kind(), "attach the XDP program"),
    };
    io::Error::new(kind, format!("{why} ({e})"))
}

fn sockets(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Map {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
        flags: u32,
        inner: u32,
        node: u32,
        name: [u8; 16],
    }
    let (kind, name) = (BPF_MAP_TYPE_XSKMAP, named(b"pando_sockets"));
    open(
        BPF_MAP_CREATE,
        &Map {
            kind,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues,
            flags: 0,
            inner: 0,
            node: 0,
            name,
        },
    )
}

fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: *const u64,
        license: *const libc::c_char,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
        device: u32,
        attach: u32,
    }
    open(
        BPF_PROG_LOAD,
        &Load {
            kind: BPF_PROG_TYPE_XDP,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr(),
            license: c"Dual BSD/GPL".as_ptr(),
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel: 0,
            flags: 0,
            name: named(b"pando_unit"),
            device: 0,
            attach: BPF_XDP,
        },
    )
}

/// Returns one instruction: operation, registers, offset of a jump or of memory, number.
const fn op(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    code as u64
        | ((to | from << 4) as u64) << 8
        | (offset as u16 as u64) << 16
        | (number as u32 as u64) << 32
}

/// The program. It is too small to justify a compiler and a loader. In C it is
///
/// ```c
/// if (bpf_xdp_adjust_meta(ctx, -8) == 0) {
///         __u64 now = bpf_ktime_get_tai_ns();
///         __u64 *stamp = (void *)(long)ctx->data_meta;
///         if ((void *)(stamp + 1) <= (void *)(long)ctx->data)
///                 *stamp = now;
/// }
/// int action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
/// if (action == XDP_PASS)
///         bpf_xdp_adjust_meta(ctx, 8);
/// return action;
/// ```
fn instructions(sockets: i32) -> [u64; 22] {
    const MOVE: u8 = 0xbf;
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const LOAD32: u8 = 0x61;
    const STORE64: u8 = 0x7b;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const UNLESS_EQUAL: u8 = 0x55;
    const IF_MORE: u8 = 0x2d;
    const LOAD_MAP: u8 = 0x18;
    const REDIRECT_MAP: i32 = 51;
    const ADJUST_META: i32 = 54;
    const TIME_TAI: i32 = 208;
    const PASS: i32 = 2;
    // struct xdp_md
    const DATA: i16 = 0;
    const DATA_META: i16 = 8;
    const QUEUE: i16 = 16;
    let (r0, r1, r2, r3, context) = (0, 1, 2, 3, 6);
    let stamp = STAMP_BYTES as i32;
    [
        op(MOVE, context, r1, 0, 0),
        op(SET, r2, 0, 0, -stamp),
        op(CALL, 0, 0, 0, ADJUST_META),
        op(UNLESS_EQUAL, r0, 0, 7, 0), // no room for a stamp: the unit takes its own time
        op(CALL, 0, 0, 0, TIME_TAI),
        op(LOAD32, r1, context, DATA_META, 0),
        op(LOAD32, r2, context, DATA, 0),
        op(MOVE, r3, r1, 0, 0),
        op(ADD, r3, 0, 0, stamp),
        op(IF_MORE, r3, r2, 1, 0),
        op(STORE64, r1, r0, 0, 0),
        op(LOAD32, r2, context, QUEUE, 0),
        op(LOAD_MAP, r1, 1, 0, sockets),
        0, // its second half
        op(SET, r3, 0, 0, PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(UNLESS_EQUAL, r0, 0, 4, PASS),
        op(MOVE, r1, context, 0, 0),
        op(SET, r2, 0, 0, stamp),
        op(CALL, 0, 0, 0, ADJUST_META),
        op(SET, r0, 0, 0, PASS),
        op(EXIT, 0, 0, 0, 0),
    ]
}
