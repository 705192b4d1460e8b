//! The shared libraries of a program, as this machine's dynamic linker finds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, Dynamic, SectionData};
use object::elf::DT_NEEDED;

use crate::debian::entries;
use crate::process::{display, output_of};

/// The shared libraries that a program links, directly or through other libraries.
///
/// # Errors
/// ldd(1) rejects the program, or a library is not on this machine.
pub(crate) fn of(program: &Path) -> Result<Vec<PathBuf>> {
    let said = output_of(Command::new("ldd").arg(program))
        .with_context(|| format!("`ldd {}` failed", program.display()))?;
    read(&said).with_context(|| format!("{} does not run here", program.display()))
}

/// The shared libraries of a program of another system, whose packages are unpacked below `root`,
/// and its dynamic linker.
///
/// # Errors
/// A library is not there.
pub(crate) fn below(root: &Path, program: &Path) -> Result<Vec<PathBuf>> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["lib", "usr/lib"].map(|place| root.join(place).join(&triplet));
    let linker = entries(&folders[0])?.into_iter().find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    });
    let linker = linker.with_context(|| format!("no dynamic linker below {}", root.display()))?;
    let mut list = Command::new(&linker);
    list.arg("--library-path").arg(std::env::join_paths(&folders)?).arg("--list").arg(program);
    let said = output_of(&mut list).with_context(|| format!("`{}` failed", display(&list)))?;
    read(&said).with_context(|| format!("below {}", root.display()))
}

/// The names of the shared libraries and of the dynamic linker that a program or library names.
pub(crate) fn needed(program: &[u8]) -> Result<Vec<String>> {
    let program = Builder::read(program).context("it is no ELF program")?;
    let mut names = Vec::new();
    for section in &program.sections {
        match &section.data {
            SectionData::Dynamic(entries) => {
                names.extend(entries.iter().filter_map(|it| match it {
                    Dynamic::String { tag, val } if *tag == DT_NEEDED => Some(text(val)),
                    _ => None,
                }))
            }
            SectionData::Data(path) if section.name[..] == *b".interp" => {
                let path = text(path);
                let path = path.trim_end_matches('\0');
                names.extend(path.rsplit('/').next().map(str::to_owned));
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Whether an ELF program has a section of this name that is not empty.
pub(crate) fn has_section(program: &[u8], name: &[u8]) -> Result<bool> {
    let program = Builder::read(program).context("it is no ELF program")?;
    let mut sections = program.sections.iter();
    Ok(sections.any(|it| {
        it.name[..] == *name && matches!(&it.data, SectionData::Data(it) if !it.is_empty())
    }))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Parses `ldd`: `libc.so.6 => /lib/libc.so.6 (0x…)`, or only the path; none for the kernel's own.
fn read(said: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in said.lines() {
        let (name, file) = line.trim().split_once(" => ").unwrap_or(("", line.trim()));
        // A path may contain blanks; the address is the last word.
        let path = file.rsplit_once(" (").map_or(file, |(path, _)| path);
        if path.starts_with('/') {
            found.push(path.into());
        } else if !name.is_empty() {
            bail!("its library {name} is not installed");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn libraries_are_those_with_a_file() {
        let said = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x00007f84)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f84)\n";
        let expected = ["/lib/x86_64-linux-gnu/libelf.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(read(said).unwrap(), expected.map(PathBuf::from));
        assert!(read("\tstatically linked\n").unwrap().is_empty());
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = read("\tlibmnl.so.0 => not found\n").unwrap_err().to_string();
        assert!(error.contains("libmnl.so.0"), "{error}");
    }

    #[test]
    fn a_program_names_its_libraries_and_its_linker() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = needed(&program).unwrap();
        assert!(names.contains(&"libc.so.6".to_owned()), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
    }
}
