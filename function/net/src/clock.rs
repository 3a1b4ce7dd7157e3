//! The clock of packets. Steps of the machine's clock do not move it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock's time at the start of the machine: a time near 0 would look like "never".
const BEGIN_NS: u64 = 1_000_000_000 * SECOND_NS;

/// The clock differs from the machine's by whole seconds. So all processes of the machine give a
/// packet the same time, to the nanosecond, and a step of less than a second passes.
const SECOND_NS: u64 = 1_000_000_000;

/// The longest wait of a packet that its time shows. A step forward of the machine's clock makes
/// waiting packets look as old as the step. This is less than the silence after which a flow is
/// forgotten.
const WAIT_MAX_NS: u64 = 60 * SECOND_NS;

/// Returns the time of the clock, the same in all processes of a machine.
pub fn now() -> Duration {
    Duration::from_nanos(Moment::read().now_ns())
}

/// Returns the time by the machine's clock, which is also that of the kernel's packet stamps.
pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Both clocks at one moment. It turns the stamps of packets that were received before it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    wall_ns: u64,
    /// Whole seconds from the start of the machine's clock to the start of the machine.
    start_ns: u64,
}

impl Moment {
    /// Reads both clocks.
    pub fn read() -> Moment {
        Moment::of(wall().as_nanos() as u64, monotonic().as_nanos() as u64)
    }

    fn of(wall_ns: u64, monotonic_ns: u64) -> Moment {
        let start_ns = wall_ns.saturating_sub(monotonic_ns);
        Moment { wall_ns, start_ns: start_ns - start_ns % SECOND_NS }
    }

    fn now_ns(self) -> u64 {
        BEGIN_NS + self.wall_ns - self.start_ns
    }

    /// Returns the time by [`now`] of a packet with this stamp of the kernel. A packet that a step
    /// puts into the future came now.
    pub fn of_stamp(self, stamp_ns: u64) -> u64 {
        self.now_ns() - self.wall_ns.saturating_sub(stamp_ns).min(WAIT_MAX_NS)
    }

    /// Returns how long ago a time by [`now`] was, in nanoseconds.
    pub fn age_of(self, time_ns: u64) -> u64 {
        self.now_ns().saturating_sub(time_ns)
    }

    /// Returns the time by the machine's clock of a time by [`now`].
    pub fn wall_of(self, time_ns: u64) -> u64 {
        self.wall_ns.saturating_sub(self.now_ns().saturating_sub(time_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3600 * SECOND_NS;

    #[test]
    fn a_step_of_the_machines_clock_moves_no_packet() {
        let at = |hours: u64| Moment::of(hours * HOUR_NS + 7, 50 * HOUR_NS);
        let (came_ns, time_ns) = (100 * HOUR_NS + 2, BEGIN_NS + 50 * HOUR_NS + 2);
        assert_eq!(at(100).of_stamp(came_ns), time_ns);
        let back = at(99).of_stamp(came_ns);
        assert_eq!(back, time_ns + 5, "it waits over a step back: it came now");
        assert_eq!(at(99).of_stamp(99 * HOUR_NS + 2), time_ns, "it came after the step");
        let on = at(101).of_stamp(came_ns);
        assert_eq!(on, time_ns + 5 - WAIT_MAX_NS, "it waits over a step on");
        assert_eq!(at(101).of_stamp(101 * HOUR_NS + 2), time_ns);
        assert_eq!(at(101).wall_of(time_ns), 101 * HOUR_NS + 2);
        assert_eq!(at(101).age_of(time_ns), 5);
    }

    /// A unit and the standby that follows it compute with the same times.
    #[test]
    fn a_packet_has_one_time_however_late_it_is_read() {
        let early = Moment::of(100 * HOUR_NS + 7, 50 * HOUR_NS);
        let late = Moment::of(100 * HOUR_NS + SECOND_NS + 70, 50 * HOUR_NS + SECOND_NS + 50);
        let stamp_ns = 100 * HOUR_NS + 1;
        assert_eq!(early.of_stamp(stamp_ns), late.of_stamp(stamp_ns));
    }

    #[test]
    fn the_clock_is_far_from_never_and_goes_on() {
        let first = now();
        assert!(first.as_nanos() as u64 >= BEGIN_NS && now() >= first);
    }
}
