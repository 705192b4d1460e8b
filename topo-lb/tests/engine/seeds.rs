//! The seeds of the fuzzer, tested without the fuzzer, which may not be installed.

use std::path::Path;

#[path = "../../fuzz/manifests.rs"]
mod manifests;

#[test]
fn every_seed_of_the_fuzzer_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let mut read = Vec::new();
    for entry in folder.read_dir().expect("the seeds are there") {
        let path = entry.expect("a folder can be read").path();
        if manifests::one(&std::fs::read(&path).expect("a seed can be read")) {
            read.extend(path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    read.sort();
    assert_eq!(read, ["refined.yaml", "two-claims.json", "weighed.yaml"]);
}
