//! The tables of the core against plain models: queues, slots, spans, blocks, extents and buckets.

use memory_core::blocks::Blocks;
use memory_core::fifo::Fifo;
use memory_core::heart::Heart;
use memory_core::page::{NONE, Page};
use memory_core::slots::Slots;
use memory_core::spans::{Run, Spans};
use memory_core::stats::{STALL_BUCKETS, bucket, bucket_end, longest, quantile};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU32;

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
    #![proptest_config(cases(300))]

    /// A queue returns the numbers in order, at any capacity and while it grows.
    #[test]
    fn a_queue_is_like_a_deque(
        room in 1usize..40, first in 1usize..50,
        ops in proptest::collection::vec(0u8..8, 1..300),
    ) {
        let mut memory = vec![0; room];
        let mut queue = Fifo::new(&mut memory, first);
        let mut plain = VecDeque::new();
        for (op, number) in ops.into_iter().zip(0u32..) {
            match op {
                0..=3 => {
                    let full = plain.len() == queue.capacity();
                    prop_assert_eq!(queue.is_full(), full);
                    prop_assert_eq!(queue.push(number), !full);
                    if !full {
                        plain.push_back(number);
                    }
                }
                4 | 5 => prop_assert_eq!(queue.pop(), plain.pop_front()),
                6 => {
                    let before = queue.capacity();
                    queue.grow();
                    prop_assert_eq!(queue.capacity(), (2 * before).min(room));
                }
                _ if number.is_multiple_of(7) => {
                    queue.clear();
                    plain.clear();
                }
                _ => {}
            }
            prop_assert_eq!((queue.len(), queue.is_empty()), (plain.len(), plain.is_empty()));
        }
        prop_assert!(std::iter::from_fn(|| queue.pop()).eq(plain));
    }

    /// Every slot is given once before far memory is full, for any count and any hint.
    #[test]
    fn far_memory_is_full_only_when_every_slot_is_taken(
        count in 1usize..260,
        wants in proptest::collection::vec((any::<u32>(), 0u32..300, any::<bool>()), 1..20),
    ) {
        let words = count.div_ceil(64);
        let (mut a, mut b, mut c) = (vec![0; words], vec![0; words], vec![0; words]);
        let mut slots = Slots::new(&mut a, &mut b, &mut c, count);
        let mut taken = BTreeSet::new();
        for k in 0.. {
            let (page, hint, hinted) = wants[k % wants.len()];
            let hint = if hinted { hint.wrapping_add(k as u32) } else { NONE };
            let Some(slot) = slots.take(page.wrapping_add(k as u32), hint) else { break };
            prop_assert!((slot as usize) < count && taken.insert(slot));
            prop_assert!(hint as usize >= count || slot == hint || taken.contains(&hint));
        }
        prop_assert_eq!((taken.len(), slots.used()), (count, count));
    }

    /// A walk over the taken slots finds all of them, and only them.
    #[test]
    fn a_walk_finds_every_taken_slot(
        count in 1usize..400,
        hints in proptest::collection::btree_set(0u32..400, 0..60),
    ) {
        let words = count.div_ceil(64);
        let (mut a, mut b, mut c) = (vec![0; words], vec![0; words], vec![0; words]);
        let mut slots = Slots::new(&mut a, &mut b, &mut c, count);
        let wanted: Vec<u32> = hints.into_iter().filter(|&h| (h as usize) < count).collect();
        for &hint in &wanted {
            prop_assert_eq!(slots.take(0, hint), Some(hint));
        }
        let (mut from, mut found) = (0, vec![]);
        while let Some(slot) = slots.next_taken(from) {
            found.push(slot);
            from = slot as usize + 1;
        }
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(slots.next_taken(count + 1000), None);
    }

    /// A table of spans that is full loses free pages, but gives no page twice.
    #[test]
    fn a_full_table_of_spans_gives_no_page_twice(
        room in 1usize..6,
        ops in proptest::collection::vec((any::<bool>(), any::<u16>(), 1u32..20), 1..200),
    ) {
        const PAGES: u32 = 256;
        let mut table = vec![Run::default(); room];
        let mut spans = Spans::new(&mut table, PAGES);
        let mut held: Vec<(u32, u32)> = vec![];
        let mut owned = [false; PAGES as usize];
        for (take, bits, pages) in ops {
            if take || held.is_empty() {
                let align = 1 << (bits % 4);
                let Some(first) = spans.take(pages, align) else { continue };
                prop_assert!(first % align == 0 && first + pages <= PAGES);
                for page in first..first + pages {
                    prop_assert!(!std::mem::replace(&mut owned[page as usize], true));
                }
                held.push((first, pages));
            } else {
                let (first, pages) = held.swap_remove(bits as usize % held.len());
                owned[first as usize..(first + pages) as usize].fill(false);
                spans.give(first, pages);
            }
        }
    }

    /// No grain has two blocks, and a block is as long as it was asked for.
    #[test]
    fn blocks_never_overlap(
        grains in 1usize..300,
        ops in proptest::collection::vec((any::<bool>(), 0usize..70), 1..200),
    ) {
        let notes: Vec<AtomicU32> = (0..grains).map(|_| AtomicU32::new(0)).collect();
        let blocks = Blocks::new(&notes);
        let mut held: BTreeMap<usize, usize> = BTreeMap::new();
        for (take, n) in ops {
            if take {
                let Some(block) = blocks.take(n) else { continue };
                let end = block + blocks.grains(block);
                prop_assert!(block > 0 && end - block >= n && end <= grains);
                let before = held.range(..end).next_back();
                prop_assert!(before.is_none_or(|(at, n)| at + n <= block), "two blocks overlap");
                held.insert(block, end - block);
            } else if let Some(&block) = held.keys().nth(n % held.len().max(1)) {
                let grains = held.remove(&block).expect("held");
                blocks.give(block);
                let again = blocks.take(grains);
                prop_assert_eq!(again, Some(block), "the last freed block of a size comes first");
                blocks.give(block);
            }
        }
    }

    /// An extent that a page reports begins at or before it, ends after it, and was recorded.
    #[test]
    fn an_extent_holds_its_page(
        notes in proptest::collection::vec((0u32..200, 1u32..60, 0u8..4), 1..40),
    ) {
        let mut pages = vec![Page::default(); 260];
        let (mut a, mut b, mut c) = ([0; 1], [0; 1], [0; 1]);
        let (mut sums, mut fifo, mut ring) = ([0; 64], [0; 260], [0; 64]);
        let slots = Slots::new(&mut a, &mut b, &mut c, 64);
        let mut heart = Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, 64);
        let mut noted = BTreeSet::new();
        for (first, n, kind) in notes {
            match kind {
                0 => heart.note_shared(first),
                1 => heart.note_small(first),
                _ => {
                    heart.note_extent(first, n);
                    noted.insert((first, n));
                    prop_assert!((first..first + n).all(|p| heart.extent(p) == Some((first, n))));
                }
            }
            if kind < 2 {
                prop_assert_eq!(heart.extent(first), None);
            }
            for page in 0..260 {
                let Some((from, pages)) = heart.extent(page) else { continue };
                prop_assert!(from <= page && page < from + pages);
                prop_assert!(noted.contains(&(from, pages)), "{from}+{pages} was never recorded");
            }
        }
    }

    /// A stall is in a bucket that ends above it by at most a quarter.
    #[test]
    fn a_bucket_is_a_quarter_wide(ns in 0u64..1 << 39) {
        let end = bucket_end(bucket(ns));
        prop_assert!(ns < end.max(5) && end <= ns.max(4) + ns.max(4) / 4 + 1, "{ns} ns: {end}");
    }

    /// A quantile is the end of the bucket of the stall at its place, for any stalls.
    #[test]
    fn a_quantile_is_that_of_the_sorted_stalls(
        stalls in proptest::collection::vec(4u64..1 << 38, 1..200), share in 0.0f64..=1.0,
    ) {
        let (mut stalls, mut counts) = (stalls, [0; STALL_BUCKETS]);
        stalls.sort();
        stalls.iter().for_each(|&ns| counts[bucket(ns)] += 1);
        let place = ((stalls.len() as f64 * share) as usize).min(stalls.len() - 1);
        prop_assert_eq!(quantile(&counts, share), bucket_end(bucket(stalls[place])));
        prop_assert_eq!(quantile(&counts, 1.0), longest(&counts), "no stall is longer");
    }
}

#[test]
fn no_stall_has_no_quantile_and_the_longest_one_has_a_bucket() {
    assert_eq!(quantile(&[0; STALL_BUCKETS], 0.5), 0);
    assert_eq!(quantile(&[], 1.0), 0);
    assert_eq!(bucket(u64::MAX), STALL_BUCKETS - 1);
    let ends: Vec<u64> = (8..STALL_BUCKETS).map(bucket_end).collect();
    assert!(ends.is_sorted_by(|a, b| a < b), "each bucket ends after the one before");
}
