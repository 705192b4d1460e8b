//! The command line with the name by which this program was called.

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::Cli;
use crate::called::OWN;
pub use crate::called::{PLUGIN, called, is_plugin};

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
