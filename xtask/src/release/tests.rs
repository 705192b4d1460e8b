//! Releases of a few small files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use clap::Parser as _;
use serde_json::Value;

use super::*;
use crate::process::output_of;

#[test]
fn a_release_replaces_a_release_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (room, output) = (folder.path().join("room"), folder.path().join("dist"));
    fs::create_dir(&room).unwrap();
    for round in ["first", "second"] {
        let made = room.join(round);
        fs::create_dir(&made).unwrap();
        fs::write(made.join(SUMS), round).unwrap();
        replaceable(&output).unwrap();
        publish(&made, &output).unwrap();
        assert_eq!(fs::read_to_string(output.join(SUMS)).unwrap(), round);
    }
    fs::remove_file(output.join(SUMS)).unwrap();
    replaceable(&output).unwrap();
    fs::write(output.join("letters"), "").unwrap();
    let error = replaceable(&output).unwrap_err().to_string();
    assert!(error.contains("left alone") && output.join("letters").exists(), "{error}");
}

/// A folder with a release of two files.
fn of_two_files(workspace: &Workspace) -> (tempfile::TempDir, Release<'_>) {
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().join("dist");
    fs::create_dir(&folder).unwrap();
    for name in ["a.tar.gz", "b.yaml"] {
        fs::write(folder.join(name), format!("the bytes of {name}")).unwrap();
    }
    (room, Release { workspace, folder, time: 7 })
}

#[test]
fn the_provenance_is_of_every_file_and_the_sums_are_those_of_sha256sum() {
    let workspace = Workspace::find().unwrap();
    let (_room, release) = of_two_files(&workspace);
    let commit = "0123456789012345678901234567890123456789";
    let source = Source { commit: Some(commit.to_owned()), why_no_commit: "", time: 7 };
    let before = release.digests().unwrap();
    provenance::write(&release, &source).unwrap();
    release.sums().unwrap();

    let statement = release.place(&format!("topo-lb-{VERSION}.intoto.json"));
    let statement: Value = serde_json::from_str(&fs::read_to_string(statement).unwrap()).unwrap();
    let pair = |subject: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&subject["name"]), text(&subject["digest"]["sha256"]))
    };
    let subjects: Vec<_> = statement["subject"].as_array().unwrap().iter().map(pair).collect();
    assert_eq!(subjects, before);
    let made_of = &statement["predicate"]["buildDefinition"]["resolvedDependencies"];
    assert_eq!(made_of[0]["digest"]["gitCommit"], commit);

    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", SUMS]).current_dir(&release.folder);
    let said = output_of(&mut check).expect("sha256sum finds them right");
    assert_eq!(said, format!("a.tar.gz: OK\nb.yaml: OK\ntopo-lb-{VERSION}.intoto.json: OK\n"));
    fs::write(release.place("b.yaml"), "other bytes").unwrap();
    assert_eq!(output_of(&mut check), None, "a changed file is found");
}

#[test]
fn cosign_is_asked_to_sign_the_sums_with_the_key() {
    let workspace = Workspace::find().unwrap();
    let (room, release) = of_two_files(&workspace);
    release.sums().unwrap();
    let cosign = room.path().join("cosign");
    // It signs by writing down what it was asked.
    let script = r#"#!/bin/sh
while [ "$1" != --bundle ]; do asked="$asked $1"; shift; done
echo "asked:$asked" | cat - "$3" > "$2"
"#;
    fs::write(&cosign, script).unwrap();
    fs::set_permissions(&cosign, Permissions::from_mode(0o755)).unwrap();
    release.sign(&cosign, "env://A_KEY").unwrap();
    let bundle = fs::read_to_string(release.place(&format!("{SUMS}.cosign.json"))).unwrap();
    let sums = fs::read_to_string(release.place(SUMS)).unwrap();
    assert_eq!(bundle, format!("asked: sign-blob --yes --key env://A_KEY\n{sums}"));

    fs::write(&cosign, "#!/bin/sh\necho wrong password\nexit 1\n").unwrap();
    assert!(release.sign(&cosign, "env://A_KEY").is_err());
}

#[test]
fn the_chart_is_packed_without_what_helm_ignores() {
    let workspace = Workspace::find().unwrap();
    let (_room, release) = of_two_files(&workspace);
    release.chart().unwrap();
    let mut list = Command::new("tar");
    list.arg("-tzf").arg(release.place(&format!("topo-lb-{VERSION}.tgz")));
    let said = output_of(&mut list).unwrap();
    for wanted in
        ["Chart.yaml", "values.schema.json", "templates/daemonset.yaml", "files/crds.yaml"]
    {
        assert!(said.contains(&format!("topo-lb/{wanted}\n")), "{wanted}: {said}");
    }
    assert!(!said.contains("topo-lb/ci/"), "{said}");
    assert_eq!(ignored("# Words.\n\nci/\n.git\n").unwrap(), ["ci", ".git"]);
    for pattern in ["*.tmp", "a/b", "!ci"] {
        assert!(ignored(pattern).unwrap_err().to_string().contains(pattern));
    }
}

/// A command line with only this command.
#[derive(clap::Parser)]
struct Line {
    #[command(subcommand)]
    command: One,
}

#[derive(clap::Subcommand)]
enum One {
    Release(Args),
}

#[test]
fn the_workflow_runs_the_commands_of_the_documentation_and_makes_nothing_by_itself() {
    let root = Workspace::find().unwrap().root;
    let text = fs::read_to_string(root.join(".github/workflows/release.yml")).unwrap();
    let workflow: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(workflow["on"], serde_json::json!({"push": {"tags": ["v*"]}}));
    let steps = workflow["jobs"]["release"]["steps"].as_array().unwrap();
    let runs = steps.iter().filter_map(|step| step["run"].as_str());
    let commands: Vec<&str> = runs.flat_map(str::lines).collect();
    let (ours, others): (Vec<&str>, Vec<&str>) =
        commands.into_iter().partition(|command| command.starts_with("cargo "));

    let [ours] = ours[..] else { panic!("one command makes a release: {ours:?}") };
    let (fixed, choice) = ours.split_once(" ${{ ").unwrap();
    assert_eq!(fixed, "cargo xtask release");
    // What the choice is between, in quotes.
    let signed = choice.split('\'').find(|it| it.starts_with("--sign-key")).unwrap();
    for words in [fixed.to_owned(), format!("{fixed} {signed}")] {
        let One::Release(args) = Line::try_parse_from(words.split(' ').skip(1)).unwrap().command;
        assert_eq!(
            args.sign_key.as_deref(),
            signed.split(' ').nth(1).filter(|_| words.contains(signed))
        );
        assert!(!args.allow_dirty && args.arch.is_empty() && args.output == Path::new("dist"));
    }

    let programs = ["apt-get", "curl", "echo", "git", "grep", "cd dist && sha256sum", "gh release"];
    for command in others {
        assert!(programs.iter().any(|program| command.starts_with(program)), "{command}");
    }
}

#[test]
fn what_a_killed_release_left_goes_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let own = format!("{DRAFT}{}-a", std::process::id());
    for name in [&*own, ".release-4194304-b", ".release-notes", "dist"] {
        fs::create_dir_all(folder.path().join(name).join("below")).unwrap();
    }
    sweep(folder.path()).unwrap();
    let left = crate::debian::entries(folder.path()).unwrap();
    let mut left: Vec<_> = left.iter().filter_map(|it| it.file_name()?.to_str()).collect();
    left.sort_unstable();
    assert_eq!(left, [&*own, ".release-notes", "dist"]);
}
