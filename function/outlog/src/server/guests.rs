//! Units of other hosts within the log: their number, and the memory of each tenant.

use super::door::{self, CALLERS_MAX, Guest};
use super::{Parting, Peer, Server};

impl Server {
    /// Lets go of callers without an introduction. Keeps the memory of each tenant within its
    /// bound.
    pub(super) fn keep_bounds(&mut self) {
        let Some(bounds) = self.door.as_ref().map(|door| door.bounds) else { return };
        let silent = |p: &Peer| p.tenant.is_some() && p.hello.is_none();
        while let Some(at) = self.peers.iter().position(|p| silent(p) && p.is_late()) {
            self.part(at, &Parting::Silent);
        }
        while let Some((tenant, held)) = self.full(bounds.tenant_bytes) {
            let of_tenant = |unit: &str| unit.split('/').next() == Some(&tenant);
            let orphans = self.copies.iter().filter(|(unit, _)| of_tenant(unit));
            let oldest = orphans.filter_map(|(unit, c)| Some((c.orphaned?, unit.clone()))).min();
            if let Some((_, unit)) = oldest {
                pando_walls::say!("the copy of {unit}, which has no unit, goes: no room");
                self.copies.remove(&unit);
                continue;
            }
            let held_by = |p: &Peer| p.tenant.as_ref() == Some(&tenant);
            let last = (0..self.peers.len()).filter(|&p| held_by(&self.peers[p]));
            let Some(at) = last.max_by_key(|&p| (self.peers[p].active, self.peers[p].since)) else {
                return;
            };
            let hello = self.peers[at].hello.clone();
            let (mib, most) = (held >> 20, bounds.tenant_bytes >> 20);
            self.part(at, &Parting::Full(tenant, mib, most));
            hello.iter().for_each(|hello| self.forget(hello));
        }
    }

    /// Returns a tenant that holds more than `most` bytes, and their number.
    fn full(&self, most: usize) -> Option<(String, usize)> {
        let tenant = |unit: &'_ str| unit.split_once('/').map_or(0, |(tenant, _)| tenant.len());
        let copies = self.copies.iter().map(|(unit, c)| (&unit[..tenant(unit)], c.bytes()));
        let links = self.peers.iter().filter_map(|p| Some((p.tenant.as_deref()?, &p.link)));
        let links = links.map(|(tenant, link)| (tenant, link.held_bytes()));
        let sums = door::sums(copies.chain(links));
        sums.into_iter().find(|&(_, held)| held > most).map(|(t, held)| (t.to_owned(), held))
    }

    /// Takes in a peer of another host, if it is within the bounds.
    pub(super) fn receive(&mut self, Guest { link, tenant }: Guest) {
        let Some(bounds) = self.door.as_ref().map(|door| door.bounds) else { return };
        let remote = |p: &&Peer| p.tenant.is_some();
        let silent = |p: &&Peer| p.tenant.is_some() && p.hello.is_none();
        let of_tenant = self.peers.iter().filter(|p| p.tenant.as_ref() == Some(&tenant)).count();
        if of_tenant >= bounds.tenant_links
            || self.peers.iter().filter(remote).count() >= bounds.links
        {
            pando_walls::say!("a caller is let go: {}", Parting::Crowd(tenant, of_tenant));
            return;
        }
        if self.peers.iter().filter(silent).count() >= CALLERS_MAX
            && let Some(at) = self.peers.iter().position(|p| silent(&p))
        {
            self.part(at, &Parting::Silent);
        }
        self.welcome(Box::new(link), Some(tenant));
    }
}
