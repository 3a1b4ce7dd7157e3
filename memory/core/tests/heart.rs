//! The heart against a plain model. Every page reads as its last written content, every snapshot of
//! a fork stays unchanged, and the memory held is as counted.

use memory_core::heart::{Clean, Heart, Need};
use memory_core::page::Page;
use memory_core::prefetch::{Kind, Prefetcher};
use memory_core::slots::Slots;
use proptest::prelude::*;
use std::collections::HashMap;

const PAGES: usize = 96;
const SLOTS: usize = 320;
const RING: usize = 24;
const LIMIT: usize = 40;
const FRESH: u32 = 10_000;

/// The surroundings in place of a pager. Contents are version numbers; 0 is a page of zeros.
struct World<'a> {
    heart: Heart<'a>,
    mapped: HashMap<u32, u64>,
    frames: HashMap<u32, u64>,
    hosts: HashMap<u32, u64>,
    truth: HashMap<u32, u64>,
    /// What each living child must still find: page, its slot then, its content then.
    snapshots: Vec<Vec<(u32, u64)>>,
    clock: u64,
    /// The batch that is being written to the hosts: pages, their frames and contents.
    batch: Vec<(u32, u32, u64)>,
}

impl World<'_> {
    /// Makes a page resident as the pager does; evicts when there is no room.
    fn touch(&mut self, page: u32) {
        loop {
            match self.heart.fault(page) {
                Need::Nothing => return,
                Need::Wait => panic!("nothing is being fetched"),
                Need::Zeros => {
                    if let Some(frame) = self.heart.take_frame(FRESH) {
                        self.frames.remove(&frame);
                        self.mapped.insert(page, 0);
                        self.heart.zeroed(page, frame);
                        continue;
                    }
                }
                Need::Rescue(_) => {
                    // Half of the pages rescue their neighbours.
                    let reach = if page.is_multiple_of(2) { 0 } else { 6 };
                    let (first, n) = self.heart.limbo_run(
                        page,
                        page.saturating_sub(reach),
                        (page + 1 + reach).min(PAGES as u32),
                    );
                    let from = self.heart.pages[first as usize].frame;
                    for (at, frame) in (first..first + n).zip(from..) {
                        let content = self.frames[&frame];
                        if !self.heart.is_written_from(frame) {
                            self.frames.remove(&frame);
                        }
                        assert!(
                            self.mapped.insert(at, content).is_none(),
                            "page {at} was mapped already"
                        );
                        self.heart.rescued(at);
                    }
                    continue;
                }
                Need::Fetch => {
                    let (mut want, mut frames) = ([page], [0; 1]);
                    if self.heart.begin_fetch(&mut want, FRESH, &mut frames) == 1 {
                        let slot = self.heart.pages[page as usize].slot;
                        let content = self.hosts[&slot];
                        assert_eq!(
                            content,
                            self.heart.sum(page),
                            "the fingerprint is that of the slot"
                        );
                        self.frames.remove(&frames[0]);
                        self.mapped.insert(page, content);
                        self.heart.fetched(page, frames[0]);
                        continue;
                    }
                }
            }
            let progress = self.unmap() + self.clean(0) + self.shed();
            assert!(progress > 0, "no room and nothing to evict");
        }
    }

    fn unmap(&mut self) -> usize {
        let mut victims = [0; 8];
        let (n, first) = self.heart.victims(&mut victims);
        for (i, &page) in victims[..n].iter().enumerate() {
            let content = self.mapped.remove(&page).expect("a victim is mapped");
            assert!(self.frames.insert(first + i as u32, content).is_none(), "the frame is in use");
            self.heart.unmapped(page);
        }
        n
    }

    fn clean(&mut self, lag: usize) -> usize {
        self.end_clean();
        self.begin_clean(lag);
        self.end_clean()
    }

    /// Begins to store a batch. Until it ends, its frames must keep their content.
    fn begin_clean(&mut self, lag: usize) {
        let mut pages = [0; 16];
        let n = self.heart.begin_clean(lag, &mut pages);
        for &page in &pages[..n] {
            let frame = self.heart.pages[page as usize].frame;
            let content = self.frames[&frame];
            match self.heart.clean(page, content) {
                Clean::Already => {}
                Clean::Write(slot) => {
                    self.hosts.insert(slot, content);
                }
                Clean::Full => panic!("there are slots enough"),
            }
            self.batch.push((page, frame, content));
        }
    }

    fn end_clean(&mut self) -> usize {
        let batch = std::mem::take(&mut self.batch);
        assert!(
            batch.iter().all(|(_, frame, content)| self.frames[frame] == *content),
            "a frame changed while it was written"
        );
        let (pages, sums): (Vec<u32>, Vec<u64>) =
            batch.iter().map(|(page, _, content)| (*page, *content)).unzip();
        self.heart.end_clean(&pages, &sums);
        batch.len()
    }

    fn shed(&mut self) -> usize {
        let mut out = [0; 4];
        let n = self.heart.shed(&mut out);
        for frame in &out[..n] {
            self.frames.remove(frame);
        }
        n
    }

    fn step(&mut self, op: u8, page: u32) {
        match op {
            0..=2 => {
                self.touch(page);
                self.clock += 1;
                self.mapped.insert(page, self.clock);
                self.truth.insert(page, self.clock);
            }
            3..=5 => {
                self.touch(page);
                assert_eq!(
                    self.mapped[&page],
                    self.truth.get(&page).copied().unwrap_or(0),
                    "page {page}"
                );
            }
            6 => {
                self.unmap();
                self.clean(3);
            }
            7 => _ = self.shed(),
            8 => {
                assert!(self.heart.drop_page(page));
                self.mapped.remove(&page);
                self.truth.remove(&page);
            }
            9 => {
                if self.end_clean() == 0 {
                    self.begin_clean(1);
                }
            }
            10 if self.snapshots.len() < 2 => {
                self.end_clean();
                self.heart.slots.freeze();
                let taken = self.hosts.iter().filter(|(s, _)| self.heart.slots.is_taken(**s));
                self.snapshots.push(taken.map(|(s, c)| (*s, *c)).collect());
            }
            11 => self.heart.note_small(page),
            12 => self.heart.note_extent(page, 2.min(PAGES as u32 - page)),
            _ => {
                // The last child's end frees all; an earlier end keeps everybody's slots.
                if self.snapshots.pop().is_some() {
                    self.heart.slots.thaw();
                }
            }
        }
    }

    fn check(&self) {
        for snapshot in &self.snapshots {
            for (slot, content) in snapshot {
                assert_eq!(self.hosts[slot], *content, "a child's slot {slot} was overwritten");
            }
        }
        assert!(self.truth.len() <= self.heart.in_use());
        assert_eq!(
            self.heart.small(),
            self.heart.pages.iter().filter(|p| p.is_small_here()).count()
        );
        // A page that is rescued while it is written has its memory twice for so long.
        assert!(self.heart.held() <= LIMIT + 16, "{} pages held", self.heart.held());
        assert!(self.mapped.len() <= self.heart.held());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_write_is_ever_lost(
        ops in proptest::collection::vec((0u8..15, 0u32..PAGES as u32), 1..1500),
    ) {
        let mut pages = vec![Page::default(); PAGES];
        let (mut a, mut b, mut c) = ([0u64; SLOTS / 64], [0u64; SLOTS / 64], [0u64; SLOTS / 64]);
        let (mut sums, mut fifo, mut ring) = ([0u64; SLOTS], [0u32; PAGES], [0u32; RING]);
        let slots = Slots::new(&mut a, &mut b, &mut c, SLOTS);
        let heart = Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, LIMIT);
        let mut w = World {
            heart,
            mapped: HashMap::new(),
            frames: HashMap::new(),
            hosts: HashMap::new(),
            truth: HashMap::new(),
            snapshots: vec![],
            clock: 0,
            batch: vec![],
        };
        for (op, page) in ops {
            w.step(op, page);
            w.check();
        }
        for page in 0..PAGES as u32 {
            w.step(3, page);
        }
    }
}

