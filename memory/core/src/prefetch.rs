//! The prefetcher: chooses pages to fetch together with a page that faulted. A wrong choice costs
//! time but never harms.
//!
//! One prefetched page in [`PROBE_EVERY`] is left unmapped. Whether the program touches it before
//! it leaves measures the prefetcher, without accessed bits. A prefetcher that is mostly wrong is
//! paused.

use crate::BATCH_PAGES_MAX;
use crate::heart::Heart;

/// One prefetched page in this many is a probe.
pub const PROBE_EVERY: u32 = 64;
/// Most pages of one object that are fetched with one of its pages.
const EXTENT_PAGES_MAX: u32 = 128;
const WINDOW_MAX: u32 = 32;
/// Probes before a prefetcher is judged, and the share of them that must have been used.
const JUDGE_AFTER: u32 = 64;
const USED_PERCENT_MIN: u32 = 25;
/// Faults for which a bad prefetcher is paused.
const PAUSE_FAULTS: u32 = 8192;

/// The method of choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    None,
    /// The pages that follow, a window that grows while it is right (Linux' readahead of swap by
    /// VMA).
    Sequential,
    /// The majority of the recent steps, continued (Leap, ATC '20, §3.2).
    Stride,
    /// The rest of the allocation (the paper's length in the SDS header, for every allocator). In
    /// large allocations, and without a known one, the pages that follow, in as many runs as are
    /// remembered.
    Extent,
}

/// Runs of faults that are followed at once: a program reads several arrays side by side.
const RUNS: usize = 8;

/// A run of faults, each of which starts where the last one ended.
#[derive(Clone, Copy)]
struct Run {
    /// First page that was not fetched.
    next: u32,
    window: u32,
}

/// Used and unused probes of one source of prefetches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy {
    used: u32,
    unused: u32,
    pause: u32,
    turn: u32,
}

impl Accuracy {
    /// Whether the next prefetched page is a probe.
    pub fn probe_next(&mut self) -> bool {
        self.turn = (self.turn + 1) % PROBE_EVERY;
        self.turn == 0
    }

    /// Records whether the program used a probe. Pauses prefetching if it used too few.
    pub fn saw(&mut self, used: bool) {
        if used {
            self.used += 1
        } else {
            self.unused += 1
        }
        let all = self.used + self.unused;
        if all >= JUDGE_AFTER {
            if self.used * 100 < all * USED_PERCENT_MIN {
                self.pause = PAUSE_FAULTS;
            }
            self.used /= 2;
            self.unused /= 2;
        }
    }

    /// Counts one fault; returns whether prefetching is worth it now.
    pub fn on(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.pause == 0
    }

    /// Whether prefetching is paused.
    pub fn is_paused(&self) -> bool {
        self.pause > 0
    }
}

/// A prefetcher with its memory of recent faults.
pub struct Prefetcher {
    kind: Kind,
    /// How many prefetched pages the program uses.
    pub accuracy: Accuracy,
    window: u32,
    next: u32,
    last: u32,
    steps: [i32; 32],
    at: usize,
    runs: [Run; RUNS],
    /// The run that the next unexpected fault replaces.
    oldest: usize,
}

impl Prefetcher {
    /// Returns a prefetcher of this kind that has seen no fault.
    pub const fn new(kind: Kind) -> Self {
        let accuracy = Accuracy { used: 0, unused: 0, pause: 0, turn: 0 };
        Prefetcher {
            kind,
            accuracy,
            window: 1,
            next: u32::MAX,
            last: 0,
            steps: [0; 32],
            at: 0,
            runs: [Run { next: u32::MAX, window: 1 }; RUNS],
            oldest: 0,
        }
    }

    /// Returns the pages to fetch for a fault on `page`, which comes first. `out` holds at least a
    /// batch. All are remote.
    pub fn plan(&mut self, heart: &Heart, page: u32, out: &mut [u32]) -> usize {
        out[0] = page;
        let step = page.wrapping_sub(self.last) as i32;
        self.last = page;
        self.steps[self.at % 32] = step;
        self.at += 1;
        if !self.accuracy.on() {
            return 1;
        }
        match self.kind {
            Kind::None => 1,
            Kind::Sequential => self.sequential(heart, page, out),
            Kind::Stride => self.stride(heart, page, out),
            Kind::Extent => self.extent(heart, page, out),
        }
    }

    fn extent(&mut self, heart: &Heart, page: u32, out: &mut [u32]) -> usize {
        match heart.extent(page) {
            Some((first, pages)) if pages <= EXTENT_PAGES_MAX => along(
                heart,
                out,
                (first as i64..(first + pages) as i64).filter(|p| *p != page as i64),
            ),
            Some((first, pages)) => self.follow(heart, page, first + pages, out),
            None => self.follow(heart, page, u32::MAX, out),
        }
    }

