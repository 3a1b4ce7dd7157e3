//! The time limit of a call counts processor time. It ends a function that loops, and not one that
//! waits.

#[path = "../../twins/tests/modules/mod.rs"]
mod modules;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pando_abi::executor::Trap;
use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_wasm::{Function, Limits, Runtime};

use modules::{Built, udp};

/// Counts as many millions as the first byte of a UDP payload, or forever for 0.
const COUNT: &str = r#"
#include <pando_nf.h>

struct state {
	uint32_t packets;
};

static volatile uint32_t sink;

static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet)
{
	const uint32_t millions = ((const uint8_t *)pando_data(packet))[42];
	(void)ctx;
	for (uint32_t n = 0; millions == 0 || n < millions * 1000000; n++)
		sink++;
	return PANDO_PASS;
}

PANDO_FUNCTION("count", struct state, process_packet);
"#;

fn chain(module: &Built) -> Chain<Function> {
    let limits = Limits { fuel_per_packet: u64::MAX, ..Limits::default() };
    let function = Runtime::new(limits, 2).load(&module.wasm, b"").unwrap();
    Chain::new(vec![Stage::new(function, Leases::new(1..=1))], Policy::default())
}

fn fate(chain: &mut Chain<Function>, millions: u8) -> Fate {
    let frame = udp(1, &[millions]);
    let arrivals = [Arrival { frame: &frame, time_ns: 1, outer: false, steered: None }];
    chain.process(&arrivals);
    chain.outputs(&arrivals).next().unwrap().0
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_function_that_loops_is_ended() {
    let module = modules::build("limits-loop", COUNT);
    let mut chain = chain(&module);
    let before = processor_time();
    assert_eq!(fate(&mut chain, 0), Fate::Trapped);
    let used = processor_time() - before;
    assert_eq!(chain.last_traps().next().unwrap(), Some(&Trap::Limit));
    assert!(
        used >= Duration::from_millis(200) && used < Duration::from_millis(600),
        "it ran for {used:?}"
    );
    assert_eq!(fate(&mut chain, 1), Fate::Passed);
}

const STALL: Duration = Duration::from_millis(250);
static STALLS: AtomicU32 = AtomicU32::new(0);

/// Acts like a busy machine: the thread waits longer than a call may run.
extern "C" fn stall(_: libc::c_int) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: STALL.as_nanos() as _ };
    // SAFETY: the time lives during the call, which handlers of signals may make.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
    STALLS.fetch_add(1, Ordering::Relaxed);
}

/// Stalls this thread after every few milliseconds of its processor time.
struct Stalls(libc::timer_t);

impl Stalls {
    fn begin() -> Stalls {
        let few = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let every = libc::itimerspec { it_interval: few, it_value: few };
        // SAFETY: each call reads or writes structures that live as long, for which all zeros are a
        // value; the handler is a function of this program that makes only calls that a handler may
        // make.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stall as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
            let mut event: libc::sigevent = std::mem::zeroed();
            (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, libc::SIGUSR1);
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::mem::zeroed();
            assert_eq!(
                libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer),
                0
            );
            assert_eq!(libc::timer_settime(timer, 0, &every, std::ptr::null_mut()), 0);
            Stalls(timer)
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        // SAFETY: the timer is this one's own.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[test]
fn a_function_that_waits_for_a_processor_is_not() {
    let module = modules::build("limits-stall", COUNT);
    let mut chain = chain(&module);
    let stalls = Stalls::begin();
    let (began, before) = (Instant::now(), processor_time());
    let fate = fate(&mut chain, 60);
    let (took, used) = (began.elapsed(), processor_time() - before);
    drop(stalls);
    assert_eq!(fate, Fate::Passed, "it ran for {used:?} of {took:?}");
    // The time of a call is first checked after a tick, at the latest after the first stall.
    let count = STALLS.load(Ordering::Relaxed);
    assert!(count >= 2 && took >= count * STALL, "{count} stalls: it ran for {used:?} of {took:?}");
}