#[test]
fn an_object_that_waits_in_the_list_comes_back_whole_but_for_what_is_being_written() {
    let mut pages = vec![Page::default(); PAGES];
    let (mut a, mut b, mut c) = ([0u64; SLOTS / 64], [0u64; SLOTS / 64], [0u64; SLOTS / 64]);
    let (mut sums, mut fifo, mut ring) = ([0u64; SLOTS], [0u32; PAGES], [0u32; RING]);
    let slots = Slots::new(&mut a, &mut b, &mut c, SLOTS);
    let mut heart = Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, LIMIT);
    heart.note_extent(10, 8);
    for page in 8..20 {
        let frame = heart.take_frame(FRESH).unwrap();
        heart.zeroed(page, frame);
    }
    let mut victims = [0; 8];
    let (n, _) = heart.victims(&mut victims);
    assert_eq!(
        victims[..n],
        [10, 11, 12, 13, 14, 15, 16, 17],
        "an object's pages leave first, in order"
    );
    for page in victims {
        heart.unmapped(page);
    }
    let extents = Prefetcher::new(Kind::Extent);
    let (first, end) = extents.beside(&heart, 13);
    assert_eq!((first, end), (10, 18));
    assert_eq!(heart.limbo_run(13, first, end), (10, 8));
    assert_eq!(Prefetcher::new(Kind::None).beside(&heart, 13), (13, 14));
    // The three oldest are being written: they are read from meanwhile.
    assert_eq!(heart.begin_clean(5, &mut [0; 8]), 3);
    assert_eq!(heart.limbo_run(13, first, end), (13, 5));
    assert_eq!(heart.limbo_run(11, first, end), (11, 1));
    // One that is back already ends the run.
    heart.rescued(15);
    assert_eq!(heart.limbo_run(13, first, end), (13, 2));
}

#[test]
fn pages_of_small_objects_stay_as_long_as_they_are_few() {
    let mut pages = vec![Page::default(); PAGES];
    let (mut a, mut b, mut c) = ([0u64; SLOTS / 64], [0u64; SLOTS / 64], [0u64; SLOTS / 64]);
    let (mut sums, mut fifo, mut ring) = ([0u64; SLOTS], [0u32; PAGES], [0u32; RING]);
    let slots = Slots::new(&mut a, &mut b, &mut c, SLOTS);
    let mut heart = Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, LIMIT);
    for page in 0..16 {
        if page < 8 {
            heart.note_small(page);
        }
        let frame = heart.take_frame(FRESH).unwrap();
        heart.zeroed(page, frame);
    }
    let leave = |heart: &mut Heart| {
        let mut victims = [0; RING];
        let (n, _) = heart.victims(&mut victims);
        for &page in &victims[..n] {
            heart.unmapped(page);
        }
        victims[..n].to_vec()
    };
    // An eighth of the limit are 5 pages.
    assert_eq!(
        leave(&mut heart),
        [0, 1, 2, 8, 9, 10, 11, 12, 13, 14, 15],
        "the oldest of too many, and all others"
    );
    assert_eq!(heart.small(), LIMIT / 8);
    assert_eq!(leave(&mut heart), []);
    // The memory holds a large object now.
    heart.note_extent(4, 2);
    assert_eq!(leave(&mut heart), [5, 4]);
}
