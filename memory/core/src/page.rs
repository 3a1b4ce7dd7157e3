//! The state of one page of the region: where its content is, and how it is used.

/// No slot, no frame.
pub const NONE: u32 = u32::MAX;

/// Where the content of a page is.
///
/// ```text
///            fault                   evict                cleaned, frame taken
///   Zero ───────────► Resident ◄──────────────► Limbo ─────────────────────► Remote
///    ▲                    ▲          rescue                                     │
///    └── dropped, from ───┤                                                     │
///        any of them      └──────────────── Busy (fetch under way) ◄────────────┘
/// ```
///
/// A page of the second-chance list whose frame is being written to the hosts remains in `Limbo`.
/// It may be rescued by a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum State {
    /// Never touched, or discarded: reads as zeros.
    #[default]
    Zero = 0,
    /// Mapped in the program.
    Resident,
    /// Unmapped, its content in a frame of the second-chance list.
    Limbo,
    /// A fetch is under way; further faults on the page wait.
    Busy,
    /// Only in its slot on the memory hosts.
    Remote,
}

/// The record of one page; 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Page {
    /// Slot on the memory hosts, or [`NONE`].
    pub slot: u32,
    /// Frame that holds the content while in `Limbo`, else [`NONE`].
    pub frame: u32,
    /// Pages back to the first page of the allocation that this page belongs to.
    pub extent_back: u16,
    /// On the first page of an allocation: its length in pages. 0 = no known allocation of more
    /// than a page.
    pub extent_pages: u16,
    /// The place of the content.
    pub state: State,
    /// Second chances left (0..=3).
    pub heat: u8,
    /// System calls that use the page now. It is not evicted meanwhile.
    pub pins: u8,
    /// Bits of [`flag`].
    pub flags: u8,
}

/// Bits of [`Page::flags`].
pub mod flag {
    /// In the eviction queue already.
    pub const QUEUED: u8 = 1;
    /// Belongs to an allocation of more than a page.
    pub const IN_EXTENT: u8 = 2;
    /// Fetched ahead and left unmapped, to measure whether it is used.
    pub const PROBE: u8 = 4;
    /// The probe is from a guide.
    pub const GUIDED: u8 = 8;
    /// In a forked child: the parent's, so not counted here and never evicted here.
    pub const INHERITED: u8 = 16;
    /// Holds a word that the kernel itself waits on: never evicted.
    pub const STICKY: u8 = 32;
    /// Part of the batch that is being written to the hosts, in any state.
    pub const CLEANING: u8 = 64;
    /// Holds small objects, which lead to all other objects.
    pub const SMALL: u8 = 128;
}

impl Page {
    /// Whether the page belongs to an allocation of more than a page. A page of small objects does
    /// not, even if an older record is left.
    pub fn is_in_extent(&self) -> bool {
        self.flags & (flag::IN_EXTENT | flag::SMALL) == flag::IN_EXTENT
    }

    /// Whether it counts as a page of small objects that is in memory.
    pub fn is_small_here(&self) -> bool {
        self.state == State::Resident && self.flags & (flag::SMALL | flag::INHERITED) == flag::SMALL
    }
}

impl Default for Page {
    fn default() -> Self {
        Page {
            slot: NONE,
            frame: NONE,
            extent_back: 0,
            extent_pages: 0,
            state: State::Zero,
            heat: 0,
            pins: 0,
            flags: 0,
        }
    }
}
