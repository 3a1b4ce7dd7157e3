//! How a pager starts, in the program that `pando-mem run` became.

use crate::config::Config;
use crate::lane::LANES;
use crate::memory::Memory;
use crate::pager::{self, Inner, Pager};
use crate::uffd::Uffd;
use crate::{evict, fault, identity, mode, pin, stack, sys, threads};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::heart::Heart;
use memory_core::page::Page;
use memory_core::prefetch::{Accuracy, Prefetcher};
use memory_core::slots::Slots;
use memory_core::spans::{Run, Spans};
use memory_core::stats::{STATS_MAGIC, Stats};
use memory_core::{BATCH_PAGES_MAX, PAGE_BYTES};

/// The region begins at a multiple of this, bytes: allocators work best then.
const ALIGN: usize = 2 << 20;
/// Runs of free pages that the table of spans holds.
const SPANS: usize = 1 << 16;

/// Makes the pager, joins the memory hosts, and starts the threads. Once per process.
pub unsafe fn start(config: Config, stats: &'static Stats) {
    unsafe {
        let limit = (config.local_bytes as usize / PAGE_BYTES).max(256);
        let slots = config.slots as usize;
        let memory = reserve(limit, slots, config.sigbus);
        let inner = tables(&memory, limit, slots, Prefetcher::new(config.prefetch));
        stats.magic.store(STATS_MAGIC, SeqCst);
        stats.slots_total.store(config.slots, SeqCst);
        stats.budget_now.store(config.local_bytes, SeqCst);
        let place = sys::reserve(size_of::<Pager>()).cast::<Pager>();
        place.write(Pager::new(config, stats, memory, inner, fault::bring_in));
        let pager: &'static Pager = &*place;
        pager.hosts.attach(&mut pager.lanes.evictor().ports);
        pager.lanes.watch(&pager.hosts);
        stats.copies_now.store(pager.hosts.whole() as u64, SeqCst);
        evict::begin(pager);
        pin::begin(pager.memory.region_pages);
        stack::begin();
        if !pager.fork.provide() {
            sys::die(format_args!(
                "no descriptor is left for the pager; raise the limit (ulimit -n)"
            ));
        }
        pager::publish(pager);
        if !mode::is_sigbus() {
            identity::hang_bell();
        }
        threads::start(pager);
    }
}

/// Reserves the region and the pool, and opens the userfaultfd that serves both.
unsafe fn reserve(limit: usize, slots: usize, sigbus: bool) -> Memory {
    unsafe {
        let region_pages = (4 * (slots + limit)).next_power_of_two().max(16 << 18);
        let ring_pages = limit / 4 + 1024;
        let pool_pages = ring_pages + LANES * BATCH_PAGES_MAX;
        if let Err(e) = Uffd::open(sigbus) {
            sys::die(format_args!(
                "no userfaultfd (error {e}), though `pando mem run` had one: a filter of system \
                 calls or a limit is between them"
            ))
        }
        let region =
            sys::reserve(region_pages * PAGE_BYTES + ALIGN).map_addr(|a| a.next_multiple_of(ALIGN));
        let pool = sys::reserve(pool_pages * PAGE_BYTES);
        let pages = sys::reserve(region_pages * size_of::<Page>()).cast::<Page>();
        let memory = Memory { region, region_pages, pool, pool_pages, ring_pages, pages };
        memory.register();
        memory.inherit(false);
        memory
    }
}

/// Makes the empty tables of pages, slots and spans.
unsafe fn tables(memory: &Memory, limit: usize, slots: usize, prefetcher: Prefetcher) -> Inner {
    unsafe {
        let map = || sys::reserve_slice::<u64>(slots.div_ceil(64));
        let heart = Heart::new(
            core::slice::from_raw_parts_mut(memory.pages.cast_mut(), memory.region_pages),
            Slots::new(map(), map(), map(), slots),
            sys::reserve_slice(slots),
            sys::reserve_slice(memory.region_pages),
            sys::reserve_slice(memory.ring_pages),
            limit,
        );
        let spans = Spans::new(sys::reserve_slice::<Run>(SPANS), memory.region_pages as u32);
        Inner { heart, spans, prefetcher, guide: Accuracy::default() }
    }
}
