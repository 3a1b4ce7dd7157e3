//! The outcomes of packets.

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It continues as the chain's output.
    #[default]
    Passed,
    /// A function dropped it.
    Dropped,
    /// A function trapped on it.
    Trapped,
    /// It is not IP and has no flow: it continues, unseen by the functions.
    Unseen,
    /// The table of flows is full; it is dropped.
    NoRoom,
    /// Longer than the room of a batch or of the device; it is dropped.
    TooLong,
    /// A fragment of an incomplete datagram. It waits and continues as part of the whole datagram.
    Held,
    /// A fragment that completes no datagram; it is dropped.
    Incomplete,
}

impl Fate {
    /// All outcomes, in the order of their values.
    pub const ALL: [Fate; 8] = [
        Fate::Passed,
        Fate::Dropped,
        Fate::Trapped,
        Fate::Unseen,
        Fate::NoRoom,
        Fate::TooLong,
        Fate::Held,
        Fate::Incomplete,
    ];

    /// Returns the word for output to programs.
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
