//! The configuration that the launcher passes to the pager: one environment variable, read without
//! allocating.

use memory_core::prefetch::Kind;
use memory_core::wire::TOKEN_BYTES;

/// The variable. Only the launcher (`pando-mem run`) may write it.
pub const VARIABLE: &core::ffi::CStr = c"PANDO_MEM";
/// Most memory hosts that one program may name.
pub const HOSTS_MAX: usize = 4;
/// Most transfers of the program at once.
pub const TRANSFERS: usize = 7;

/// Where a memory host listens, as the kernel takes it.
#[derive(Clone, Copy)]
pub struct Address {
    /// The socket address.
    pub bytes: [u8; 110],
    /// Bytes of the address.
    pub len: usize,
    /// The lease on this host. On a spare, a random number.
    pub lease: u64,
}

impl Address {
    /// Returns the family of the address.
    pub fn family(&self) -> i32 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]]) as i32
    }
}

#[derive(Clone, Copy)]
/// The configuration of one program.
pub struct Config {
    /// Device and inode of the program. The pager does nothing in wrapper programs that start it.
    pub exe: (u64, u64),
    /// The budget (`--local`).
    pub local_bytes: u64,
    /// Slots of each lease.
    pub slots: u64,
    /// Copies of each page.
    pub copies: usize,
    /// How long the host of the only copy may be silent.
    pub patience_ns: u64,
    /// The prefetcher.
    pub prefetch: Kind,
    /// Whether the faulting thread serves its own fault.
    pub sigbus: bool,
    /// Whether the kernel moves pages. Otherwise the pager copies them.
    pub moves: bool,
    /// Whether pages are encrypted before they leave this process.
    pub seals: bool,
    /// The token of the memory hosts.
    pub token: [u8; TOKEN_BYTES],
    /// The memory hosts: the first `hosts_len` entries.
    pub hosts: [Address; HOSTS_MAX],
    /// How many memory hosts there are.
    pub hosts_len: usize,
    /// Descriptor of the file of the counters; negative: none.
    pub stats: i32,
}

/// Parses `key=value` words. None: not written by this release's launcher.
pub fn parse(text: &str) -> Option<Config> {
    let none = Address { bytes: [0; 110], len: 0, lease: 0 };
    let mut c = Config {
        exe: (0, 0),
        local_bytes: 0,
        slots: 0,
        copies: 1,
        patience_ns: 60_000_000_000,
        prefetch: Kind::None,
        sigbus: true,
        moves: true,
        seals: false,
        token: [0; TOKEN_BYTES],
        hosts: [none; HOSTS_MAX],
        hosts_len: 0,
        stats: -1,
    };
    for word in text.split(' ') {
        let (key, value) = word.split_once('=')?;
        match key {
            "exe" => {
                let (d, i) = value.split_once(':')?;
                c.exe = (d.parse().ok()?, i.parse().ok()?);
            }
            "local" => c.local_bytes = value.parse().ok()?,
            "slots" => c.slots = value.parse().ok()?,
            "copies" => c.copies = value.parse().ok()?,
            "patience" => c.patience_ns = value.parse().ok()?,
            "prefetch" => {
                c.prefetch = match value {
                    "none" => Kind::None,
                    "sequential" => Kind::Sequential,
                    "stride" => Kind::Stride,
                    "extent" => Kind::Extent,
                    _ => return None,
                }
            }
            "mode" => c.sigbus = value == "sigbus",
            "sealed" => c.seals = value == "yes",
            "pages" => c.moves = value == "move",
            "token" => c.token.copy_from_slice(&unhex::<TOKEN_BYTES>(value)?.0),
            "stats" => c.stats = value.parse().ok()?,
            "host" => {
                let (address, lease) = value.split_once('/')?;
                let (bytes, len) = unhex::<110>(address)?;
                *c.hosts.get_mut(c.hosts_len)? = Address { bytes, len, lease: lease.parse().ok()? };
                c.hosts_len += 1;
            }
            _ => return None,
        }
    }
    let has_copies = (1..=c.hosts_len).contains(&c.copies);
    (c.local_bytes > 0 && c.slots > 0 && has_copies).then_some(c)
}

fn unhex<const N: usize>(text: &str) -> Option<([u8; N], usize)> {
    let mut out = [0; N];
    let len = text.len() / 2;
    if !text.len().is_multiple_of(2) || len > N {
        return None;
    }
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some((out, len))
}
