//! Silent hosts: how long the pager waits for one, when it warns the user, and when a host is lost.

use super::{Host, Hosts, SPARE, WHOLE};
use crate::sys;
use crate::transport::{Broken, LONG, Watch};
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use memory_core::wire::{Status, TCP_RTO_MAX_MS};

/// How long the host of the only copy may refuse connections before the program is stopped. A
/// tunnel on the way may be restarting.
const GONE_AFTER_NS: u64 = 1_000_000_000;
/// Pause between two attempts.
const PAUSE_NS: u64 = 2_000_000;
/// An answer older than this does not prove that the host still answers. A longer silence means
/// that the link is down.
const FRESH_NS: u64 = LONG / 2;
/// A gap this long ends a run of steady answers.
const GAP_NS: u64 = LONG;
/// After a silence of all hosts, TCP retransmits the lost segments within this time.
const RESENT_NS: u64 = 1_000_000 * TCP_RTO_MAX_MS.1 as u64;

/// Whether the failure is permanent: the host answered that it does not have the lease.
fn is_final(why: Broken) -> bool {
    matches!(why, Broken::Refused(s) if s != Status::BadRequest)
}

/// Whether the host that failed with `a` is at least as likely to return as the one that failed
/// with `b`.
pub(super) fn is_better(a: Broken, b: Broken) -> bool {
    let hope = |why| if is_final(why) { 0 } else { 1 + matches!(why, Broken::Silent(_)) as u8 };
    hope(a) >= hope(b)
}

/// Failed attempts to reach one host.
#[derive(Default)]
pub(super) struct Vain {
    silent_ns: u64,
    /// When the host began to refuse connections. 0 = it accepts them.
    gone_since_ns: u64,
}

impl Vain {
    /// Counts a failed attempt, and returns whether the host is lost: it forgot the lease, is gone,
    /// or was silent for longer than `--patience`. Otherwise pauses, so that the caller may retry.
    pub(super) fn is_over(&mut self, hosts: &Hosts, h: usize, why: Broken) -> bool {
        if is_final(why) {
            return true;
        }
        if let Broken::Silent(ns) = why {
            (self.silent_ns, self.gone_since_ns) = (self.silent_ns + ns.max(PAUSE_NS), 0);
            hosts.is_silent(h, self.silent_ns);
        } else if self.gone_since_ns == 0 {
            self.gone_since_ns = sys::now_ns();
        }
        let gone_ns = if self.gone_since_ns > 0 { sys::now_ns() - self.gone_since_ns } else { 0 };
        if self.silent_ns >= hosts.config.patience_ns || gone_ns > GONE_AFTER_NS {
            return true;
        }
        let never = AtomicU32::new(0);
        sys::futex_wait(&never, 0, PAUSE_NS / 1000);
        false
    }
}

impl Host {
    /// Records that the host has answered. `h` is its number.
    pub(super) fn answers(&self, h: usize) {
        let Host { silent_since_ns, waited_for, answered_ns, steady_ns, .. } = self;
        let (now, since) = (sys::now_ns(), silent_since_ns.load(SeqCst));
        if now.saturating_sub(answered_ns.swap(now, SeqCst)) > GAP_NS {
            steady_ns.store(now, SeqCst);
        }
        if since != 0 {
            if now.saturating_sub(since) > FRESH_NS {
                steady_ns.store(now + RESENT_NS, SeqCst);
            }
            silent_since_ns.store(0, SeqCst);
        }
        if waited_for.load(SeqCst) == 1 && waited_for.swap(0, SeqCst) == 1 {
            sys::say(format_args!("memory host {} answers again: the program goes on", h + 1));
        }
    }
}

impl Hosts {
    /// Receives that a request to a host has waited for `ns`. Warns once that the program is
    /// blocked on this host, unless another connection to it received an answer in the meantime.
    fn is_silent(&self, h: usize, ns: u64) {
        let (host, now, long) = (&self.all[h], sys::now_ns(), self.config.patience_ns / 12);
        let since =
            host.silent_since_ns.compare_exchange(0, now, SeqCst, SeqCst).err().unwrap_or(now);
        if ns < long || now.saturating_sub(since) < long {
            return;
        }
        let is_whole = |o: usize| self.all[o].state() == WHOLE;
        // Another copy answers, or the user has a message that the program waits for it.
        let other = |o: usize| {
            let Host { shared, answered_ns, waited_for, .. } = &self.all[o];
            shared.is_mapped()
                || now.saturating_sub(answered_ns.load(SeqCst)) < long
                || waited_for.load(SeqCst) == 1
        };
        if !is_whole(h) || (0..self.config.hosts_len).any(|o| o != h && is_whole(o) && other(o)) {
            return;
        }
        if host.waited_for.swap(1, SeqCst) == 1 {
            return;
        }
        let seconds = self.config.patience_ns / 1_000_000_000;
        if self.whole() > 1 {
            return sys::say(format_args!(
                "the program stands still: no memory host answers. They are waited for, {seconds} \
                 s in all (--patience)"
            ));
        }
        sys::say(format_args!(
            "the program stands still: memory host {} holds the only copy and does not answer. It \
             is waited for, {seconds} s in all (--patience)",
            h + 1
        ));
    }

    /// Whether another host has answered steadily for [`LONG`] while this one was silent. Then the
    /// silent host is given up.
    pub(super) fn is_outlived(&self, h: usize, silent_since_ns: u64) -> bool {
        let now = sys::now_ns();
        let outlives = |o: usize| {
            let other = &self.all[o];
            let since = other.steady_ns.load(SeqCst).max(silent_since_ns);
            let fresh = now.saturating_sub(other.answered_ns.load(SeqCst)) < FRESH_NS;
            other.shared.is_mapped() || fresh && now.saturating_sub(since) >= LONG
        };
        (0..self.config.hosts_len).any(|o| o != h && self.all[o].state() != SPARE && outlives(o))
    }

    pub(super) fn lost_by(&self, h: usize, why: Broken) -> ! {
        match why {
            Broken::Refused(s) => self.lost(h, format_args!("{}", s.text())),
            Broken::Away => self.lost(h, format_args!("is gone: nobody listens there")),
            Broken::Silent(_) => self.lost(
                h,
                format_args!("has not answered for {} s", self.config.patience_ns / 1_000_000_000),
            ),
        }
    }

    pub(super) fn lost(&self, h: usize, why: core::fmt::Arguments) -> ! {
        let what = if self.forked.load(SeqCst) { "forked child" } else { "program" };
        if self.whole() > 1 {
            sys::die(format_args!(
                "far memory is lost: no copy answers; memory host {}: {why}. The {what} is stopped",
                h + 1
            ))
        }
        sys::die(format_args!(
            "far memory is lost: memory host {} held the only copy and {why}. The {what} is \
             stopped before it reads a wrong byte; name two hosts in --from to survive this",
            h + 1
        ))
    }
}

impl Watch for Hosts {
    fn waits(&self, host: usize, ns: u64) {
        self.is_silent(host, ns);
    }

    /// Has the tender probe the other hosts: perhaps they are silent only because they had no
    /// request.
    fn waits_to_write(&self, host: usize) {
        self.all[host].suspect.store(1, SeqCst);
        self.tender.ring();
    }

    /// If no host answers at all, the link of this machine is cut, and no copy is worse than
    /// another.
    fn gives_up(&self, host: usize, begun_ns: u64, ns: u64) -> bool {
        self.is_outlived(host, begun_ns) || ns >= self.config.patience_ns
    }
}
