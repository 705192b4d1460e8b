//! What the command line takes and refuses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use topo_lb_core::{flag, metrics};

use super::*;

/// The flags of a command and of its subcommands.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?)));
    own.chain(command.get_subcommands().flat_map(flags)).collect()
}

/// The flags that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let begins = text.match_indices("--").map(|(at, _)| &text[at..]);
    let begins = begins.filter(|rest| rest[2..].starts_with(|c: char| c.is_ascii_lowercase()));
    begins.map(|rest| {
        &rest[..rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(rest.len())]
    })
}

#[test]
fn sentences_of_the_agent_name_flags_that_exist() {
    let flags = flags(&Cli::command());
    for name in flag::ALL {
        assert!(flags.contains(*name), "{name}");
    }
    let texts = metrics::declared::ALL.iter().flat_map(|metric| [metric.help, metric.more]);
    for name in texts.flat_map(named) {
        assert!(flags.contains(name), "{name} in docs/metrics.md");
    }
}

/// Calls `each` with every file of Rust in a folder.
fn sources(folder: &Path, each: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, each);
        } else if path.extension().is_some_and(|it| it == "rs") {
            each(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn crates_below_the_command_line_name_flags_by_the_constants() {
    let mut lines = 0;
    for name in ["core", "kernel", "kube", "agent"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src");
        sources(&folder, &mut |path, text| {
            let is_test = path.components().any(|it| it.as_os_str() == "tests");
            let declares = ["core/src/flag.rs", "metrics/declared.rs"];
            if is_test || path.ends_with("tests.rs") || declares.iter().any(|it| path.ends_with(it))
            {
                return;
            }
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines();
            for line in code.filter(|line| !line.trim_start().starts_with("//")) {
                lines += 1;
                // Helm's and kubectl's.
                let flag = named(line).find(|flag| !["--set", "--overwrite"].contains(flag));
                assert_eq!(flag, None, "{}: {line}", path.display());
            }
        });
    }
    assert!(lines > 10_000, "{lines}");
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn connections_that_leave_no_trace_cannot_be_ended() {
    let agent = |peer| {
        let line = ["topo-lb", "agent", "--terminate-tcp", "--tcp-peer", peer];
        match Cli::try_parse_from(line).expect("clap sees nothing").command {
            Command::Agent(args) => args.check(),
            other => panic!("{other:?}"),
        }
    };
    assert!(agent("service").is_ok());
    assert_eq!(agent("endpoint").unwrap_err().exit_code(), 2);
}

#[test]
fn an_agent_that_observes_translates_and_ends_nothing() {
    let agent = |more: &[&str]| {
        let line = [&["topo-lb", "agent", "--observe"], more].concat();
        match Cli::try_parse_from(line).expect("clap sees nothing").command {
            Command::Agent(args) => args.check(),
            other => panic!("{other:?}"),
        }
    };
    assert!(agent(&[]).is_ok());
    for more in
        [&["--kube-proxy-replacement"][..], &["--tc-devices", "veth*"], &["--terminate-tcp"]]
    {
        let error = agent(more).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(more[0]), "{error}");
    }
}

#[test]
fn ten_thousand_namespaces_fit_a_flag_and_a_wrong_one_is_refused() {
    let agent = |names: &str| {
        let line = ["topo-lb", "agent", "--exclude-namespaces", names];
        Cli::try_parse_from(line).map(|cli| match cli.command {
            Command::Agent(args) => args.exclude_namespaces.len(),
            other => panic!("{other:?}"),
        })
    };
    let many: Vec<_> = (0..10_000).map(|at| format!("tenant-{at}")).collect();
    assert_eq!(agent(&many.join(",")).expect("names"), 10_000);
    for wrong in ["a,,b", "Tenant", "a b", ","] {
        assert_eq!(agent(wrong).unwrap_err().exit_code(), 2, "{wrong}");
    }
}

#[test]
fn a_time_without_a_prometheus_is_refused() {
    let plan = |more: &[&str]| {
        let line = [&["topo-lb", "plan", "--from", "x", "--to", "y"], more].concat();
        Cli::try_parse_from(line).map(|_| ())
    };
    assert!(plan(&[]).is_ok());
    assert!(plan(&["--over", "7d", "--prometheus", "http://a"]).is_ok());
    let error = plan(&["--over", "7d"]).unwrap_err().to_string();
    assert!(error.contains("not provided:\n  --prometheus <URL>"), "{error}");
    for flag in ["--over=7d", "--prometheus-token-file=t"] {
        let error = plan(&[flag, "--metrics", "z"]).unwrap_err().to_string();
        assert!(error.contains("cannot be used with '--metrics"), "{error}");
    }
}

#[test]
fn help_says_which_command_follows_manifests() {
    for command in ["agent", "explain", "lint"] {
        let mut cli = Cli::command();
        let help = cli.find_subcommand_mut(command).expect("a command").render_help();
        let help = help.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("other commands read them once"), "{command}: {help}");
    }
}

#[test]
fn only_one_source_can_be_named() {
    let both = ["topo-lb", "explain", "--manifests", "x", "--kubeconfig", "y", "--node", "n"];
    assert!(Cli::try_parse_from(both).is_err());
}
