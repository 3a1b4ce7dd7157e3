//! Blocks of a small arena, without a lock. Its callers must not wait. It never touches the memory
//! of the blocks.
//!
//! Blocks are powers of two of grains, cut from the front and never merged. The free blocks of a
//! size are a stack. Its head has a count of changes, so that an old head is not mistaken for the
//! current one.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Sizes from one grain to 2^14.
const SIZES: usize = 15;

/// Memory of zeros has no free block.
pub struct Blocks<'a> {
    /// For each grain where a block begins: its size while it is taken, or else the next block in
    /// the stack. 0 = unused.
    notes: &'a [AtomicU32],
    /// Grains that were cut so far.
    cut: AtomicUsize,
    /// For each size: the first free block, and above it the count of changes.
    free: [AtomicU64; SIZES],
}

impl<'a> Blocks<'a> {
    /// Makes an arena with one note for each grain, all 0.
    pub const fn new(notes: &'a [AtomicU32]) -> Self {
        Blocks { notes, cut: AtomicUsize::new(1), free: [const { AtomicU64::new(0) }; SIZES] }
    }

    /// Takes a block of at least this many grains; returns its first grain. None = no block is
    /// free.
    pub fn take(&self, grains: usize) -> Option<usize> {
        let size = grains.checked_next_power_of_two()?.trailing_zeros() as usize;
        let block = match self.pop(self.free.get(size)?) {
            0 => self
                .cut
                .fetch_update(SeqCst, SeqCst, |cut| {
                    Some(cut + (1 << size)).filter(|&end| end <= self.notes.len())
                })
                .ok()?,
            block => block,
        };
        self.notes[block].store(size as u32, SeqCst);
        Some(block)
    }

    /// Returns the grains of a taken block.
    pub fn grains(&self, block: usize) -> usize {
        1 << self.notes[block].load(SeqCst)
    }

    /// Frees a taken block.
    pub fn give(&self, block: usize) {
        let head = &self.free[self.notes[block].load(SeqCst) as usize];
        let mut seen = head.load(SeqCst);
        loop {
            self.notes[block].store(seen as u32, SeqCst);
            match head.compare_exchange(seen, changed(seen, block as u32), SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn pop(&self, head: &AtomicU64) -> usize {
        let mut seen = head.load(SeqCst);
        loop {
            let block = seen as u32 as usize;
            if block == 0 {
                return 0;
            }
            // If another thread has taken the block by now, this is its size. Then the head has
            // changed as well.
            let next = self.notes[block].load(SeqCst);
            match head.compare_exchange(seen, changed(seen, next), SeqCst, SeqCst) {
                Ok(_) => return block,
                Err(now) => seen = now,
            }
        }
    }
}

fn changed(head: u64, first: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | first as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(n: usize) -> Vec<AtomicU32> {
        (0..n).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn no_grain_is_given_twice_and_what_comes_back_is_taken_again() {
        const GRAINS: usize = 8192;
        let (notes, owners) = (notes(GRAINS), notes(GRAINS));
        let blocks = Blocks::new(&notes);
        std::thread::scope(|s| {
            for t in 1..5u32 {
                let (blocks, owners) = (&blocks, &owners);
                s.spawn(move || {
                    let mut held = vec![];
                    for k in 0..200_000usize {
                        let want = 1 + (k * 7919 + t as usize) % 40;
                        let block = blocks
                            .take(want)
                            .expect("four threads hold 40 blocks of at most 64 grains each");
                        let grains = blocks.grains(block);
                        assert!(grains >= want && grains < 2 * want);
                        assert!(
                            (block..block + grains).all(|g| owners[g].swap(t, SeqCst) == 0),
                            "given twice"
                        );
                        held.push(block);
                        if held.len() == 20 {
                            let block = held.swap_remove(k % 20);
                            (block..block + blocks.grains(block))
                                .for_each(|g| assert_eq!(owners[g].swap(0, SeqCst), t));
                            blocks.give(block);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn too_much_is_refused_and_the_rest_still_given() {
        let notes = notes(100);
        let blocks = Blocks::new(&notes);
        assert_eq!(blocks.take(usize::MAX), None);
        assert_eq!(blocks.take(1 << SIZES), None);
        assert_eq!(blocks.take(100), None);
        assert_eq!((blocks.take(64), blocks.take(64), blocks.take(33)), (Some(1), None, None));
        assert_eq!(
            (blocks.take(32), blocks.take(3), blocks.take(1), blocks.take(0)),
            (Some(65), None, Some(97), Some(98))
        );
        blocks.give(65);
        assert_eq!((blocks.take(32), blocks.take(32), blocks.take(1)), (Some(65), None, Some(99)));
    }
}
