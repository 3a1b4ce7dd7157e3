//! The unit: one core-bound executor of network functions.
fn main() {}
