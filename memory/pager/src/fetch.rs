//! Fetches: one round trip for the pages in a lane's list, a check of each, and a move without
//! copying.

use crate::lane::Lane;
use crate::lead::Lead;
use crate::pager::{Guard, Pager};
use crate::{evict, sys};
use memory_core::stats::{Stats, add};

/// Fetches those of the first `n` pages in the lane's list that are remote; returns how many.
/// Releases the lock during the transfer.
pub fn fetch(
    pager: &Pager,
    mut g: Guard,
    lane: &mut Lane,
    n: usize,
    guided: bool,
    lead: &mut Lead,
) -> usize {
    let landing = pager.memory.landing(lane);
    let n = g.heart.begin_fetch(&mut lane.pages[..n], landing, &mut lane.frames);
    for i in 0..n {
        lane.slots[i] = g.heart.pages[lane.pages[i] as usize].slot;
        lane.sums[i] = g.heart.sum(lane.pages[i]);
        lane.memory[i] = pager.memory.frame(lane.frames[i]);
    }
    pager.room.look_ahead(&g.heart);
    let signals = g.signals.take();
    drop(g);
    if n == 0 {
        if let Some(mask) = signals {
            sys::restore_signals(mask);
        }
        return 0;
    }
    transfer(pager, lane, n, lead);
    let mut g = pager.lock_blocked();
    install(pager, &mut g, lane, n, guided);
    add(&pager.stats.rounds, 1);
    add(&pager.stats.pages_fetched, n as u64);
    drop(g);
    pager.done(&lane.pages[..n]);
    if let Some(mask) = signals {
        sys::restore_signals(mask);
    }
    n
}

/// Reads the lane's slots into its frames and checks every page. Reads a wrong page again from
/// the other copy.
fn transfer(pager: &Pager, lane: &mut Lane, n: usize, lead: &mut Lead) {
    let Lane { slots, memory, sums, ports, .. } = lane;
    let from = pager.hosts.read(ports, pager.stats, &slots[..n], &memory[..n], usize::MAX, || {
        lead.pass_if_crowded();
        evict::ahead(pager)
    });
    pager.open(&slots[..n], &memory[..n]);
    for i in 0..n {
        if pager.fingerprint(memory[i]) == sums[i] {
            continue;
        }
        add(&pager.stats.pages_bad, 1);
        if pager.hosts.whole() < 2 {
            sys::die(format_args!(
                "memory host {} returned a page that is not what was stored (checksum). The \
                 program is stopped before it reads it",
                from + 1
            ));
        }
        pager.hosts.read(ports, pager.stats, &slots[i..=i], &memory[i..=i], from, || {});
        pager.open(&slots[i..=i], &memory[i..=i]);
        if pager.fingerprint(memory[i]) != sums[i] {
            sys::die(format_args!(
                "both memory hosts returned a page that is not what was stored (checksum). The \
                 program is stopped before it reads it"
            ));
        }
    }
}

fn install(pager: &Pager, g: &mut Guard, lane: &mut Lane, n: usize, guided: bool) {
    let mut i = 0;
    while i < n {
        if i > 0 && leave_as_probe(pager, g, lane.pages[i], lane.frames[i], guided) {
            i += 1;
            continue;
        }
        let mut k = 1;
        while i + k < n
            && lane.pages[i + k] == lane.pages[i] + k as u32
            && lane.frames[i + k] == lane.frames[i] + k as u32
        {
            k += 1;
        }
        pager.memory.put(pager.memory.at(lane.pages[i]), lane.frames[i], k);
        for j in i..i + k {
            g.heart.fetched(lane.pages[j], lane.frames[j]);
        }
        i += k;
    }
    count_probes(pager.stats, g);
}

fn leave_as_probe(pager: &Pager, g: &mut Guard, page: u32, frame: u32, guided: bool) -> bool {
    let probe = if guided { g.guide.probe_next() } else { g.prefetcher.accuracy.probe_next() };
    // A fork is being prepared, for which the second-chance list must be empty.
    if !probe || pager.fork.is_wanted() {
        return false;
    }
    let Some(tail) = g.heart.can_probe() else { return false };
    let moved = pager.memory.shift(tail, frame);
    if moved {
        g.heart.probed(page, frame, guided);
    }
    moved
}

fn count_probes(stats: &Stats, g: &mut Guard) {
    let [plain, guided] = core::mem::take(&mut g.heart.probes_unused);
    for _ in 0..plain {
        g.prefetcher.accuracy.saw(false);
    }
    for _ in 0..guided {
        g.guide.saw(false);
    }
    add(&stats.probes_unused, plain as u64);
    add(&stats.guide_probes_unused, guided as u64);
}
