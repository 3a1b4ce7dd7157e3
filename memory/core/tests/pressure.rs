//! The heart when far memory is full, moves fail, fetches are under way and pages are pinned. A
//! plain model owns every piece of memory, so that no byte and no page of memory is lost.

use memory_core::heart::{Clean, Heart, Need};
use memory_core::page::{NONE, Page, State, flag};
use memory_core::slots::Slots;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};

const PAGES: usize = 80;
const SLOTS: usize = 50;
const RING: usize = 20;
const LIMIT: usize = 28;
/// The private frames of a fetch, of which the ring has none.
const FRESH: u32 = 5_000;

/// How far the evictor is with a batch.
#[derive(Default)]
enum Batch {
    #[default]
    None,
    /// The contents of these pages' frames were read.
    Read(Vec<(u32, u32, u64)>),
    /// The hosts hold the contents of these pages.
    Stored(Vec<(u32, u32, u64)>),
}

/// The memory around a heart. Contents are version numbers; 0 is a page of zeros.
struct World<'a> {
    heart: Heart<'a>,
    mapped: BTreeMap<u32, u64>,
    frames: BTreeMap<u32, u64>,
    hosts: BTreeMap<u32, u64>,
    truth: BTreeMap<u32, u64>,
    /// Pages that are being fetched, and their frames.
    fetching: Vec<(u32, u32)>,
    batch: Batch,
    pinned: Vec<u32>,
    clock: u64,
    /// Slots that are frozen for children, and their contents.
    snapshots: Vec<Vec<(u32, u64)>>,
}

