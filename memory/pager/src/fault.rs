//! A page fault, in the thread that serves it: steps until the page is resident.

use crate::guide::Along;
use crate::handler::{self, Lead};
use crate::pager::{Guard, OVERDRAFT_PAGES, Pager, running};
use crate::queue::Queue;
use crate::{stack, sys};
use core::sync::atomic::Ordering::SeqCst;
use memory_core::PAGE_BYTES;
use memory_core::heart::Need;
use memory_core::page::State;
use memory_core::stats::{add, bucket};

struct Attempt {
    /// The pages that a guide adds to the fetch.
    along: Option<Along>,
    /// The thread has evicted a batch for itself.
    helped: bool,
    /// The thread was woken for a lane, or for room, and has not used it yet. If it no longer needs
    /// it, it wakes the next waiter.
    lane: bool,
    room: bool,
}

impl Pager {
    /// Makes a page of the program resident, in the thread that touches it. Signals are blocked.
    pub fn fault(&self, page: u32) {
        extern "C" fn serve(page: usize) {
            running().serve(page as u32, &mut Lead::none());
        }
        stack::run(serve, page as usize);
    }

    /// Makes a page resident for a thread of the program that has not faulted, in every mode.
    pub fn bring_in(&self, page: u32) {
        if !handler::is_sigbus() {
            unsafe { self.at(page).read_volatile() };
            return;
        }
        let mask = sys::block_signals();
        self.fault(page);
        sys::restore_signals(mask);
    }

    /// Handles the loss of a page by the machine. A page that is away has a whole copy on a host,
    /// so the mark is removed. The copy of a resident page may be older than the program's last
    /// write.
    pub fn poisoned(&self, page: u32) {
        let g = self.lock_blocked();
        if g.heart.pages[page as usize].state == State::Resident {
            sys::die(format_args!(
                "this machine has lost a page of the program's memory (hardware error). The program is stopped before it reads a wrong byte"
            ));
        }
        unsafe { sys!(libc::SYS_madvise, self.at(page), PAGE_BYTES, libc::MADV_DONTNEED) };
    }

    /// Makes a page of the program resident. Signals are blocked, and the stack is the pager's.
    pub fn serve(&self, page: u32, lead: &mut Lead) {
        let begun = sys::now_ns();
        let mut attempt = Attempt { along: crate::guide::ask(self.at(page)), helped: false, lane: false, room: false };
        add(&self.stats.faults, 1);
        while !self.step(page, &mut attempt, lead) {}
        self.pass_on(&mut attempt.lane, &self.lanes.free);
        self.pass_on(&mut attempt.room, &self.room);
        add(&self.stats.stalls.0[bucket(sys::now_ns() - begun)], 1);
    }

    /// Makes one attempt; returns whether the page is resident now.
    fn step(&self, page: u32, attempt: &mut Attempt, lead: &mut Lead) -> bool {
        let mut g = self.lock_blocked();
        match g.heart.fault(page) {
            Need::Nothing => return true,
            Need::Wait => {
                add(&self.stats.faults_wait, 1);
                self.pass_on(&mut attempt.lane, &self.lanes.free);
                self.pass_on(&mut attempt.room, &self.room);
                lead.pass();
                self.wait_for(page, g);
            }
            Need::Zeros => return self.fill_zeros(g, page, attempt, lead),
            Need::Rescue(_) => {
                let (first, end) = g.prefetcher.beside(&g.heart, page);
                self.rescue(&mut g, page, first, end);
                add(&self.stats.faults_rescue, 1);
                return true;
            }
            Need::Fetch if !attempt.helped && self.is_short(&g) => {
                attempt.helped = true;
                drop(g);
                self.evictor.help(self);
            }
            Need::Fetch => {
                let seen = self.lanes.free.seen();
                let Some(lane) = self.lanes.take() else {
                    drop(g);
                    self.pass_on(&mut attempt.room, &self.room);
                    attempt.lane = true;
                    lead.pass();
                    self.lanes.free.wait(seen);
                    return false;
                };
                attempt.lane = false;
                let inner = &mut *g;
                let n = inner.prefetcher.plan(&inner.heart, page, &mut lane.pages);
                let n = attempt.along.as_ref().map_or(n, |a| a.extend(self, &g, &mut lane.pages, n));
                let n = self.clip(&g, n);
                let fetched = self.fetch(g, lane, n, false, lead);
                self.lanes.give(lane);
                if fetched == 0 {
                    self.need_room(attempt, lead);
                    return false;
                }
                add(&self.stats.faults_fetch, 1);
                add(&self.stats.pages_prefetched, fetched as u64 - 1);
                return true;
            }
        }
        false
    }

    /// Wakes the next waiter, if this thread was woken and did not use the resource.
    fn pass_on(&self, woken: &mut bool, queue: &Queue) {
        if core::mem::take(woken) {
            queue.wake(1);
        }
    }

    fn need_room(&self, attempt: &mut Attempt, lead: &mut Lead) {
        if self.evictor.help(self) {
            return;
        }
        add(&self.stats.faults_room, 1);
        let mut g = self.lock_blocked();
        if self.hosts.is_late() && self.overdrawn.load(SeqCst) + OVERDRAFT_PAGES <= self.overdraft_max() {
            self.overdraw(&mut g, OVERDRAFT_PAGES);
        }
        self.wake_evictor();
        let seen = self.room.seen();
        if !g.heart.has_frame() {
            drop(g);
            self.pass_on(&mut attempt.lane, &self.lanes.free);
            attempt.room = true;
            lead.pass();
            self.room.wait(seen);
        }
    }

    fn fill_zeros(&self, mut g: Guard, page: u32, attempt: &mut Attempt, lead: &mut Lead) -> bool {
        const FRESH: u32 = u32::MAX;
        let Some(frame) = g.heart.take_frame(FRESH) else {
            drop(g);
            self.need_room(attempt, lead);
            return false;
        };
        unsafe {
            if frame == FRESH {
                self.uffd().copy(self.at(page), self.zeros, PAGE_BYTES);
            } else {
                core::ptr::write_bytes(self.frame(frame), 0, PAGE_BYTES);
                self.put(self.at(page), frame, 1);
            }
        }
        g.heart.zeroed(page, frame);
        add(&self.stats.faults_zero, 1);
        self.look_ahead(&g);
        true
    }
}
