//! What the command line takes and refuses.

use clap::CommandFactory as _;

use super::*;

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
