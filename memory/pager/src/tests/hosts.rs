//! The copies on several memory hosts, over links that a test cuts, holds and repairs.

use super::*;
use crate::hosts::write::Wait;
use crate::hosts::{Hosts, REBUILDING, SPARE, WHOLE};
use crate::lane::Ports;
use crate::port::Port;
use crate::transport::Broken;
use memory_core::stats::Stats;
use memory_host::Lease;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex};

/// The state of a link.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Open,
    /// Bytes wait.
    Held,
    /// Connections end, and new ones end at once.
    Cut,
}

/// A link to a memory host.
pub struct Link {
    mode: Mutex<(Mode, Vec<TcpStream>)>,
    changed: Condvar,
    at: SocketAddr,
}

impl Link {
    fn to(host: SocketAddr) -> Arc<Link> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mode = Mutex::new((Mode::Open, vec![]));
        let link = Arc::new(Link { mode, changed: Condvar::new(), at });
        let me = link.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(host) else { continue };
                let mut mode = me.mode.lock().unwrap();
                if mode.0 == Mode::Cut {
                    continue;
                }
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let _ = to.set_nodelay(true);
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let me = me.clone();
                    std::thread::spawn(move || me.carry(from, to));
                }
                mode.1.extend([near, far]);
            }
        });
        link
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let mode = self.mode.lock().unwrap();
            drop(self.changed.wait_while(mode, |mode| mode.0 == Mode::Held).unwrap());
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn set(&self, to: Mode) {
        let mut mode = self.mode.lock().unwrap();
        mode.0 = to;
        if to == Mode::Cut {
            for stream in mode.1.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.changed.notify_all();
    }

    pub fn cut(&self) {
        self.set(Mode::Cut);
    }
}

/// Memory hosts behind links, and the program's view of them.
pub struct World {
    pub hosts: &'static Hosts,
    pub ports: Box<Ports>,
    pub links: Vec<Arc<Link>>,
    pub stats: Stats,
    servers: Vec<Arc<Server>>,
    _leases: Vec<Arc<Lease>>,
}

const SLOTS: u64 = 64;

/// Makes `n` hosts, of which the first `copies` hold a copy.
pub fn world(n: usize, copies: usize, patience: Duration) -> World {
    let (mut servers, mut links, mut leases, mut addresses) = (vec![], vec![], vec![], vec![]);
    for h in 0..n {
        let (server, at) = server(SLOTS);
        let link = Link::to(at);
        let lease = (h < copies).then(|| server.leases.open(SLOTS, "test").unwrap().unwrap());
        addresses.push(address(link.at, lease.as_ref().map_or(1001 + 2 * h as u64, |l| l.id)));
        leases.extend(lease);
        servers.push(server);
        links.push(link);
    }
    let hosts = Box::leak(Box::new(Hosts::new(config(&addresses, copies, SLOTS, patience))));
    let hosts: &'static Hosts = hosts;
    let mut ports: Box<Ports> = Box::new(std::array::from_fn(Port::to));
    ports.iter_mut().for_each(|port| port.watch = Some(hosts));
    World { hosts, ports, links, stats: Stats::default(), servers, _leases: leases }
}

/// A patience that no test reaches.
const LONG: Duration = Duration::from_secs(3600);

impl World {
    pub fn write(&mut self, slots: &[u32], tags: &[u64]) {
        let mut pages = Pages::new(tags.len());
        pages.fill(tags);
        let at = pages.at(tags.len());
        let mut writing = self.hosts.begin_write(&mut self.ports, slots, &at);
        let ended = self.hosts.end_write(
            &mut self.ports,
            &self.stats,
            &mut writing,
            slots,
            &at,
            Wait::Long,
        );
        assert!(ended, "a long wait lasts until every copy has it");
    }

    /// Reads from any whole copy but `not`; returns whether the pages have these tags.
    pub fn reads(&mut self, slots: &[u32], tags: &[u64], not: usize) -> bool {
        let mut pages = Pages::new(tags.len());
        let at = pages.at(tags.len());
        let from = self.hosts.read(&mut self.ports, &self.stats, slots, &at, not, || {});
        assert!(from != not && self.hosts.all[from].state.load(SeqCst) == WHOLE);
        pages.holds(tags)
    }

    fn states(&self) -> Vec<u8> {
        let n = self.hosts.config.hosts_len;
        self.hosts.all[..n].iter().map(|host| host.state.load(SeqCst)).collect()
    }

