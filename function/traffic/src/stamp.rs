//! A stamp after a packet, with its number and send time. It follows the end of the IP packet, like
//! Ethernet's padding, so functions and checksums ignore it. The receiver measures latency and
//! finds missing packets with it.

/// The contents of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the packet in order of sending, from 0.
    pub sequence: u64,
    /// Send time in nanoseconds since the Unix epoch.
    pub sent_ns: u64,
}

const MAGIC: [u8; 8] = *b"pando-at";

/// Bound of the packet numbers. A stamp with this number or a higher one is not ours.
pub const SEQUENCES_MAX: u64 = 1 << 27;

impl Stamp {
    /// Bytes that a stamp adds to a frame.
    pub const LENGTH_BYTES: usize = 24;

    /// Appends the stamp to a frame.
    pub fn append(&self, frame: &mut Vec<u8>) {
        frame.extend(self.sequence.to_le_bytes());
        frame.extend(self.sent_ns.to_le_bytes());
        frame.extend(MAGIC);
    }

    /// Returns the stamp of a frame, and the frame without it.
    pub fn split(frame: &[u8]) -> Option<(Stamp, &[u8])> {
        let (frame, stamp) = frame.split_last_chunk::<{ Stamp::LENGTH_BYTES }>()?;
        let number = |at: usize| u64::from_le_bytes(stamp[at..at + 8].try_into().expect("8 bytes"));
        let found = Stamp { sequence: number(0), sent_ns: number(8) };
        (stamp[16..] == MAGIC && found.sequence < SEQUENCES_MAX).then_some((found, frame))
    }
}

/// The numbered packets that arrived, and when they were sent.
#[derive(Debug, Default)]
pub struct Arrivals {
    sent_ns: Vec<u64>,
    /// Different packets that arrived.
    pub came: u64,
    /// Packets that arrived again.
    pub twice: u64,
}

/// Missing packets that were sent within one stretch of time.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loss {
    /// Number of missing packets.
    pub packets: u64,
    /// Send time of the last packet that arrived before them.
    pub from_ns: u64,
    /// Send time of the first packet that arrived after them.
    pub to_ns: u64,
}

impl Arrivals {
    /// Counts a packet. Returns whether it is the first with its number.
    pub fn count(&mut self, stamp: Stamp) -> bool {
        let at = stamp.sequence as usize;
        if at >= self.sent_ns.len() {
            self.sent_ns.resize(at + 1, 0);
        }
        let fresh = self.sent_ns[at] == 0;
        self.sent_ns[at] = stamp.sent_ns.max(1);
        *(if fresh { &mut self.came } else { &mut self.twice }) += 1;
        fresh
    }

    /// Returns the losses below the highest number that arrived. Losses less than `together_ns`
    /// apart count as one.
    pub fn losses(&self, together_ns: u64) -> Vec<Loss> {
        let mut losses: Vec<Loss> = Vec::new();
        let (mut before_ns, mut missing) =
            (self.sent_ns.iter().copied().find(|&ns| ns > 0).unwrap_or(0), 0);
        for &ns in &self.sent_ns {
            if ns == 0 {
                missing += 1;
                continue;
            }
            match losses.last_mut() {
                _ if missing == 0 => {}
                Some(last) if before_ns.saturating_sub(last.to_ns) < together_ns => {
                    last.packets += missing;
                    last.to_ns = ns;
                }
                _ => losses.push(Loss { packets: missing, from_ns: before_ns, to_ns: ns }),
            }
            (before_ns, missing) = (ns, 0);
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_stamped_is_found(
            frame in proptest::collection::vec(any::<u8>(), 0..90),
            sequence in 0..SEQUENCES_MAX,
            sent_ns: u64,
        ) {
            let stamp = Stamp { sequence, sent_ns };
            let mut stamped = frame.clone();
            stamp.append(&mut stamped);
            prop_assert_eq!(Stamp::split(&stamped), Some((stamp, frame.as_slice())));
            prop_assert_eq!(Stamp::split(&frame), None);
        }

        #[test]
        fn every_missing_packet_is_in_one_loss(
            missing in proptest::collection::btree_set(1..99u64, 0..40),
            together_ns in 0..900u64,
        ) {
            let mut arrivals = Arrivals::default();
            let came = (0..100).filter(|n| !missing.contains(n));
            came.for_each(|sequence| {
                assert!(arrivals.count(Stamp { sequence, sent_ns: 1000 + sequence * 100 }))
            });
            let losses = arrivals.losses(together_ns);
            prop_assert_eq!(losses.iter().map(|l| l.packets).sum::<u64>(), missing.len() as u64);
            prop_assert_eq!(arrivals.came, 100 - missing.len() as u64);
            for n in &missing {
                prop_assert!(
                    losses.iter().any(|l| (l.from_ns..l.to_ns).contains(&(1000 + n * 100)))
                );
            }
        }
    }

    #[test]
    fn losses_that_are_far_apart_stay_apart() {
        let mut arrivals = Arrivals::default();
        for sequence in (0..60).filter(|n| ![1, 3, 40, 41].contains(n)) {
            arrivals.count(Stamp { sequence, sent_ns: 1000 + sequence * 1000 });
        }
        arrivals.count(Stamp { sequence: 53, sent_ns: 54_000 });
        let found: Vec<u64> = arrivals.losses(10_000).iter().map(|l| l.packets).collect();
        assert_eq!((found, arrivals.twice), (vec![2, 2], 1));
    }
}
