//! The prefetchers on arbitrary page tables. A plan may be useless, but it names only pages that
//! can be fetched, and each of them once.

use memory_core::BATCH_PAGES_MAX;
use memory_core::heart::Heart;
use memory_core::page::{Page, State};
use memory_core::prefetch::{Accuracy, Kind, PROBE_EVERY, Prefetcher};
use memory_core::slots::Slots;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;

const PAGES: u32 = 1500;
const KINDS: [Kind; 4] = [Kind::None, Kind::Sequential, Kind::Stride, Kind::Extent];

/// Calls `check` with a heart in which every page is away but those of `present`. The extents are
/// recorded first.
fn with_heart(present: &[u32], extents: &[(u32, u32)], check: impl FnOnce(&mut Heart)) {
    let mut pages = vec![Page { state: State::Remote, ..Page::default() }; PAGES as usize];
    for &page in present {
        pages[page as usize].state = State::Resident;
    }
    let (mut a, mut b, mut c) = ([0; 1], [0; 1], [0; 1]);
    let (mut sums, mut fifo, mut ring) = ([0; 64], vec![0; PAGES as usize], [0; 64]);
    let slots = Slots::new(&mut a, &mut b, &mut c, 64);
    let mut heart = Heart::new(&mut pages, slots, &mut sums, &mut fifo, &mut ring, 64);
    for &(first, n) in extents {
        heart.note_extent(first, n.min(PAGES - first));
    }
    check(&mut heart);
}

fn plan(prefetcher: &mut Prefetcher, heart: &Heart, page: u32) -> Vec<u32> {
    let mut out = [u32::MAX; BATCH_PAGES_MAX];
    let n = prefetcher.plan(heart, page, &mut out);
    out[..n].to_vec()
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
    #![proptest_config(cases(200))]

    #[test]
    fn a_plan_names_pages_that_are_away_and_each_of_them_once(
        kind in 0usize..4,
        present in proptest::collection::vec(0..PAGES, 0..200),
        extents in proptest::collection::vec((0..PAGES, 1u32..700), 0..10),
        faults in proptest::collection::vec((0..PAGES, 0i32..3), 1..100),
    ) {
        with_heart(&present, &extents, |heart| {
            let mut prefetcher = Prefetcher::new(KINDS[kind]);
            let mut at = 0;
            // Half of the faults continue from the last one, so that every kind finds its pattern.
            for (page, step) in faults {
                at = if step == 0 { page } else { (at + step as u32) % PAGES };
                let pages = plan(&mut prefetcher, heart, at);
                assert_eq!(pages[0], at, "the page of the fault comes first");
                let once: BTreeSet<&u32> = pages.iter().collect();
                assert_eq!(once.len(), pages.len());
                assert!(pages[1..].iter().all(|&p| heart.is_remote(p)));
                assert!(KINDS[kind] != Kind::None || pages.len() == 1);
                let (first, end) = prefetcher.beside(heart, at);
                assert!(first <= at && at < end, "{first}..{end} has no page {at}");
            }
        });
    }

    /// Every constant step is found, forwards and backwards, after a page out of order as well.
    #[test]
    fn a_stride_is_followed_whatever_its_step(step in 1i64..40, back in any::<bool>()) {
        with_heart(&[], &[], |heart| {
            let mut prefetcher = Prefetcher::new(Kind::Stride);
            let step = if back { -step } else { step };
            let begin = if back { PAGES as i64 - 1 } else { 0 };
            let mut last = vec![];
            for k in 0..20 {
                if k == 10 {
                    plan(&mut prefetcher, heart, PAGES / 2 + 7);
                }
                last = plan(&mut prefetcher, heart, (begin + k * step) as u32);
            }
            let page = begin + 19 * step;
            assert!(last.len() > 1, "nothing was fetched along");
            let next = (1..).map(|k| (page + k * step) as u32);
            assert!(last[1..].iter().copied().zip(next).all(|(a, b)| a == b), "{last:?}");
        });
    }
}

#[test]
fn the_window_of_a_sequence_grows_and_shrinks_and_stops_at_the_end() {
    with_heart(&[], &[], |heart| {
        let mut prefetcher = Prefetcher::new(Kind::Sequential);
        let mut lengths = vec![];
        let mut page = 100;
        for _ in 0..8 {
            let pages = plan(&mut prefetcher, heart, page);
            page = pages[pages.len() - 1] + 1;
            lengths.push(pages.len());
        }
        assert_eq!(lengths, [2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(plan(&mut prefetcher, heart, 700).len(), 16, "a jump halves the window");
        assert_eq!(plan(&mut prefetcher, heart, PAGES - 1), [PAGES - 1]);
    });
}

#[test]
fn an_object_comes_whole_and_a_large_one_in_runs_within_its_end() {
    with_heart(&[], &[(10, 128), (200, 129)], |heart| {
        let mut prefetcher = Prefetcher::new(Kind::Extent);
        let whole = plan(&mut prefetcher, heart, 50);
        assert_eq!(whole.iter().copied().collect::<BTreeSet<_>>(), (10..138).collect());
        assert_eq!(plan(&mut prefetcher, heart, 326), [326], "the first fault of a run");
        assert_eq!(plan(&mut prefetcher, heart, 327), [327, 328], "and not past the object's end");
        assert_eq!(prefetcher.beside(heart, 50), (10, 138));
        assert_eq!(prefetcher.beside(heart, 1400), (1400, 1401), "a page without an object");
    });
}

#[test]
fn a_prefetcher_that_is_mostly_wrong_pauses_and_tries_again() {
    with_heart(&[], &[(10, 8)], |heart| {
        let mut prefetcher = Prefetcher::new(Kind::Extent);
        (0..15).for_each(|_| prefetcher.accuracy.saw(true));
        (0..49).for_each(|_| prefetcher.accuracy.saw(false));
        assert!(prefetcher.accuracy.is_paused(), "15 of 64 probes were used");
        assert_eq!(prefetcher.beside(heart, 12), (12, 13));
        let mut faults = 1;
        while plan(&mut prefetcher, heart, 12) == [12] {
            faults += 1;
        }
        assert_eq!((faults, prefetcher.accuracy.is_paused()), (8192, false));
    });
}

#[test]
fn a_prefetcher_that_is_right_often_enough_never_pauses() {
    let mut accuracy = Accuracy::default();
    for turn in 0..10_000 {
        accuracy.saw(turn % 4 == 0);
        assert!(accuracy.on() || turn % 4 != 0, "paused at {turn} with a quarter of hits");
        assert!(!accuracy.is_paused());
    }
    let probes = (0..PROBE_EVERY * 10).filter(|_| accuracy.probe_next()).count();
    assert_eq!(probes, 10, "one page in {PROBE_EVERY} is a probe");
}
