//! Set-up, builds, tests and the demo.

fn main() {}
