//! A forked child: it evicts only pages that it brought in itself, and takes no slot of its parent.

use memory_core::heart::{Clean, Heart, Need};
use memory_core::page::{Page, State, flag};
use memory_core::slots::Slots;

const PAGES: usize = 64;
const SLOTS: usize = 64;
const RING: usize = 16;
const LIMIT: usize = 16;
const FRESH: u32 = 900;

/// The borrowed memory of a heart.
struct Tables {
    pages: Vec<Page>,
    maps: [[u64; 1]; 3],
    sums: [u64; SLOTS],
    fifo: [u32; PAGES],
    ring: [u32; RING],
}

impl Tables {
    fn new() -> Tables {
        Tables {
            pages: vec![Page::default(); PAGES],
            maps: [[0; 1]; 3],
            sums: [0; SLOTS],
            fifo: [0; PAGES],
            ring: [0; RING],
        }
    }

    fn heart(&mut self) -> Heart<'_> {
        let [a, b, c] = &mut self.maps;
        let slots = Slots::new(a, b, c, SLOTS);
        Heart::new(&mut self.pages, slots, &mut self.sums, &mut self.fifo, &mut self.ring, LIMIT)
    }
}

fn zero(heart: &mut Heart, page: u32) {
    let frame = heart.take_frame(FRESH).expect("room");
    heart.zeroed(page, frame);
}

/// Unmaps all that may leave; returns the pages.
fn evict(heart: &mut Heart) -> Vec<u32> {
    let mut victims = [0; RING];
    let (n, _) = heart.victims(&mut victims);
    victims[..n].iter().for_each(|&page| heart.unmapped(page));
    victims[..n].to_vec()
}

/// Stores the whole list under these fingerprints, and gives its memory back.
fn flush(heart: &mut Heart, sum: impl Fn(u32) -> u64) {
    let mut pages = [0; RING];
    let n = heart.begin_clean(0, &mut pages);
    let sums: Vec<u64> = pages[..n].iter().map(|&page| sum(page)).collect();
    for (&page, &sum) in pages[..n].iter().zip(&sums) {
        assert!(matches!(heart.clean(page, sum), Clean::Write(_) | Clean::Already));
    }
    heart.end_clean(&pages[..n], &sums);
    heart.shed(&mut [0; RING]);
    assert_eq!(heart.limbo(), 0);
}

/// A parent with pages 0 to 4 on the hosts and pages 5 to 9 resident, at a fork.
fn fork(tables: &mut Tables) -> Heart<'_> {
    let mut heart = tables.heart();
    for page in 0..10 {
        // Small pages have a second chance; these have none.
        heart.note_extent(page, 1);
        zero(&mut heart, page);
    }
    let mut victims = [0; 5];
    let (n, _) = heart.victims(&mut victims);
    assert_eq!((n, victims), (5, [0, 1, 2, 3, 4]));
    victims.iter().for_each(|&page| heart.unmapped(page));
    flush(&mut heart, |page| 100 + page as u64);
    heart.slots.freeze();
    heart
}

#[test]
fn a_child_counts_and_evicts_only_its_own_pages() {
    let mut tables = Tables::new();
    let mut heart = fork(&mut tables);
    heart.become_child(4);
    assert_eq!((heart.held(), heart.limit(), heart.small()), (0, 4, 0));
    assert_eq!(evict(&mut heart), [], "the parent's resident pages stay");
    // Four fetched pages fill the allowance; the fifth needs room.
    let (mut want, mut frames) = ([0, 1, 2, 3, 4], [0; 5]);
    assert_eq!(heart.begin_fetch(&mut want, FRESH, &mut frames), 4);
    want.iter().zip(frames).take(4).for_each(|(&page, frame)| heart.fetched(page, frame));
    assert_eq!((heart.held(), heart.has_frame()), (4, false));
    assert_eq!(evict(&mut heart), [0, 1, 2, 3]);
    // Their slots hold the same content, so a child may drop them without a write.
    let mut pages = [0; RING];
    let n = heart.begin_clean(0, &mut pages);
    let sums: Vec<u64> = pages[..n].iter().map(|&page| 100 + page as u64).collect();
    assert!(pages[..n].iter().zip(&sums).all(|(&page, &sum)| heart.holds(page, sum)));
    heart.end_clean(&pages[..n], &sums);
    assert_eq!((heart.room(), heart.begin_fetch(&mut [4], FRESH, &mut frames)), (4, 1));
}

#[test]
fn a_page_of_the_parent_that_the_child_drops_is_the_childs_from_then_on() {
    let mut tables = Tables::new();
    let mut heart = fork(&mut tables);
    heart.become_child(4);
    assert!(heart.pages[7].flags & flag::INHERITED != 0);
    assert!(heart.drop_page(7));
    assert_eq!((heart.held(), heart.fault(7)), (0, Need::Zeros), "it was not counted here");
    heart.note_extent(7, 1);
    zero(&mut heart, 7);
    assert_eq!((heart.held(), evict(&mut heart)), (1, vec![7]));
    assert_eq!(heart.pages[8].state, State::Resident);
}

#[test]
fn a_parent_overwrites_no_slot_before_its_last_child_is_gone() {
    let mut tables = Tables::new();
    let mut heart = fork(&mut tables);
    heart.slots.freeze();
    let old = heart.pages[0].slot;
    let write = |heart: &mut Heart, sum| {
        let mut frames = [0; 1];
        assert_eq!(heart.begin_fetch(&mut [0], FRESH, &mut frames), 1);
        heart.fetched(0, frames[0]);
        while !evict(heart).contains(&0) {}
        flush(heart, |page| if page == 0 { sum } else { 100 + page as u64 });
        heart.pages[0].slot
    };
    let moved = write(&mut heart, 200);
    assert_ne!(moved, old, "the first child reads the old slot");
    // One of two children is gone. The new slot is part of no snapshot, so it is written in place.
    assert!(!heart.slots.thaw() && heart.slots.is_frozen(old));
    assert_eq!(write(&mut heart, 300), moved);
    assert!(heart.slots.is_taken(old), "the other child still reads it");
    assert!(heart.slots.thaw() && !heart.slots.is_taken(old), "and then it is free");
}
