//! The number of active units. In the real system Go decides it every millisecond
//! (`function/activation.go`). One table of cases tests both.

use std::collections::VecDeque;

/// Keeps the largest number of units that the recent past needed.
#[derive(Clone, Debug)]
pub struct Activation {
    /// Bytes that one unit serves per tick.
    pub unit_bytes: f64,
    /// Ticks over which demand is averaged (the time constant of the moving average).
    pub average_ticks: f64,
    /// Ticks for which a need is remembered.
    pub remember_ticks: usize,
    /// Least number of units.
    pub least: u32,
    /// Largest number of units.
    pub pool: u32,
    demand: f64,
    set: u32,
    needs: VecDeque<u32>,
}

impl Activation {
    /// Starts without known demand.
    pub fn new(
        unit_bytes: f64,
        average_ticks: f64,
        remember_ticks: usize,
        pool: u32,
    ) -> Activation {
        Activation {
            unit_bytes,
            average_ticks,
            remember_ticks,
            least: 1,
            pool,
            demand: 0.0,
            set: 0,
            needs: VecDeque::new(),
        }
    }

    /// Returns the number of units for the next tick. `bytes` is the demand of the last tick.
    /// `active` exceeds the last result if the kernel's rule added units since.
    pub fn tick(&mut self, bytes: u64, active: u32) -> u32 {
        let weight = if self.demand == 0.0 { 1.0 } else { 1.0 / self.average_ticks };
        self.demand += (bytes as f64 - self.demand) * weight;
        let by_demand = (self.demand / self.unit_bytes).ceil() as u32;
        let grown = if active > self.set { active } else { 0 };
        self.needs.push_back(by_demand.max(grown));
        while self.needs.len() > self.remember_ticks {
            self.needs.pop_front();
        }
        self.set = self.needs.iter().copied().max().unwrap_or(0).clamp(self.least, self.pool);
        self.set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_traffic::random::Random;
    use std::fmt::Write;

    /// The table of cases that also tests the Go side. `UPDATE=1 cargo test` rewrites it.
    #[test]
    fn the_table_of_cases_holds() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/activation.csv");
        let (mut random, mut activation) =
            (Random::new(7), Activation::new(125_000.0, 20.0, 5, 20));
        let (mut table, mut units) = (String::from("bytes,accepting,units\n"), 0);
        for tick in 0..400 {
            let level = [20_000, 400_000, 2_000_000, 3_000_000][tick / 50 % 4];
            let bytes = random.below(2 * level);
            let accepting =
                (units + if random.below(6) == 0 { random.below(4) as u32 } else { 0 }).min(20);
            units = activation.tick(bytes, accepting);
            writeln!(table, "{bytes},{accepting},{units}").expect("a string takes all");
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &table).expect("the table can be written");
        }
        assert_eq!(
            std::fs::read_to_string(&path).expect("function/testdata/activation.csv is there"),
            table
        );
    }
}