    /// Returns the pages that follow a page, up to `end`. An unexpected fault fetches none, and
    /// each fault that continues a run twice as many. So random accesses cost nothing.
    fn follow(&mut self, heart: &Heart, page: u32, end: u32, out: &mut [u32]) -> usize {
        let continues = |run: &Run| page == run.next || page == run.next.wrapping_add(1);
        let at = self.runs.iter().position(continues).unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % RUNS;
            self.runs[self.oldest].window = 0;
            self.oldest
        });
        let run = &mut self.runs[at];
        run.window = (run.window * 2).clamp(1, WINDOW_MAX);
        run.next = page.saturating_add(run.window).min(end);
        let next = run.next;
        along(heart, out, (page as i64 + 1)..next as i64)
    }

    /// Returns the pages that may be rescued together with a page of the second-chance list: its
    /// object, or a part of a large one. Result: first page and end.
    pub fn beside(&self, heart: &Heart, page: u32) -> (u32, u32) {
        match heart.extent(page) {
            Some((first, pages)) if self.kind == Kind::Extent && !self.accuracy.is_paused() => (
                first.max(page.saturating_sub(EXTENT_PAGES_MAX)),
                (first + pages).min(page + EXTENT_PAGES_MAX),
            ),
            _ => (page, page + 1),
        }
    }

    fn grow(&mut self, right: bool) {
        self.window =
            if right { (self.window * 2).min(WINDOW_MAX) } else { (self.window / 2).max(2) };
    }

    fn sequential(&mut self, heart: &Heart, page: u32, out: &mut [u32]) -> usize {
        self.grow(page == self.next || page == self.next.wrapping_add(1));
        let n = along(heart, out, (1..self.window as i64).map(|k| page as i64 + k));
        self.next = page + self.window;
        n
    }

    fn stride(&mut self, heart: &Heart, page: u32, out: &mut [u32]) -> usize {
        let Some(step) = self.majority() else {
            self.window = 1;
            return 1;
        };
        self.grow(true);
        along(heart, out, (1..self.window as i64).map(|k| page as i64 + k * step as i64))
    }

    /// Returns the step that makes up more than half of the last 4, 8, 16 or 32 steps (Boyer and
    /// Moore), for the shortest window that has one.
    fn majority(&self) -> Option<i32> {
        for w in [4usize, 8, 16, 32] {
            if self.at < w {
                return None;
            }
            let recent = || (1..=w).map(|k| self.steps[(self.at - k) % 32]);
            let (mut best, mut votes) = (0, 0);
            for s in recent() {
                if votes == 0 {
                    best = s;
                }
                votes += if s == best { 1 } else { -1 };
            }
            if best != 0 && recent().filter(|s| *s == best).count() * 2 > w {
                return Some(best);
            }
        }
        None
    }
}

/// Adds the remote pages of `candidates` after `out[0]`; returns the length.
fn along(heart: &Heart, out: &mut [u32], candidates: impl Iterator<Item = i64>) -> usize {
    let mut n = 1;
    for c in candidates {
        if n == out.len().min(BATCH_PAGES_MAX) {
            break;
        }
        if c >= 0 && c < heart.pages.len() as i64 && heart.is_remote(c as u32) {
            out[n] = c as u32;
            n += 1;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Page, State};
    use crate::slots::Slots;

    /// Faults on these pages, all of which are away. Returns how many pages each fault fetches.
    fn fetched(faults: &[u32]) -> Vec<usize> {
        let mut pages = vec![Page { state: State::Remote, ..Page::default() }; 4096];
        let (mut a, mut b, mut c) = (vec![0; 1], vec![0; 1], vec![0; 1]);
        let (mut sums, mut fifo, mut ring) = (vec![0; 64], vec![0; 4096], vec![0; 64]);
        let heart = Heart::new(
            &mut pages,
            Slots::new(&mut a, &mut b, &mut c, 64),
            &mut sums,
            &mut fifo,
            &mut ring,
            64,
        );
        let mut prefetcher = Prefetcher::new(Kind::Extent);
        let mut out = [0; BATCH_PAGES_MAX];
        faults.iter().map(|&page| prefetcher.plan(&heart, page, &mut out)).collect()
    }

    #[test]
    fn without_extents_runs_grow_and_random_faults_fetch_nothing_along() {
        assert_eq!(fetched(&[10, 11, 13, 17, 25, 41, 73, 105]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(
            fetched(&[10, 2000, 11, 2001, 13, 2003]),
            [1, 1, 2, 2, 4, 4],
            "two side by side"
        );
        assert_eq!(fetched(&[7, 900, 35, 2801, 77, 1203, 4000, 5, 350]), [1; 9]);
        assert_eq!(
            fetched(&[10, 11, 13, 3000, 10]),
            [1, 2, 4, 1, 1],
            "and a run that ended is not gone on with"
        );
    }
}
