//! The tender: a thread that probes suspects and replaces lost copies. A dying host may delay its
//! answers, and eviction to the other hosts must continue meanwhile.

use crate::pager::{Pager, running};
use crate::sys::apart;
use crate::{evict, mode, sys};

/// Longest time between two rounds.
const ROUND_US: u64 = 1_000_000;

/// Runs the tender's thread.
pub extern "C" fn tender() -> ! {
    unsafe { sys!(libc::SYS_prctl, libc::PR_SET_NAME, c"pando-tender".as_ptr()) };
    if !mode::is_sigbus() {
        apart::enter();
    }
    let pager = running();
    loop {
        let seen = pager.hosts.tender.rings();
        tend(pager);
        pager.hosts.tender.sleep(seen, ROUND_US);
    }
}

/// Probes suspects and replaces missing copies. Requests run outside the evictor's turn; their
/// results are entered within it. A silent host is given up only while another host answers, so the
/// others are probed first.
fn tend(pager: &'static Pager) {
    let (hosts, ports) = (&pager.hosts, unsafe { &mut pager.lanes.tender().ports });
    hosts.hold(ports);
    if pager.fork.is_child() {
        return;
    }
    for h in 0..hosts.config.hosts_len {
        if hosts.all[h].is_suspect() {
            hosts.ask_others(ports, h);
            let probed = hosts.probe(ports, h);
            evict::try_turn(|| hosts.judged(pager.stats, h, probed));
        }
    }
    if let Some((h, lease)) = hosts.find_spare(ports) {
        evict::try_turn(|| hosts.all[h].admit(lease));
    }
}
