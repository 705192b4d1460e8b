//! The name by which this program was called: `topo-lb`, or `kubectl topo` as a plugin of kubectl.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

/// The file name under which kubectl finds this program, for `kubectl topo`
/// (<https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>).
pub const PLUGIN: &str = "kubectl-topo";

/// The name of the program itself.
pub(crate) const OWN: &str = "topo-lb";

/// What help and errors call this program.
#[must_use]
pub fn called() -> &'static str {
    of(env::args_os().next().as_deref())
}

/// Whether kubectl called this program, or would.
#[must_use]
pub fn is_plugin() -> bool {
    called() != OWN
}

/// The name for an `argv[0]`.
fn of(first: Option<&OsStr>) -> &'static str {
    let file = first.and_then(|path| Path::new(path).file_name());
    if file == Some(OsStr::new(PLUGIN)) { "kubectl topo" } else { OWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_plugin_is_another_name() {
        let of = |text: &str| of(Some(OsStr::new(text)));
        assert_eq!(of("/root/.krew/bin/kubectl-topo"), "kubectl topo");
        assert_eq!(of("kubectl-topo"), "kubectl topo");
        for own in ["/topo-lb", "topo-lb-0.1.0", "kubectl-topology", ""] {
            assert_eq!(of(own), "topo-lb", "{own}");
        }
        assert_eq!(super::of(None), "topo-lb");
    }
}