impl World<'_> {
    fn touch(&mut self, page: u32) {
        loop {
            match self.heart.fault(page) {
                Need::Nothing => return,
                Need::Wait => self.end_fetch(0),
                Need::Rescue(_) => self.rescue(page, 0),
                Need::Fetch => {
                    self.end_fetch(0);
                    if self.begin_fetch(page, 1) == 0 {
                        self.make_room();
                    }
                }
                Need::Zeros => {
                    let expected = self.heart.has_frame();
                    let frame = self.heart.take_frame(FRESH);
                    assert_eq!(frame.is_some(), expected, "has_frame is a promise");
                    let Some(frame) = frame else {
                        self.make_room();
                        continue;
                    };
                    self.frames.remove(&frame);
                    self.mapped.insert(page, 0);
                    self.heart.zeroed(page, frame);
                }
            }
        }
    }

    /// Maps a page of the list again, with up to `reach` pages on each side.
    fn rescue(&mut self, page: u32, reach: u32) {
        let end = (page + 1 + reach).min(PAGES as u32);
        let (first, n) = self.heart.limbo_run(page, page.saturating_sub(reach), end);
        assert!((first..first + n).contains(&page));
        for at in first..first + n {
            let frame = self.heart.pages[at as usize].frame;
            let content = self.frames[&frame];
            if !self.heart.is_written_from(frame) {
                self.frames.remove(&frame);
            }
            assert!(self.mapped.insert(at, content).is_none(), "page {at} was mapped already");
            self.heart.rescued(at);
        }
    }

    /// Begins to fetch `page`, and the remote pages among those that follow.
    fn begin_fetch(&mut self, page: u32, pages: u32) -> usize {
        assert!(self.fetching.is_empty(), "one fetch at a time");
        let mut want: Vec<u32> = (page..(page + pages).min(PAGES as u32)).collect();
        let mut frames = vec![0; want.len()];
        let n = self.heart.begin_fetch(&mut want, FRESH, &mut frames);
        for (&page, &frame) in want[..n].iter().zip(&frames) {
            self.frames.remove(&frame);
            self.fetching.push((page, frame));
        }
        n
    }

    /// Ends a fetch. Leaves the pages of the mask `probes` in the list, but the first.
    fn end_fetch(&mut self, probes: u32) {
        for (i, (page, frame)) in std::mem::take(&mut self.fetching).into_iter().enumerate() {
            let content = self.hosts[&self.heart.pages[page as usize].slot];
            assert_eq!(content, self.heart.sum(page), "the fingerprint is that of the slot");
            let probe = i > 0 && probes >> i & 1 == 1;
            if let Some(tail) = self.heart.can_probe().filter(|_| probe) {
                assert!(self.frames.insert(tail, content).is_none(), "the frame is in use");
                self.heart.probed(page, frame, probes & 1 == 1);
            } else {
                assert!(self.mapped.insert(page, content).is_none());
                self.heart.fetched(page, frame);
            }
        }
    }

    /// Moves victims to the list. The moves of the mask `fails` fail.
    fn unmap(&mut self, fails: u32) -> usize {
        let mut victims = [0; 8];
        let (n, first) = self.heart.victims(&mut victims);
        for (i, &page) in victims[..n].iter().enumerate() {
            let p = self.heart.pages[page as usize];
            assert!(p.pins == 0 && p.flags & flag::STICKY == 0, "page {page} was kept");
            if fails >> i & 1 == 1 {
                self.heart.stays(page);
                self.heart.skip_frame();
                continue;
            }
            let content = self.mapped.remove(&page).expect("a victim is mapped");
            assert!(self.frames.insert(first + i as u32, content).is_none(), "the frame is in use");
            self.heart.unmapped(page);
        }
        n
    }

    /// Takes a batch one step further.
    fn step_batch(&mut self, lag: usize) -> usize {
        match std::mem::take(&mut self.batch) {
            Batch::None => {
                let mut pages = [0; 12];
                let n = self.heart.begin_clean(lag, &mut pages);
                let read = pages[..n].iter().map(|&page| {
                    let frame = self.heart.pages[page as usize].frame;
                    (page, frame, self.frames[&frame])
                });
                self.batch = Batch::Read(read.collect());
                0
            }
            Batch::Read(read) => {
                let kept = read.into_iter().filter(|&read| self.store(read)).collect();
                self.batch = Batch::Stored(kept);
                0
            }
            Batch::Stored(stored) => {
                let pages: Vec<u32> = stored.iter().map(|s| s.0).collect();
                let sums: Vec<u64> = stored.iter().map(|s| s.2).collect();
                let before = self.heart.room();
                self.heart.end_clean(&pages, &sums);
                self.heart.room().saturating_sub(before)
            }
        }
    }

    /// Stores a page of a batch. Returns false if the program dropped it, or if no slot is free.
    fn store(&mut self, (page, frame, content): (u32, u32, u64)) -> bool {
        assert_eq!(self.frames[&frame], content, "a frame changed while it was read");
        if !self.heart.is_cleaning(page) {
            return false;
        }
        match self.heart.clean(page, content) {
            Clean::Already => true,
            Clean::Write(slot) => {
                self.hosts.insert(slot, content);
                true
            }
            Clean::Full => {
                if self.heart.fault(page) == Need::Rescue(frame) {
                    self.frames.remove(&frame);
                    assert!(self.mapped.insert(page, content).is_none());
                }
                self.heart.restored(page);
                // Like the pager: a page that far memory has no room for is beyond the limit.
                let limit = self.heart.limit().max(self.heart.held()) + 1;
                self.heart.set_limit(limit);
                false
            }
        }
    }

    fn end_batch(&mut self) -> usize {
        let mut made = 0;
        while !matches!(self.batch, Batch::None) {
            made += self.step_batch(0);
        }
        made
    }

    /// Gives memory back to the kernel that is over the limit.
    fn shed(&mut self) -> usize {
        let mut frames = [0; RING];
        let over = self.heart.held().saturating_sub(self.heart.limit()).min(RING);
        let n = self.heart.shed(&mut frames[..over]);
        frames[..n].iter().for_each(|frame| assert!(self.frames.remove(frame).is_some()));
        n
    }

    /// Evicts, and overdraws the limit if that makes no room.
    fn make_room(&mut self) {
        self.end_fetch(0);
        let begun = self.unmap(0) + self.end_batch();
        let made = self.step_batch(0) + self.end_batch();
        if begun + made + self.shed() == 0 && !self.heart.has_frame() {
            let limit = self.heart.limit().max(self.heart.held()) + 4;
            self.heart.set_limit(limit);
        }
    }

    fn drop_page(&mut self, page: u32) {
        while !self.heart.drop_page(page) {
            assert_eq!(self.heart.fault(page), Need::Wait);
            self.end_fetch(0);
        }
        self.mapped.remove(&page);
        self.truth.remove(&page);
    }

    fn step(&mut self, op: u8, page: u32, bits: u32) {
        match op {
            0..=3 => {
                self.touch(page);
                self.clock += 1;
                self.mapped.insert(page, self.clock);
                self.truth.insert(page, self.clock);
            }
            4..=6 => self.read(page),
            7 | 8 => _ = self.unmap(bits & bits >> 8),
            9 | 10 => _ = self.step_batch((bits % 5) as usize),
            11 => self.drop_page(page),
            12 if self.fetching.is_empty() => _ = self.begin_fetch(page, 1 + bits % 9),
            12 | 13 => self.end_fetch(bits),
            14 if self.pinned.len() < 6 => {
                self.touch(page);
                self.heart.pages[page as usize].pins += 1;
                self.pinned.push(page);
            }
            14 | 15 => {
                if let Some(page) = self.pinned.pop() {
                    self.heart.pages[page as usize].pins -= 1;
                }
            }
            16 if page.is_multiple_of(16) => {
                self.touch(page);
                self.heart.pages[page as usize].flags |= flag::STICKY;
            }
            17 => {
                self.heart.set_limit(LIMIT);
                self.shed();
            }
            18 => self.fork(),
            _ => {
                if self.snapshots.pop().is_some() {
                    self.heart.slots.thaw();
                }
            }
        }
    }

    /// Freezes the slots for a child. Like the pager, only with no transfer under way.
    fn fork(&mut self) {
        self.end_fetch(0);
        self.end_batch();
        if self.snapshots.len() < 2 {
            self.heart.slots.freeze();
            let taken = self.hosts.iter().filter(|(s, _)| self.heart.slots.is_taken(**s));
            self.snapshots.push(taken.map(|(s, c)| (*s, *c)).collect());
        }
    }

    fn read(&mut self, page: u32) {
        self.touch(page);
        let expected = self.truth.get(&page).copied().unwrap_or(0);
        assert_eq!(self.mapped[&page], expected, "page {page}");
    }

    fn check(&self) {
        let heart = &self.heart;
        let memory = self.mapped.len() + self.frames.len() + self.fetching.len();
        assert_eq!(heart.held(), memory, "every page of memory is counted once");
        assert_eq!(heart.busy(), self.fetching.len());
        assert!(heart.limbo() <= heart.frames());
        let used = heart.pages.iter().filter(|p| p.state != State::Zero);
        assert_eq!(heart.in_use(), used.clone().count());
        let owned: Vec<u32> = used.map(|p| p.slot).filter(|&slot| slot != NONE).collect();
        let slots: BTreeSet<u32> = owned.iter().copied().collect();
        assert_eq!(slots.len(), owned.len(), "no slot has two owners");
        assert!(slots.iter().all(|&slot| heart.slots.is_taken(slot)));
        if self.snapshots.is_empty() {
            assert_eq!(heart.slots.used(), owned.len(), "no slot is lost");
        }
        for (slot, content) in self.snapshots.iter().flatten() {
            assert_eq!(self.hosts[slot], *content, "a child's slot {slot} was overwritten");
        }
    }
}

