//! What a maintainer does by hand: what needs a decision, a key, or an account.

use serde::Serialize;

use super::archive_name;
use super::written::{IMAGE, Place, Subject};
use crate::architecture::Architecture;
use crate::image::VERSION;
use crate::workspace::PLACE;

/// Something that nobody else can do.
#[derive(Debug, Serialize)]
pub(crate) struct Task {
    pub(crate) what: String,
    /// What to type, in this order; words in capitals stand for what was decided.
    pub(crate) commands: Vec<String>,
    /// The page or file that describes it.
    pub(crate) described: &'static str,
    /// `FILE:LINE,LINE` of what changes with it.
    pub(crate) places: Vec<String>,
}

/// All of them, in order. What is decided has no places any more, and is left out.
pub(crate) fn tasks(places: &[Place], commit: Option<&str>) -> Vec<Task> {
    let of = |subject| by_file(places.iter().filter(|place| place.subject == subject));
    let task = |what: &str, commands: &[String], described| Task {
        what: what.to_owned(),
        commands: commands.to_vec(),
        described,
        places: Vec::new(),
    };
    let (tag, commit) = (format!("v{VERSION}"), commit.unwrap_or("COMMIT"));
    let archive = format!("dist/{}.tar.gz", archive_name(Architecture::X86_64));
    let replace =
        |from: &str, to: &str| format!("git grep -lF '{from}' | xargs sed -i 's#{from}#{to}#g'");
    let mut tasks = vec![
        Task {
            places: of(Subject::Repository),
            ..task(
                "decide where the repository is, and say it everywhere",
                &[replace(PLACE, "https://FORGE/OWNER/topo-lb")],
                "docs/releases.md#by-hand",
            )
        },
        Task {
            places: of(Subject::Registry),
            ..task(
                "decide where the image is; until then each user names a registry",
                &[replace(IMAGE, "REGISTRY/topo-lb")],
                "docs/releases.md#install",
            )
        },
        Task {
            places: of(Subject::Contact),
            ..task("turn on private reports of weaknesses", &[], "SECURITY.md")
        },
    ];
    tasks.retain(|task| !task.places.is_empty());
    tasks.extend([
        task(
            "make the keys once, publish cosign.pub, keep cosign.key and its password as the secrets \
             COSIGN_PRIVATE_KEY and COSIGN_PASSWORD of the workflow, and set its variable SIGN=true",
            &["cosign generate-key-pair".to_owned()],
            "docs/releases.md#verify",
        ),
        task(
            "tag the commit: the workflow then makes the release, and a page of it as a draft",
            &[
                format!("git tag --sign {tag} --message 'topo-lb {VERSION}' {commit}"),
                format!("git push origin {tag}"),
            ],
            ".github/workflows/release.yml",
        ),
        task(
            "or make and sign the same files here",
            &["cargo xtask release --sign-key cosign.key".to_owned()],
            "docs/releases.md#make-one",
        ),
        task(
            "push the image, of both architectures",
            &[format!(
                "skopeo copy --all oci-archive:dist/topo-lb-{VERSION}-oci.tar docker://REGISTRY/topo-lb:{VERSION}"
            )],
            "docs/releases.md#install",
        ),
        task(
            "push the chart",
            &[format!("helm push dist/topo-lb-{VERSION}.tgz oci://REGISTRY/charts")],
            "docs/releases.md#install",
        ),
        task(
            "announce: fill in the draft by this version's section of CHANGELOG.md, and publish it",
            &[format!("gh release edit {tag} --notes-file NOTES --draft=false")],
            "CHANGELOG.md",
        ),
        task(
            "try the plugin, then offer dist/topo.yaml as plugins/topo.yaml to kubernetes-sigs/krew-index",
            &[format!("kubectl krew install --manifest=dist/topo.yaml --archive={archive}")],
            "deploy/krew/topo.yaml",
        ),
    ]);
    tasks
}

/// `FILE:LINE,LINE`, of places that are sorted by file.
fn by_file<'a>(places: impl Iterator<Item = &'a Place>) -> Vec<String> {
    let mut files: Vec<(&str, String)> = Vec::new();
    for place in places {
        match files.last_mut() {
            Some((path, lines)) if *path == place.path => *lines += &format!(",{}", place.line),
            _ => files.push((&place.path, place.line.to_string())),
        }
    }
    files.into_iter().map(|(path, lines)| format!("{path}:{lines}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_is_left_out_and_the_rest_is_exact() {
        let place = |subject, path: &str, line| Place { subject, path: path.to_owned(), line };
        let places = [
            place(Subject::Repository, "README.md", 3),
            place(Subject::Repository, "README.md", 7),
            place(Subject::Repository, "docs/a.md", 1),
        ];
        let all = tasks(&places, Some("0123"));
        assert_eq!(all[0].places, ["README.md:3,7", "docs/a.md:1"]);
        assert_eq!(all.len(), tasks(&[], None).len() + 1);
        let commands: Vec<_> = all.iter().flat_map(|task| &task.commands).collect();
        let tag = format!("git tag --sign v{VERSION} --message 'topo-lb {VERSION}' 0123");
        assert!(commands.contains(&&tag), "{commands:#?}");
    }
}
