//! The name by which this program was called: `topo-lb`, or `kubectl topo` as a plugin of kubectl.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// The file name under which kubectl finds this program, for `kubectl topo`
/// (<https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>).
pub const PLUGIN: &str = "kubectl-topo";

const OWN: &str = "topo-lb";

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

/// Parses the command line of this process. Help, or an error, ends the process.
#[must_use]
pub fn parse() -> Cli {
    let matches = command(called()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The commands, with this name in help, examples and errors.
pub(super) fn command(name: &'static str) -> Command {
    let command = Cli::command().bin_name(name);
    let all: Vec<String> = command.get_subcommands().map(|it| it.get_name().to_owned()).collect();
    command.mut_subcommands(|one| {
        let Some(help) = one.get_after_help().map(ToString::to_string) else { return one };
        let help = all.iter().fold(help, |help, subcommand| {
            help.replace(&format!("{OWN} {subcommand}"), &format!("{name} {subcommand}"))
        });
        one.after_help(help)
    })
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

    #[test]
    fn help_and_errors_have_the_name_that_was_called() {
        for (name, other) in [("topo-lb", "kubectl topo"), ("kubectl topo", "topo-lb")] {
            let mut called = command(name);
            called.build();
            for one in called.get_subcommands_mut().filter(|it| it.get_after_help().is_some()) {
                let (subcommand, help) = (one.get_name().to_owned(), one.render_help().to_string());
                assert!(help.contains(&format!("Usage: {name} {subcommand}")), "{help}");
                assert!(help.contains(&format!("Examples:\n  {name} {subcommand}")), "{help}");
                assert!(!help.contains(&format!("{other} {subcommand}")), "{help}");
            }
            let error = command(name).try_get_matches_from(["x", "explain", "--wrong"]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(&format!("Usage: {name} explain")), "{error}");
        }
    }
}
