//! The manifest of the plugin `kubectl topo` for krew: the template in deploy/krew, filled in.

use std::path::PathBuf;

use anyhow::Result;
use fs_err as fs;

use super::{Release, archive_name};
use crate::architecture::Architecture;
use crate::archive::digest;
use crate::image::VERSION;

/// Writes it, if there is an archive for each platform of the template.
pub(super) fn write(release: &Release<'_>, programs: &[(Architecture, PathBuf)]) -> Result<()> {
    if programs.len() < Architecture::ALL.len() {
        return Ok(());
    }
    let template = fs::read_to_string(release.workspace.root.join("deploy/krew/topo.yaml"))?;
    let sums = programs.iter().map(|(architecture, _)| {
        let archive = release.place(&format!("{}.tar.gz", archive_name(*architecture)));
        Ok((*architecture, digest(&archive)?))
    });
    let text = filled(&template, &sums.collect::<Result<Vec<_>>>()?);
    Ok(fs::write(release.place("topo.yaml"), text)?)
}

/// The template without the comment on how it is filled in.
fn filled(template: &str, sums: &[(Architecture, String)]) -> String {
    let lines = template.lines().skip_while(|line| line.starts_with('#'));
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text = text.replace("@VERSION@", VERSION);
    for (architecture, sum) in sums {
        text = text.replace(&format!("@SHA256_{}@", architecture.name().to_uppercase()), sum);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_placeholder_of_the_template_is_filled_in() {
        let path = Workspace::find().unwrap().root.join("deploy/krew/topo.yaml");
        let sums = Architecture::ALL.map(|it| (it, format!("sum of {}", it.name())));
        let text = filled(&fs::read_to_string(path).unwrap(), &sums);
        assert!(!text.contains('@') && text.starts_with("apiVersion:"), "{text}");
        for architecture in Architecture::ALL {
            let uri = format!("releases/v{VERSION}/{}.tar.gz\n", archive_name(architecture));
            let sum = format!("sha256: \"sum of {}\"", architecture.name());
            assert!(text.contains(&uri) && text.contains(&sum), "{text}");
        }
    }
}