    /// Gives up host 0 by a write that it misses.
    fn lose_the_first(&mut self, slots: &[u32], tags: &[u64]) {
        self.links[0].cut();
        self.write(slots, tags);
        assert_eq!(self.states()[0], SPARE);
    }

    /// Finds a host for a missing copy, and begins to fill it; returns its number and its lease.
    fn admit_a_spare(&mut self) -> (usize, u64) {
        let mut found = None;
        until("a spare lends", || {
            found = self.hosts.find_spare(&mut self.ports);
            found.is_some()
        });
        let (h, lease) = found.expect("found");
        self.hosts.all[h].admit(lease);
        (h, lease)
    }

    /// Copies these slots to the host that is being rebuilt, as the evictor does.
    fn rebuild(&mut self, slots: &[u32], tags: &[u64]) {
        let h = self.hosts.rebuilding().expect("a host is being rebuilt");
        assert!(self.reads(slots, tags, h), "the whole copy is read");
        let mut pages = Pages::new(tags.len());
        pages.fill(tags);
        let at = pages.at(tags.len());
        assert!(self.hosts.write_to(&mut self.ports, &self.stats, h, slots, &at));
        self.hosts.all[h].state.store(WHOLE, SeqCst);
    }
}

#[test]
fn every_copy_has_every_write() {
    let mut w = world(3, 2, LONG);
    let mut numbers = Numbers(8);
    let mut model = [0u64; SLOTS as usize];
    for round in 1..40u64 {
        let n = 1 + numbers.below(10) as usize;
        let first = numbers.below(SLOTS - n as u64) as u32;
        let slots: Vec<u32> = (first..first + n as u32).rev().collect();
        let tags: Vec<u64> = (0..n as u64).map(|k| round << 8 | k).collect();
        w.write(&slots, &tags);
        slots.iter().zip(&tags).for_each(|(&slot, &tag)| model[slot as usize] = tag);
        assert!(w.reads(&slots, &tags, 0) && w.reads(&slots, &tags, 1), "round {round}");
    }
    let all: Vec<u32> = (0..SLOTS as u32).collect();
    assert!(w.reads(&all, &model, 0) && w.reads(&all, &model, 1));
    assert_eq!((w.states(), w.hosts.whole()), (vec![WHOLE, WHOLE, SPARE], 2));
    assert_eq!(w.servers[2].leases.usage().0, 0, "a spare lends nothing before it is needed");
}

#[test]
fn a_cut_link_costs_a_read_nothing_but_another_host() {
    let mut w = world(2, 2, LONG);
    w.write(&[1, 2], &[11, 12]);
    w.links[0].cut();
    // Reads begin at either host in turn, so one of two meets the cut.
    for _ in 0..4 {
        assert!(w.reads(&[1, 2], &[11, 12], usize::MAX));
    }
    assert!(w.hosts.all[0].is_suspect() && !w.hosts.is_ready(&w.ports));
    assert!(w.stats.reads_failed_over.load(SeqCst) >= 1);
    assert_eq!(w.states(), [WHOLE, WHOLE], "a reader gives no copy up");
    w.links[0].set(Mode::Open);
    until("the host answers a probe", || w.hosts.probe(&mut w.ports, 0).is_ok());
    w.hosts.judged(&w.stats, 0, Ok(()));
    assert!(!w.hosts.all[0].is_suspect());
    assert!(w.reads(&[1, 2], &[11, 12], 1), "and it is read again");
}

#[test]
fn a_copy_that_misses_a_write_is_not_read_before_it_is_rebuilt() {
    let mut w = world(2, 2, LONG);
    w.write(&[0, 1], &[1, 2]);
    w.lose_the_first(&[1], &[3]);
    assert_eq!((w.states(), w.stats.hosts_lost.load(SeqCst)), (vec![SPARE, WHOLE], 1));
    let old = w.hosts.all[0].lease.load(SeqCst);
    assert_eq!(w.hosts.find_spare(&mut w.ports), None, "nothing answers there");
    w.links[0].set(Mode::Open);
    // The host still has the old lease, with a page that is out of date.
    for _ in 0..3 {
        assert!(w.reads(&[0, 1], &[1, 3], usize::MAX));
    }
    let (h, lease) = w.admit_a_spare();
    assert!(h == 0 && lease != old);
    assert_eq!((w.states(), w.hosts.rebuilding()), (vec![REBUILDING, WHOLE], Some(0)));
    assert_eq!(w.hosts.find_spare(&mut w.ports), None, "no third copy is made");
    // A write while the copy is made reaches it as well.
    w.write(&[2], &[4]);
    assert!(w.reads(&[0, 1, 2], &[1, 3, 4], usize::MAX));
    w.rebuild(&[0, 1], &[1, 3]);
    assert!(w.reads(&[0, 1, 2], &[1, 3, 4], 1), "the new copy has all of it");
    assert_eq!((w.hosts.whole(), w.stats.copies_now.load(SeqCst)), (2, 1));
    assert!(w.servers[0].leases.join(old, false).is_none(), "the old lease has ended");
}

