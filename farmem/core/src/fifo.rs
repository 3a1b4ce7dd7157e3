//! A bounded queue of page numbers over borrowed memory.

/// Ring of page numbers. Capacity is the length of the slice; positions only grow.
pub struct Fifo<'a> {
    ring: &'a mut [u32],
    head: u64,
    tail: u64,
}

impl<'a> Fifo<'a> {
    pub fn new(ring: &'a mut [u32]) -> Self {
        Fifo { ring, head: 0, tail: 0 }
    }

    pub fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends; false when full.
    pub fn push(&mut self, page: u32) -> bool {
        if self.len() == self.ring.len() {
            return false;
        }
        let at = (self.tail % self.ring.len() as u64) as usize;
        self.ring[at] = page;
        self.tail += 1;
        true
    }

    pub fn pop(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let at = (self.head % self.ring.len() as u64) as usize;
        self.head += 1;
        Some(self.ring[at])
    }

    pub fn clear(&mut self) {
        self.head = self.tail;
    }
}
