//! The unit's side of an instance: its bounds, the time of its calls, and the text that it printed.

use std::time::Duration;

use wasmtime::{Store, StoreLimits, UpdateDeadline};

/// Interval at which the time of a long call is checked.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// State that an instance's host functions may access.
pub(crate) struct Host {
    pub limits: StoreLimits,
    pub stopwatch: Stopwatch,
    /// Time of WASI's clock, always 0. A function gets the time from its packets.
    pub time_ns: u64,
    /// Text that the function printed, up to a limit.
    pub printed: Vec<u8>,
}

/// Processor time of the current call. It leaves out the time in which a busy machine runs other
/// threads.
pub(crate) struct Stopwatch {
    pub limit: Duration,
    /// Processor time of the thread at the call's first tick. Most calls end earlier and read no
    /// clock.
    pub since: Option<Duration>,
}

impl Stopwatch {
    /// Interrupts a call that has used up its time. Otherwise returns the ticks until the next
    /// check.
    pub fn tick(&mut self) -> UpdateDeadline {
        let now = processor_time();
        let left = self.limit.saturating_sub(now - *self.since.get_or_insert(now));
        if left.is_zero() {
            return UpdateDeadline::Interrupt;
        }
        UpdateDeadline::Continue(left.as_nanos().div_ceil(TICK.as_nanos()) as u64)
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec; a thread always has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resets the time and the fuel for a call.
pub(crate) fn begin(store: &mut Store<Host>, fuel: u64) {
    store.data_mut().stopwatch.since = None;
    store.set_epoch_deadline(1);
    store.set_fuel(fuel).expect("fuel is on");
}
