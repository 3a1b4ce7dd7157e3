//! Which ranges of the region are given out: first fit over a sorted table of free runs.

/// A run of free pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The first page of the run.
    pub first: u32,
    /// Pages of the run.
    pub pages: u32,
}

/// Free runs of the region, sorted, never touching one another, in borrowed memory.
pub struct Spans<'a> {
    runs: &'a mut [Run],
    len: usize,
}

impl<'a> Spans<'a> {
    /// All of `pages` free.
    pub fn new(runs: &'a mut [Run], pages: u32) -> Self {
        runs[0] = Run { first: 0, pages };
        Spans { runs, len: 1 }
    }

    /// Takes `pages` pages that start at a multiple of `align`. None = no run is that long.
    pub fn take(&mut self, pages: u32, align: u32) -> Option<u32> {
        for i in 0..self.len {
            let run = self.runs[i];
            let first = run.first.next_multiple_of(align);
            if first - run.first < run.pages && run.pages - (first - run.first) >= pages {
                self.carve(i, first, pages);
                return Some(first);
            }
        }
        None
    }

    fn carve(&mut self, i: usize, first: u32, pages: u32) {
        let run = self.runs[i];
        let before = first - run.first;
        let after = run.pages - before - pages;
        match (before > 0, after > 0) {
            (false, false) => self.remove(i),
            (true, false) => self.runs[i].pages = before,
            (false, true) => self.runs[i] = Run { first: first + pages, pages: after },
            (true, true) => {
                self.runs[i].pages = before;
                // Without room in the table the rest is lost, not wrong.
                self.insert(i + 1, Run { first: first + pages, pages: after });
            }
        }
    }

    /// Gives a range back. Pages of it that are free already stay free.
    pub fn give(&mut self, first: u32, pages: u32) {
        let end = first + pages;
        let mut at = self.runs[..self.len].partition_point(|r| r.first + r.pages < first);
        let (mut lo, mut hi) = (first, end);
        while at < self.len && self.runs[at].first <= hi {
            lo = lo.min(self.runs[at].first);
            hi = hi.max(self.runs[at].first + self.runs[at].pages);
            self.remove(at);
        }
        if at > self.len {
            at = self.len;
        }
        self.insert(at, Run { first: lo, pages: hi - lo });
    }

    fn insert(&mut self, at: usize, run: Run) {
        if self.len == self.runs.len() {
            return;
        }
        self.runs.copy_within(at..self.len, at + 1);
        self.runs[at] = run;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.runs.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a plain set of pages: no page is given out twice, and returned pages can
        /// be taken again.
        #[test]
        fn like_a_set(
            ops in proptest::collection::vec((any::<bool>(), 0u32..512, 1u32..60), 1..300),
        ) {
            let mut table = [Run::default(); 300];
            let mut s = Spans::new(&mut table, 512);
            let mut free = [true; 512];
            for (take, at, n) in ops {
                if take {
                    let align = 1 << (at % 4);
                    if let Some(f) = s.take(n, align) {
                        prop_assert_eq!(f % align, 0);
                        for p in f..f + n {
                            prop_assert!(std::mem::replace(&mut free[p as usize], false));
                        }
                    }
                } else {
                    let n = n.min(512 - at);
                    if n > 0 { s.give(at, n); }
                    for p in at..at + n { free[p as usize] = true; }
                }
                let total: u32 = s.runs[..s.len].iter().map(|r| r.pages).sum();
                prop_assert_eq!(total as usize, free.iter().filter(|f| **f).count());
                let mut pairs = s.runs[..s.len].windows(2);
                prop_assert!(pairs.all(|w| w[0].first + w[0].pages < w[1].first));
            }
        }
    }
}
