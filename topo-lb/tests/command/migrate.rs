//! The command `topo-lb migrate`: standard input, files, output, exit code.

use crate::explain_golden::golden;
use crate::run::{run, text};

/// A Service that changes, with a comment.
const POOL: &str = "\
# Ours.
apiVersion: v1
kind: Service
metadata:
  name: pool
  annotations:
    openyurt.io/topologyKeys: kubernetes.io/hostname
spec:
  ports:
  - port: 80
";

/// A Service that stays.
const PLAIN: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: plain
spec:
  ports:
  - port: 80
";

#[test]
fn standard_input_is_read_and_only_what_changes_is_printed() {
    for arguments in [&["migrate"][..], &["migrate", "-"]] {
        let done = run(arguments, &format!("{POOL}---\n{PLAIN}"));
        let (printed, said) = (text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.code(), Some(0), "{said}");
        assert!(
            printed.contains("topo-lb.io/topology-keys: \"kubernetes.io/hostname\""),
            "{printed}"
        );
        assert!(printed.starts_with("---\n# Ours.") && !printed.contains("plain"), "{printed}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("topo-lb: ") && said.contains("pool"), "{said}");
    }
}

#[test]
fn files_are_read_in_order_and_all_makes_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("plain.yaml"), PLAIN).unwrap();
    std::fs::write(path("pool.yaml"), POOL).unwrap();
    let changed = run(&["migrate", &path("plain.yaml"), &path("pool.yaml")], "");
    assert!(text(&changed.stdout).starts_with("---\n# Ours."), "{}", text(&changed.stdout));

    let whole = run(&["migrate", "--all", &path("plain.yaml"), &path("pool.yaml")], "");
    let expected = PLAIN.to_owned() + text(&changed.stdout);
    assert_eq!(text(&whole.stdout), expected, "a separator stands between files");
    // What it prints needs no change any more.
    let again = run(&["migrate"], text(&whole.stdout));
    assert_eq!(
        (again.status.code(), text(&again.stdout)),
        (Some(0), ""),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(std::fs::read_to_string(path("pool.yaml")).unwrap(), POOL, "no file is changed");
}

/// Where OpenYurt's users are now: with its annotation, or with pools as zones.
#[test]
fn services_of_openyurt_change_as_they_always_did() {
    let services = include_str!("../golden/openyurt.yaml");
    let mut wrong = Vec::new();
    for (name, flags) in
        [("openyurt-annotation", &[][..]), ("openyurt-zones", &["--zones-are-pools"])]
    {
        let done = run(&[&["migrate", "--all"], flags].concat(), services);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        wrong.extend(golden(&format!("{name}.yaml"), text(&done.stdout)).err());
        wrong.extend(golden(&format!("{name}.txt"), text(&done.stderr)).err());
        // Nothing is left to do, but for what cannot be done.
        let again = run(&[&["migrate"], flags].concat(), text(&done.stdout));
        assert_eq!(text(&again.stdout), "");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_cannot_be_read_ends_with_1_and_names_the_file() {
    let absent = run(&["migrate", "/no/such/file.yaml"], "");
    assert_eq!(absent.status.code(), Some(1));
    assert!(
        text(&absent.stderr).contains("cannot read /no/such/file.yaml"),
        "{}",
        text(&absent.stderr)
    );

    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.yaml").display().to_string();
    std::fs::write(&template, "metadata:\n  name: {{ .Release.Name }}\n").unwrap();
    let wrong = run(&["migrate", &template], "");
    assert_eq!((wrong.status.code(), text(&wrong.stdout)), (Some(1), ""));
    let said = text(&wrong.stderr);
    assert!(said.contains(&template) && said.contains("helm template"), "{said}");
    assert_eq!(run(&["migrate", "--wrong"], "").status.code(), Some(2));
}
