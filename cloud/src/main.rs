//! baton-cloud.
fn main() {}
