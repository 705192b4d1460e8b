//! What the fuzzer begins from, without the fuzzer: it may not be installed.

use std::path::Path;

#[path = "../../fuzz/manifests.rs"]
mod manifests;

#[test]
fn every_seed_of_the_fuzzer_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let mut seeds = 0;
    for entry in folder.read_dir().expect("the seeds are there") {
        let path = entry.expect("a folder can be read").path();
        manifests::one(&std::fs::read(&path).expect("a seed can be read"));
        seeds += 1;
    }
    assert!(seeds > 0, "no seed in {}", folder.display());
}
