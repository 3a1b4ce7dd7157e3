//! Measures rounds in which the hypervisor left the processors to this machine. `bench/steal.py`
//! has the same rule.

use std::time::{Duration, Instant};

/// The largest share of processor time that the hypervisor may steal in a round.
const SHARE_MAX: f64 = 0.04;
/// Pause before the next try, because steal usually lasts.
const PAUSE: Duration = Duration::from_secs(2);
/// Limit on the tries of a round; a figure from a disturbed round would measure the hypervisor.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the ticks of all processors, and the ticks that the hypervisor gave to others
/// (proc_stat(5): steal).
fn ticks() -> [u64; 2] {
    let stat = std::fs::read_to_string("/proc/stat").expect("proc is mounted");
    let line = stat.lines().next().expect("the first line is of all processors");
    let spent: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    [spent.iter().sum(), spent[7]]
}

/// Returns the result of a round. It repeats a round with too much stolen time.
pub fn undisturbed<T>(mut round: impl FnMut() -> T) -> T {
    let since = Instant::now();
    loop {
        let before = ticks();
        let result = round();
        let [all, stolen] = std::array::from_fn(|n| ticks()[n] - before[n]);
        let share = stolen as f64 / all.max(1) as f64;
        if share <= SHARE_MAX {
            return result;
        }
        eprintln!(
            "a round is done again: {:.0} % of the processors' time was stolen",
            100.0 * share
        );
        assert!(
            since.elapsed() < PATIENCE,
            "the hypervisor steals in every round: measure when it does not"
        );
        std::thread::sleep(PAUSE);
    }
}
