//! Debian packages by what they are for.

/// Every Debian package that a plan may ask for.
pub(crate) const PACKAGES: &[&str] = &[
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "rust-web-clippy",
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
    "bpftool",
    "iproute2",
    "nftables",
    "iptables",
    "dpkg-dev",
    "python3-pip",
    "buildah",
    "xz-utils",
];

/// Debian's compiler that is recent enough, kept for its browsers, and the sources of `core`.
pub(super) const COMPILER_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// What `bpf-linker` is linked with.
pub(super) const LINKER_PACKAGES: &[&str] =
    &["llvm-22-dev", "libpolly-22-dev", "libzstd-dev", "zlib1g-dev"];

/// The LLVM of [`COMPILER_PACKAGES`] and of [`LINKER_PACKAGES`].
pub(super) const DEBIAN_LLVM: u32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_that_is_asked_for_is_looked_for() {
        let asked = [COMPILER_PACKAGES, LINKER_PACKAGES].concat();
        assert!(asked.iter().all(|name| PACKAGES.contains(name)));
        assert!(PACKAGES.contains(&format!("llvm-{DEBIAN_LLVM}-dev").as_str()));
    }
}
