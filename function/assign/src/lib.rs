//! The flowlet rule: it chooses the unit of a flowlet (SNF §4.2, §5.2). The rule is C code in
//! `bpf/assign.h`, compiled into the kernel program and into this crate. The crate has only the
//! structs and a safe call. It keeps no clock and does no I/O. [`queue`] is the order in which a
//! unit serves its packets.

pub mod queue;

/// Number of units that one steering program serves.
pub const UNITS: usize = 64;
/// The unit of a flow without a unit.
pub const NONE: u16 = 0xffff;
/// Largest number of units that receive a flow's pushed state.
pub const TARGETS_MAX: u32 = 3;

/// The configuration from user space: `struct assign_config`. Times are nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// T of SNF: a longer silence ends a flowlet.
    pub gap_ns: u64,
    /// Cost of fetching state from another unit.
    pub pull_ns: u64,
    /// How much sooner another unit must be to justify a move; SNF's λ as a time.
    pub stick_ns: u64,
    /// If others delay a flow by more than this, only its own work counts as the wait for its
    /// state.
    pub crowded_ns: u64,
    /// If every unit has a longer queue than this, the rule adds a unit.
    pub grow_ns: u64,
    /// At most one unit is added in this time.
    pub grow_every_ns: u64,
    /// The window of a flow's demand.
    pub window_ns: u64,
    /// B of SNF: a flowlet with more bytes ends; 0 sets no limit.
    pub size_bytes: u32,
    /// Cost of an empty packet on a unit.
    pub packet_ns: u32,
    /// Cost of 1024 bytes on a unit.
    pub kib_ns: u32,
    /// K of SNF: number of units that receive the pushed state.
    pub targets: u32,
}

/// The state of the units: `struct assign_units`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// When each unit finishes its assigned work.
    pub finish: [u64; UNITS],
    /// Bit i: unit i takes new flowlets.
    pub accepting: u64,
    /// Bit i: unit i can enter service at once.
    pub ready: u64,
    /// When the rule last added a unit.
    pub grown: u64,
    /// Bytes assigned so far.
    pub bytes: u64,
}

/// The state of a flow: `struct assign_flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Arrival of its last packet.
    pub seen: u64,
    /// When that packet finishes: its place in the unit's queue.
    pub finish: u64,
    /// When that packet would finish if the flow were alone on the unit.
    pub alone: u64,
    /// Arrival of its state at its unit.
    pub ready: u64,
    /// Packets so far: the logical clock of SNF §5.3.
    pub clock: u64,
    /// Start of the current demand window.
    pub window: u64,
    /// Bytes in the current window.
    pub window_bytes: u32,
    /// Moving average of the bytes per window.
    pub demand_bytes: u32,
    /// Bytes of this flowlet.
    pub bytes: u32,
    /// Number of units so far, including this one.
    pub epoch: u32,
    /// Packets since this epoch began.
    pub position: u32,
    /// The unit of this epoch; [`NONE`] for a new flow.
    pub unit: u16,
    /// The unit of the previous epoch.
    pub previous: u16,
    /// Units that receive the state when the flow pauses; 255 marks an empty entry.
    pub target: [u8; TARGETS_MAX as usize],
    /// Padding.
    pub pad: [u8; 5],
}

/// The outcome for a packet: bits of `enum assign_result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(pub i32);

impl Outcome {
    /// Returns whether the packet begins a flowlet.
    pub fn begins(self) -> bool {
        self.0 & 1 != 0
    }
    /// Returns whether the flowlet changed its unit.
    pub fn moved(self) -> bool {
        self.0 & 2 != 0
    }
    /// Returns whether the rule added a unit.
    pub fn grew(self) -> bool {
        self.0 & 4 != 0
    }
}

unsafe extern "C" {
    fn pando_assign_packet(
        c: *const Config,
        u: *mut Units,
        f: *mut Flow,
        now: u64,
        len: u32,
    ) -> i32;
    fn pando_assign_cost(c: *const Config, len: u32) -> u64;
    fn pando_assign_targets(f: *const Flow) -> u64;
}

impl Config {
    /// Returns the defaults for units of `bits_per_second`.
    ///
    /// T = 500 µs is the paper's value: four times the cost of moving state on its network (§9.6).
    /// A pull costs as much as the paper's reactive pull (133 µs at the 99th percentile, §9.2). A
    /// move must gain as much again, plus the time of 16 kB on the unit. Without that time one
    /// packet would justify a move on a slow unit. On units of 70 Mbit/s it raises the share of
    /// seamless moves from 84 % to 98 % at the same latency (simulated). The rule adds a unit once
    /// the shortest queue exceeds 100 µs, at most one in 200 µs.
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

    /// Returns the time that a unit needs for a packet of `len` bytes.
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
    /// Assigns a packet of `flow` to a unit, stored in `flow.unit`.
    pub fn assign(&mut self, config: &Config, flow: &mut Flow, now: u64, len: u32) -> Outcome {
        // SAFETY: the three structs have the layout of the header (asserted there) and do not
        // overlap.
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
    /// Returns the set of units that receive the state when the flow pauses: bit i is unit i.
    pub fn targets(&self) -> u64 {
        // SAFETY: the C function reads one Flow.
        unsafe { pando_assign_targets(self) }
    }
}