/// Runs steps in a new world of `slots` slots, and reads every page at the end.
fn run(slots: usize, steps: &[(u8, u32, u32)]) {
    let mut pages = vec![Page::default(); PAGES];
    let (mut a, mut b, mut c) = ([0; 1], [0; 1], [0; 1]);
    let (mut sums, mut fifo, mut ring) = ([0; SLOTS], [0; PAGES], [0; RING]);
    let slots = Slots::new(&mut a, &mut b, &mut c, slots);
    let mut world = World {
        heart: Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, LIMIT),
        mapped: BTreeMap::new(),
        frames: BTreeMap::new(),
        hosts: BTreeMap::new(),
        truth: BTreeMap::new(),
        fetching: vec![],
        batch: Batch::None,
        pinned: vec![],
        clock: 0,
        snapshots: vec![],
    };
    for &(op, page, bits) in steps {
        world.step(op, page, bits);
        world.check();
    }
    for page in 0..PAGES as u32 {
        world.read(page);
    }
    world.check();
}

/// Returns a configuration of `n` cases, which are the same in every run.
fn cases(n: u32) -> ProptestConfig {
    ProptestConfig {
        cases: n,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn nothing_is_lost_when_far_memory_is_full_and_moves_fail(
        slots in 1..SLOTS + 1,
        steps in proptest::collection::vec((0u8..20, 0u32..PAGES as u32, any::<u32>()), 1..800),
    ) {
        run(slots, &steps);
    }
}

#[test]
fn a_page_that_no_slot_takes_stays_mapped_with_its_content() {
    // Every page is written. Far memory has one slot, so all but one page must stay.
    let all = (0..PAGES as u32).map(|page| (0u8, page, 0));
    let turns = (0..200).flat_map(|_| [(7u8, 0, 0), (9, 0, 0)]);
    run(1, &all.chain(turns).collect::<Vec<_>>());
}
