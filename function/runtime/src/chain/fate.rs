//! How a packet ended.

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It goes on; the chain's output.
    #[default]
    Passed,
    /// A function said so.
    Dropped,
    /// A function trapped on it.
    Trapped,
    /// It is of no flow (not IP): it goes on, unseen by the functions.
    Unseen,
    /// The table of flows is full; it is dropped.
    NoRoom,
    /// Longer than a batch can hold, or than the device had room for; it is dropped.
    TooLong,
    /// A fragment that the others of its datagram are not all there for: it goes on with them, as part of one packet.
    Held,
    /// A fragment that no datagram can be made of; it is dropped.
    Incomplete,
}

impl Fate {
    /// All of them, in the order of their values.
    pub const ALL: [Fate; 8] =
        [Fate::Passed, Fate::Dropped, Fate::Trapped, Fate::Unseen, Fate::NoRoom, Fate::TooLong, Fate::Held, Fate::Incomplete];

    /// Its word in output for programs.
    pub fn word(self) -> &'static str {
        match self {
            Fate::Passed => "passed",
            Fate::Dropped => "dropped",
            Fate::Trapped => "trapped",
            Fate::Unseen => "unseen",
            Fate::NoRoom => "no_room",
            Fate::TooLong => "too_long",
            Fate::Held => "held",
            Fate::Incomplete => "incomplete",
        }
    }
}
