//! Finds the eBPF object that is compiled into the agent.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=TOPO_LB_EBPF_OBJECT");
    let object = match env::var_os("TOPO_LB_EBPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        // Read at run time: the build script may have been compiled in another checkout.
        None => PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
            .join("../../target/bpf/topo-lb.o"),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    match object.canonicalize() {
        Ok(path) => println!("cargo::rustc-env=TOPO_LB_OBJECT={}", path.display()),
        Err(error) => println!(
            "cargo::error=the eBPF object {} cannot be read ({error}): run `cargo xtask \
             build-ebpf` first, or name another one in TOPO_LB_EBPF_OBJECT",
            object.display()
        ),
    }
}
