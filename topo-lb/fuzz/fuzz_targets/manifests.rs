//! The libFuzzer target.
#![no_main]

#[path = "../manifests.rs"]
mod manifests;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    manifests::one(bytes);
});
