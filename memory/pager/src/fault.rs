//! A page fault, in the thread that serves it: steps until the page is resident.

use crate::guide::{self, Along};
use crate::lead::Lead;
use crate::pager::{Guard, Pager, running};
use crate::queue::Queue;
use crate::uffd::Uffd;
use crate::{evict, fetch, mode, room, stack, sys};
use memory_core::PAGE_BYTES;
use memory_core::heart::Need;
use memory_core::page::State;
use memory_core::stats::{add, bucket};

/// Makes a page of the program resident, in the thread that touches it. Signals are blocked.
pub fn fault(page: u32) {
    extern "C" fn on_stack(page: usize) {
        serve(running(), page as u32, &mut Lead::none());
    }
    stack::run(on_stack, page as usize);
}

/// Makes a page resident for a thread of the program that has not faulted, in every mode.
pub fn bring_in(pager: &Pager, page: u32) {
    if !mode::is_sigbus() {
        unsafe { pager.memory.at(page).read_volatile() };
        return;
    }
    let mask = sys::block_signals();
    fault(page);
    sys::restore_signals(mask);
}

/// Handles the loss of a page by the machine. A page that is away has a whole copy on a host, so
/// the mark is removed. The copy of a resident page may be older than the program's last write.
pub fn poisoned(pager: &Pager, page: u32) {
    let g = pager.lock_blocked();
    if g.heart.pages[page as usize].state == State::Resident {
        sys::die(format_args!(
            "this machine has lost a page of the program's memory (hardware error). The program is \
             stopped before it reads a wrong byte"
        ));
    }
    pager.memory.empty(pager.memory.at(page), 1);
}

/// Makes a page of the program resident. Signals are blocked, and the stack is the pager's.
pub fn serve(pager: &Pager, page: u32, lead: &mut Lead) {
    let begun = sys::now_ns();
    let along = guide::ask(pager.memory.at(page));
    let mut fault = Fault { pager, page, along, lead, helped: false, lane: false, room: false };
    add(&pager.stats.faults, 1);
    while !fault.step() {}
    fault.pass_on_lane();
    fault.pass_on_room();
    add(&pager.stats.stalls.0[bucket(sys::now_ns() - begun)], 1);
}

/// Wakes the next waiter, if this thread was woken and did not use the resource.
fn pass_on(woken: &mut bool, queue: &Queue) {
    if core::mem::take(woken) {
        queue.wake(1);
    }
}

/// A fault that is being served.
struct Fault<'p> {
    pager: &'p Pager,
    page: u32,
    /// The pages that a guide adds to the fetch.
    along: Option<Along>,
    lead: &'p mut Lead,
    /// The thread has evicted a batch for itself.
    helped: bool,
    /// The thread was woken for a lane, or for room, and has not used it yet. If it no longer needs
    /// it, it wakes the next waiter.
    lane: bool,
    room: bool,
}

impl Fault<'_> {
    /// Makes one attempt; returns whether the page is resident now.
    fn step(&mut self) -> bool {
        let (pager, page) = (self.pager, self.page);
        let mut g = pager.lock_blocked();
        match g.heart.fault(page) {
            Need::Nothing => return true,
            Need::Wait => {
                add(&pager.stats.faults_wait, 1);
                self.pass_on_lane();
                self.pass_on_room();
                self.lead.pass();
                pager.wait_for(page, g);
            }
            Need::Zeros => return self.fill_zeros(g),
            Need::Rescue(_) => {
                let (first, end) = g.prefetcher.beside(&g.heart, page);
                pager.rescue(&mut g, page, first, end);
                add(&pager.stats.faults_rescue, 1);
                return true;
            }
            Need::Fetch if !self.helped && room::is_short(&g.heart) => {
                self.helped = true;
                drop(g);
                evict::help(pager);
            }
            Need::Fetch => return self.fetch(g),
        }
        false
    }

    /// Fetches the page with its plan, if a lane is free.
    fn fetch(&mut self, mut g: Guard) -> bool {
        let (pager, page) = (self.pager, self.page);
        let seen = pager.lanes.free.seen();
        let Some(lane) = pager.lanes.take() else {
            drop(g);
            self.pass_on_room();
            self.lane = true;
            self.lead.pass();
            pager.lanes.free.wait(seen);
            return false;
        };
        self.lane = false;
        let inner = &mut *g;
        let n = inner.prefetcher.plan(&inner.heart, page, &mut lane.pages);
        let n = self.along.as_ref().map_or(n, |a| a.extend(pager, &g, &mut lane.pages, n));
        let n = room::clip(&g.heart, n);
        let fetched = fetch::fetch(pager, g, lane, n, false, self.lead);
        pager.lanes.give(lane);
        if fetched == 0 {
            self.need_room();
            return false;
        }
        add(&pager.stats.faults_fetch, 1);
        add(&pager.stats.pages_prefetched, fetched as u64 - 1);
        true
    }

    fn pass_on_lane(&mut self) {
        pass_on(&mut self.lane, &self.pager.lanes.free);
    }

    fn pass_on_room(&mut self) {
        pass_on(&mut self.room, &self.pager.room.queue);
    }

    /// Evicts a batch, or waits until there may be room.
    fn need_room(&mut self) {
        let pager = self.pager;
        if evict::help(pager) {
            return;
        }
        add(&pager.stats.faults_room, 1);
        let mut g = pager.lock_blocked();
        if pager.hosts.is_late() && pager.room.may_overdraw() {
            pager.room.overdraw(&mut g.heart, room::OVERDRAFT_PAGES);
        }
        pager.room.evictor.ring();
        let seen = pager.room.queue.seen();
        if !g.heart.has_frame() {
            drop(g);
            self.pass_on_lane();
            self.room = true;
            self.lead.pass();
            pager.room.queue.wait(seen);
        }
    }

    fn fill_zeros(&mut self, mut g: Guard) -> bool {
        const FRESH: u32 = u32::MAX;
        let (pager, page) = (self.pager, self.page);
        let Some(frame) = g.heart.take_frame(FRESH) else {
            drop(g);
            self.need_room();
            return false;
        };
        let memory = &pager.memory;
        if frame == FRESH {
            unsafe { Uffd.copy(memory.at(page), pager.zeros, PAGE_BYTES) };
        } else {
            memory.put_zeros(memory.at(page), frame, pager.zeros);
        }
        g.heart.zeroed(page, frame);
        add(&pager.stats.faults_zero, 1);
        pager.room.look_ahead(&g.heart);
        true
    }
}
