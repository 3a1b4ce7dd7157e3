//! Which slots of the leased far memory are taken, and which must stay as they are for a forked
//! child.
//!
//! A fork freezes every slot that is in use: the child reads its snapshot from them, so the parent
//! neither overwrites nor frees them until the last child is gone (copy-on-write epochs).

use crate::page::NONE;

/// Slots that a run of neighbouring pages is given together, so that they are fetched as one piece.
const GROUP: usize = 32;

/// Three bitmaps, a bit per slot.
pub struct Slots<'a> {
    taken: &'a mut [u64],
    frozen: &'a mut [u64],
    /// Frozen and no longer owned by a page: free once thawed.
    orphan: &'a mut [u64],
    count: usize,
    used: usize,
    cursor: usize,
    epochs: u32,
}

fn get(map: &[u64], i: usize) -> bool {
    map[i / 64] >> (i % 64) & 1 == 1
}

fn put(map: &mut [u64], i: usize, on: bool) {
    if on { map[i / 64] |= 1 << (i % 64) } else { map[i / 64] &= !(1 << (i % 64)) }
}

impl<'a> Slots<'a> {
    /// Takes three zeroed bitmaps of at least `count` bits each.
    pub fn new(
        taken: &'a mut [u64],
        frozen: &'a mut [u64],
        orphan: &'a mut [u64],
        count: usize,
    ) -> Self {
        assert!(
            taken.len() * 64 >= count && frozen.len() == taken.len() && orphan.len() == taken.len()
        );
        Slots { taken, frozen, orphan, count, used: 0, cursor: 0, epochs: 0 }
    }

    /// Returns how many slots are leased.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns how many slots hold a page.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether a slot holds a page.
    pub fn is_taken(&self, slot: u32) -> bool {
        get(self.taken, slot as usize)
    }

    /// Whether a child may still read the slot.
    pub fn is_frozen(&self, slot: u32) -> bool {
        self.epochs > 0 && get(self.frozen, slot as usize)
    }

    /// Takes a slot, `hint` itself if it is free. None: the far memory is full.
    pub fn take(&mut self, page: u32, hint: u32) -> Option<u32> {
        if hint != NONE && (hint as usize) < self.count && !self.is_taken(hint) {
            return Some(self.mark(hint as usize));
        }
        let groups = self.count / GROUP;
        let offset = page as usize % GROUP;
        // A few tries at an empty group keep neighbours together; then any free slot will do.
        for k in 0..groups.min(64) {
            let g = (self.cursor / GROUP + k) % groups;
            let word = self.taken[g * GROUP / 64] >> (g * GROUP % 64) & 0xffff_ffff;
            if word == 0 {
                self.cursor = ((g + 1) % groups) * GROUP;
                return Some(self.mark(g * GROUP + offset));
            }
        }
        if groups > 0 {
            self.cursor = (self.cursor + 64 * GROUP) % (groups * GROUP);
        }
        self.any()
    }

    fn any(&mut self) -> Option<u32> {
        let words = self.count.div_ceil(64);
        let start = self.cursor / 64;
        for k in 0..words {
            let w = (start + k) % words;
            let free = !self.taken[w];
            if free != 0 {
                let slot = w * 64 + free.trailing_zeros() as usize;
                if slot < self.count {
                    return Some(self.mark(slot));
                }
            }
        }
        None
    }

    fn mark(&mut self, slot: usize) -> u32 {
        put(self.taken, slot, true);
        self.used += 1;
        slot as u32
    }

    /// Gives a slot back. False: a child may still read it, so it stays until the thaw.
    pub fn free(&mut self, slot: u32) -> bool {
        debug_assert!(self.is_taken(slot));
        if self.is_frozen(slot) {
            put(self.orphan, slot as usize, true);
            return false;
        }
        put(self.taken, slot as usize, false);
        self.used -= 1;
        true
    }

    /// A child was born: everything in use now is its snapshot.
    pub fn freeze(&mut self) {
        for w in 0..self.taken.len() {
            self.frozen[w] |= self.taken[w];
        }
        self.epochs += 1;
    }

    /// Records the end of a child. With the last one, frozen slots without an owner become free;
    /// returns whether that happened.
    pub fn thaw(&mut self) -> bool {
        assert!(self.epochs > 0, "thaw without freeze");
        self.epochs -= 1;
        if self.epochs > 0 {
            return false;
        }
        for w in 0..self.taken.len() {
            let gone = self.orphan[w];
            self.taken[w] &= !gone;
            self.used -= gone.count_ones() as usize;
            self.orphan[w] = 0;
            self.frozen[w] = 0;
        }
        true
    }

    /// The first taken slot at or after `from`.
    pub fn next_taken(&self, from: usize) -> Option<u32> {
        let mut i = from;
        while i < self.count {
            let rest = self.taken[i / 64] >> (i % 64);
            if rest != 0 {
                let slot = i + rest.trailing_zeros() as usize;
                return (slot < self.count).then_some(slot as u32);
            }
            i = (i / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_stay_together() {
        let (mut a, mut b, mut c) = ([0; 4], [0; 4], [0; 4]);
        let mut s = Slots::new(&mut a, &mut b, &mut c, 256);
        let first = s.take(64, NONE).unwrap();
        for k in 1..32 {
            assert_eq!(s.take(64 + k, first + k), Some(first + k));
        }
        assert_eq!(s.used(), 32);
    }

    #[test]
    fn full_means_none() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 2], [0; 2]);
        let mut s = Slots::new(&mut a, &mut b, &mut c, 70);
        for page in 0..70 {
            assert!(s.take(page * 7, NONE).unwrap() < 70);
        }
        assert_eq!(s.take(1, NONE), None);
    }

    proptest! {
        /// No slot has two owners, and a frozen slot is never handed out before the thaw.
        #[test]
        fn one_owner(ops in proptest::collection::vec((0u8..5, 0u32..200), 1..400)) {
            let (mut a, mut b, mut c) = ([0; 4], [0; 4], [0; 4]);
            let mut s = Slots::new(&mut a, &mut b, &mut c, 200);
            let mut owned = std::collections::BTreeSet::new();
            let mut snapshots: Vec<std::collections::BTreeSet<u32>> = vec![];
            for (op, x) in ops {
                match op {
                    0 | 1 => if let Some(slot) = s.take(x, if op == 0 { NONE } else { x }) {
                        prop_assert!(owned.insert(slot));
                        prop_assert!(snapshots.iter().all(|f| !f.contains(&slot)));
                    },
                    2 => if let Some(&slot) = owned.iter().nth(x as usize % owned.len().max(1)) {
                        owned.remove(&slot);
                        let kept = snapshots.iter().any(|f| f.contains(&slot));
                        prop_assert!(s.free(slot) != kept || !kept);
                    },
                    3 => { s.freeze(); snapshots.push(owned.clone()); }
                    _ => if !snapshots.is_empty() {
                        s.thaw();
                        // Snapshots end together: the pager thaws everything with the last child.
                        snapshots.pop();
                        if snapshots.is_empty() { prop_assert_eq!(s.used(), owned.len()); }
                    },
                }
            }
        }
    }
}
