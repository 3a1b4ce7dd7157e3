//! Extents: which pages belong to one allocation.

use crate::heart::Heart;
use crate::page::{State, flag};

impl Heart<'_> {
    /// Records that `pages` pages from `first` are one allocation.
    pub fn note_extent(&mut self, first: u32, pages: u32) {
        let n = pages.min(u16::MAX as u32) as u16;
        for k in 0..n {
            let p = &mut self.pages[(first + k as u32) as usize];
            self.small -= p.is_small_here() as usize;
            p.flags &= !flag::SMALL;
            p.extent_back = k;
            p.extent_pages = 0;
            p.flags |= flag::IN_EXTENT;
        }
        self.pages[first as usize].extent_pages = n;
    }

    /// Records that a page holds small objects.
    pub fn note_small(&mut self, page: u32) {
        let p = &mut self.pages[page as usize];
        self.small -= p.is_small_here() as usize;
        p.flags |= flag::SMALL;
        self.small += p.is_small_here() as usize;
    }

    /// Records that a page holds several objects, or one that is no longer than a page. This
    /// replaces older records of the page.
    pub fn note_shared(&mut self, page: u32) {
        self.pages[page as usize].flags &= !flag::IN_EXTENT;
    }

    /// First page and length of the allocation that a page belongs to.
    pub fn extent(&self, page: u32) -> Option<(u32, u32)> {
        let p = &self.pages[page as usize];
        if !p.is_in_extent() {
            return None;
        }
        let first = page - p.extent_back as u32;
        let pages = self.pages[first as usize].extent_pages as u32;
        (page < first + pages).then_some((first, pages))
    }

    /// Returns the pages around one of the second-chance list, from `first` up to `end`, that are
    /// adjacent in the list and in the program, so that one move brings back all of them. Result:
    /// first page and length. Excludes pages that are being written to the hosts, and probes, whose
    /// use is measured.
    pub fn limbo_run(&self, page: u32, first: u32, end: u32) -> (u32, u32) {
        let base = self.pages[page as usize].frame.wrapping_sub(page);
        let joins = |at: u32| {
            let p = &self.pages[at as usize];
            p.state == State::Limbo
                && p.frame.wrapping_sub(at) == base
                && p.flags & flag::PROBE == 0
                && !self.is_written_from(p.frame)
        };
        if self.is_written_from(self.pages[page as usize].frame) {
            return (page, 1);
        }
        let (mut from, mut to) = (page, page + 1);
        while from > first && joins(from - 1) {
            from -= 1;
        }
        while to < end && joins(to) {
            to += 1;
        }
        (from, to - from)
    }

    /// Whether a page could be fetched along.
    pub fn is_remote(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|p| p.state == State::Remote)
    }
}