#[test]
fn a_spare_takes_the_place_of_a_lost_copy_and_is_lost_again() {
    let mut w = world(3, 2, LONG);
    w.write(&[5], &[50]);
    w.lose_the_first(&[6], &[60]);
    assert_eq!(w.admit_a_spare().0, 2, "the first host is still cut off");
    // It goes before it is whole: the write ends, and the whole copy stays.
    w.links[2].cut();
    w.write(&[7], &[70]);
    assert_eq!(w.states(), [SPARE, WHOLE, SPARE]);
    assert!(w.reads(&[5, 6, 7], &[50, 60, 70], usize::MAX));
    assert_eq!(w.hosts.rebuilding(), None);
    w.links[0].set(Mode::Open);
    assert_eq!(w.admit_a_spare().0, 0, "the first is back");
    w.rebuild(&[5, 6, 7], &[50, 60, 70]);
    assert!(w.reads(&[5, 6, 7], &[50, 60, 70], 1));
}

#[test]
fn a_probe_that_fails_gives_up_a_copy_but_never_the_last_one() {
    let mut w = world(2, 2, LONG);
    w.write(&[0], &[9]);
    w.hosts.all[0].suspect.store(1, SeqCst);
    w.hosts.judged(&w.stats, 0, Err(Broken::Silent(1)));
    assert!(w.states() == [WHOLE, WHOLE] && w.hosts.all[0].is_suspect(), "it is asked again");
    w.hosts.judged(&w.stats, 0, Err(Broken::Away));
    assert_eq!(w.states(), [SPARE, WHOLE]);
    w.hosts.all[1].suspect.store(1, SeqCst);
    w.hosts.judged(&w.stats, 1, Err(Broken::Away));
    assert_eq!(w.states(), [SPARE, WHOLE], "the last copy is waited for");
    assert!(w.reads(&[0], &[9], usize::MAX), "a suspect is read if there is no other copy");
    w.hosts.all[0].admit(3);
    w.hosts.judged(&w.stats, 0, Err(Broken::Away));
    assert_eq!(w.states(), [SPARE, WHOLE], "a copy in the making is given up");
}

#[test]
fn a_write_to_a_held_link_waits_and_is_stored_once_it_opens() {
    let mut w = world(1, 1, LONG);
    w.write(&[3], &[30]);
    w.links[0].set(Mode::Held);
    let mut pages = Pages::new(1);
    pages.fill(&[31]);
    let at = pages.at(1);
    let mut writing = w.hosts.begin_write(&mut w.ports, &[3], &at);
    let mut end = |wait| w.hosts.end_write(&mut w.ports, &w.stats, &mut writing, &[3], &at, wait);
    assert!(!end(Wait::Never) && !end(Wait::UntilLate), "nothing is acknowledged");
    until("the acknowledgement is late", || w.hosts.is_late());
    assert!(!end(Wait::Never));
    w.links[0].set(Mode::Open);
    assert!(end(Wait::Long) && !w.hosts.is_late());
    assert!(end(Wait::Never), "an ended write stays ended");
    assert!(w.reads(&[3], &[31], usize::MAX));
    assert_eq!(w.stats.hosts_lost.load(SeqCst), 0);
}

#[test]
fn a_program_that_ends_gives_its_leases_back() {
    let mut w = world(3, 2, LONG);
    unsafe { w.hosts.attach(&mut w.ports) };
    assert!(w.hosts.is_ready(&w.ports) && w.hosts.mapped() == 0);
    w.ports.iter_mut().for_each(Port::close);
    until("every copy has a connection again", || {
        w.hosts.hold(&mut w.ports);
        w.hosts.is_ready(&w.ports)
    });
    w.hosts.part();
    w.ports.iter_mut().for_each(Port::close);
    for (server, lease) in w.servers.iter().zip(&w._leases) {
        // The lease was opened without a connection, which counts as one.
        server.leases.leave(lease.id);
        until("the lease ends with its last connection", || server.leases.usage().0 == 0);
    }
}
