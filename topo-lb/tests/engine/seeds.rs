//! The seeds of the fuzzer, tested without the fuzzer, which may not be installed.

use std::path::Path;

#[path = "../../fuzz/manifests.rs"]
mod manifests;

#[test]
fn every_seed_of_the_fuzzer_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let (mut read, mut answered) = (Vec::new(), Vec::new());
    for entry in folder.read_dir().expect("the seeds are there") {
        let path = entry.expect("a folder can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let seed = std::fs::read(&path).expect("a seed can be read");
        if manifests::one(&seed) {
            read.extend(name.clone());
        }
        if manifests::ask(&seed) {
            answered.extend(name);
        }
    }
    read.sort();
    answered.sort();
    assert_eq!(read, ["refined.yaml", "two-claims.json", "weighed.yaml"]);
    assert_eq!(
        answered,
        [
            "query-a.dns",
            "query-aaaa-edns.dns",
            "query-of-the-other-family.dns",
            "query-truncated.dns",
            "query-without-address.dns",
            "two-in-a-stream.dns",
        ]
    );
}
