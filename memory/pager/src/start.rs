//! How a pager starts: in the program that `pando-mem run` became, and in each forked child of it.

use crate::config::Config;
use crate::lane::LANES;
use crate::pager::{self, Inner, Memory, Pager};
use crate::uffd::Uffd;
use crate::{apart, descriptor, evict, guide, handler, identity, pin, stack, sys, uffd};
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
        place.write(Pager::new(config, stats, memory, inner));
        let pager: &'static Pager = &*place;
        pager.hosts.attach(&mut pager.lanes.evictor().ports);
        pager.lanes.watch(&pager.hosts);
        stats.copies_now.store(pager.hosts.whole() as u64, SeqCst);
        pager.evictor.begin(pager);
        pin::begin(pager.region_pages);
        stack::begin();
        if !pager.fork.provide() {
            sys::die(format_args!("no descriptor is left for the pager; raise the limit (ulimit -n)"));
        }
        pager::publish(pager);
        if !handler::is_sigbus() {
            identity::hang_bell();
        }
        threads(pager);
    }
}

/// Reserves the region and the pool, and opens the userfaultfd that serves both.
unsafe fn reserve(limit: usize, slots: usize, sigbus: bool) -> Memory {
    unsafe {
        let region_pages = (4 * (slots + limit)).next_power_of_two().max(16 << 18);
        let ring_pages = limit / 4 + 1024;
        let pool_pages = ring_pages + LANES * BATCH_PAGES_MAX;
        let uffd = Uffd::open(sigbus).unwrap_or_else(|e| {
            sys::die(format_args!(
                "this kernel gives no userfaultfd with MOVE (error {e}): it takes Linux 6.8, and for --mode thread CAP_SYS_PTRACE"
            ))
        });
        let region = sys::reserve(region_pages * PAGE_BYTES + ALIGN).map_addr(|a| a.next_multiple_of(ALIGN));
        let pool = sys::reserve(pool_pages * PAGE_BYTES);
        uffd.register(region, region_pages * PAGE_BYTES);
        sys!(libc::SYS_madvise, region, region_pages * PAGE_BYTES, libc::MADV_DONTFORK);
        // The kernel gives landing frames memory as data arrives, so they are not registered.
        uffd.register(pool, ring_pages * PAGE_BYTES);
        Memory { region, region_pages, pool, pool_pages, ring_pages }
    }
}

/// Makes the empty tables of pages, slots and spans.
unsafe fn tables(memory: &Memory, limit: usize, slots: usize, prefetcher: Prefetcher) -> Inner {
    unsafe {
        let map = || sys::reserve_slice::<u64>(slots.div_ceil(64));
        let pages = sys::reserve(memory.region_pages * size_of::<Page>()).cast::<Page>();
        let heart = Heart::new(
            core::slice::from_raw_parts_mut(pages, memory.region_pages),
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

/// Makes a forked child's pager of its parent's, before any code of the child runs. The parent took
/// the lock before the fork.
pub unsafe fn become_child(pager: &Pager, limit: usize) {
    unsafe {
        // First close the descriptors of the parent: the child may have no free number before.
        if handler::is_sigbus() {
            descriptor::close(uffd::number());
        }
        pager.lanes.become_child();
        pager.hosts.become_child();
        apart::become_child();
        handler::become_child();
        guide::become_child();
        stack::become_child();
        // In thread mode the first thread apart opens it, for the program's table may have no room.
        if handler::is_sigbus() {
            pager.open_again();
        }
        pager.become_child(limit);
    }
}

/// Starts the pager's own threads, apart from the program's file table as far as the mode allows.
pub unsafe fn threads(pager: &Pager) {
    unsafe {
        apart::begin(pager);
        if handler::is_sigbus() {
            sys::spawn(evict::evictor);
            sys::spawn(evict::tender);
        }
    }
}
