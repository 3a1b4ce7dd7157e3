//! The flowlet rule: which unit serves a flowlet (SNF §4.2, §5.2). The rule itself is C, `bpf/assign.h`, compiled into
//! the kernel program and into this crate; here are only its structs and a safe call. It keeps no clock and does no
//! I/O. [`queue`] is the other half: in which order a unit serves what it was given.

pub mod queue;

/// How many units one steering program serves.
pub const UNITS: usize = 64;
/// The unit of a flow that has none yet.
pub const NONE: u16 = 0xffff;
/// How many units a flow's state can be pushed to.
pub const TARGETS_MAX: u32 = 3;

/// What user space sets: `struct assign_config`. Times are nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// T of SNF: a longer silence ends a flowlet.
    pub gap_ns: u64,
    /// What fetching state from another unit costs.
    pub pull_ns: u64,
    /// How much sooner another unit must be to be worth a move; SNF's λ as a time.
    pub stick_ns: u64,
    /// A flow that others delay by more than this counts only its own work as the wait for its state.
    pub crowded_ns: u64,
    /// The least backlog of all units that asks for one more.
    pub grow_ns: u64,
    /// At most one more unit in this time.
    pub grow_every_ns: u64,
    /// The window of a flow's demand.
    pub window_ns: u64,
    /// B of SNF: more bytes than this start a new flowlet; 0 sets no limit.
    pub size_bytes: u32,
    /// What a packet of no bytes costs a unit.
    pub packet_ns: u32,
    /// What 1024 bytes cost a unit.
    pub kib_ns: u32,
    /// K of SNF: how many units the state is pushed to.
    pub targets: u32,
}

/// What is known of the units: `struct assign_units`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// When each unit would be done with all that it was given.
    pub finish: [u64; UNITS],
    /// Bit i: unit i takes new flowlets.
    pub accepting: u64,
    /// Bit i: unit i may be taken into service at once.
    pub ready: u64,
    /// When the rule last took one more unit into service.
    pub grown: u64,
    /// Bytes assigned so far.
    pub bytes: u64,
}

/// What is known of a flow: `struct assign_flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Arrival of its last packet.
    pub seen: u64,
    /// When that packet will be done: its place in the unit's queue.
    pub finish: u64,
    /// When it would be done if the flow had the unit for itself.
    pub alone: u64,
    /// Until then its state is on the way to its unit.
    pub ready: u64,
    /// Packets so far: the logical clock of SNF §5.3.
    pub clock: u64,
    /// When the current window of its demand began.
    pub window: u64,
    /// Bytes in the current window.
    pub window_bytes: u32,
    /// Bytes per window, moving average.
    pub demand_bytes: u32,
    /// Bytes of this flowlet.
    pub bytes: u32,
    /// Units that it has had, this one included.
    pub epoch: u32,
    /// Packets since this epoch began.
    pub position: u32,
    /// The unit of this epoch; [`NONE`] for a new flow.
    pub unit: u16,
    /// The unit of the epoch before.
    pub previous: u16,
    /// Units that the state is pushed to when the flow falls silent; 255: none.
    pub target: [u8; TARGETS_MAX as usize],
    /// No meaning.
    pub pad: [u8; 5],
}

/// What happened to a packet: bits of `enum assign_result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(pub i32);

impl Outcome {
    /// The packet begins a flowlet.
    pub fn begins(self) -> bool {
        self.0 & 1 != 0
    }
    /// The flowlet goes to another unit than the one before.
    pub fn moved(self) -> bool {
        self.0 & 2 != 0
    }
    /// One more unit was taken into service.
    pub fn grew(self) -> bool {
        self.0 & 4 != 0
    }
}

unsafe extern "C" {
    fn pando_assign_packet(c: *const Config, u: *mut Units, f: *mut Flow, now: u64, len: u32) -> i32;
    fn pando_assign_cost(c: *const Config, len: u32) -> u64;
    fn pando_assign_targets(f: *const Flow) -> u64;
}

impl Config {
    /// The defaults for units of `bits_per_second`, and why: T = 500 µs is the paper's, four times what moving state
    /// costs on its network (§9.6); a pull costs what its reactive pull did (133 µs at the 99th percentile, §9.2), and
    /// a move must gain as much again, and on a slow unit the time of 16 kB there, or one packet would be worth a move
    /// (on units of 70 Mbit/s this makes 98 % of the moves seamless instead of 84 %, at the same latency, simulated);
    /// one more unit once the shortest queue exceeds 100 µs, at most one in 200 µs.
    pub fn of(bits_per_second: u64) -> Config {
        Config {
            gap_ns: 500_000,
            pull_ns: 130_000,
            stick_ns: (128_000_000_000_000 / bits_per_second.max(1)).max(130_000),
            crowded_ns: 1_000_000,
            grow_ns: 100_000,
            grow_every_ns: 200_000,
            window_ns: 1_000_000,
            size_bytes: 30_000,
            packet_ns: 0,
            kib_ns: (8_192_000_000_000 / bits_per_second.max(1)) as u32,
            targets: 2,
        }
    }

    /// How long a unit is busy with a packet of `len` bytes.
    pub fn cost(&self, len: u32) -> u64 {
        // SAFETY: the C function reads one Config.
        unsafe { pando_assign_cost(self, len) }
    }
}

impl Default for Units {
    fn default() -> Units {
        Units { finish: [0; UNITS], accepting: 0, ready: 0, grown: 0, bytes: 0 }
    }
}

impl Units {
    /// Unit of a packet of `flow`, which is `flow.unit` afterwards.
    pub fn assign(&mut self, config: &Config, flow: &mut Flow, now: u64, len: u32) -> Outcome {
        // SAFETY: the three structs have the layout of the header (asserted there) and do not overlap.
        Outcome(unsafe { pando_assign_packet(config, self, flow, now, len) })
    }
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            seen: 0,
            finish: 0,
            alone: 0,
            ready: 0,
            clock: 0,
            window: 0,
            window_bytes: 0,
            demand_bytes: 0,
            bytes: 0,
            epoch: 0,
            position: 0,
            unit: NONE,
            previous: NONE,
            target: [0xff; TARGETS_MAX as usize],
            pad: [0; 5],
        }
    }
}

impl Flow {
    /// Bit i: the state is pushed to unit i when the flow falls silent.
    pub fn targets(&self) -> u64 {
        // SAFETY: the C function reads one Flow.
        unsafe { pando_assign_targets(self) }
    }
}
