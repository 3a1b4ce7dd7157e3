//! A queue of page numbers over borrowed memory, of which it uses as little as it needs.

/// Ring of page numbers. Positions only grow, but when the ring itself does.
pub struct Fifo<'a> {
    memory: &'a mut [u32],
    /// Entries of `memory` that are in use; the rest stays untouched.
    capacity: usize,
    head: u64,
    tail: u64,
}

impl<'a> Fifo<'a> {
    /// Begins with room for `first` numbers; may grow to all of `memory`.
    pub fn new(memory: &'a mut [u32], first: usize) -> Self {
        Fifo { capacity: first.min(memory.len()), memory, head: 0, tail: 0 }
    }

    /// Returns how many numbers the queue has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether the queue must grow before the next number.
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    /// Twice the room, as far as there is memory.
    pub fn grow(&mut self) {
        let (n, first) = (self.len(), (self.head % self.capacity as u64) as usize);
        self.memory[..self.capacity].rotate_left(first);
        (self.head, self.tail) = (0, n as u64);
        self.capacity = (2 * self.capacity).min(self.memory.len());
    }

    /// Returns how many numbers wait.
    pub fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Whether no number waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Appends; false when full.
    pub fn push(&mut self, page: u32) -> bool {
        if self.is_full() {
            return false;
        }
        let at = (self.tail % self.capacity as u64) as usize;
        self.memory[at] = page;
        self.tail += 1;
        true
    }

    /// Removes the oldest number.
    pub fn pop(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let at = (self.head % self.capacity as u64) as usize;
        self.head += 1;
        Some(self.memory[at])
    }

    /// Removes all numbers.
    pub fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_the_order() {
        let mut memory = [0; 10];
        let mut f = Fifo::new(&mut memory, 4);
        for page in 0..4 {
            assert!(f.push(page));
        }
        assert_eq!((f.pop(), f.pop()), (Some(0), Some(1)));
        assert!(f.push(4) && f.push(5) && !f.push(6));
        f.grow();
        assert!(f.push(6) && f.capacity() == 8);
        f.grow();
        assert_eq!(f.capacity(), 10);
        assert!((2..=6).all(|page| f.pop() == Some(page)) && f.is_empty());
    }
}
