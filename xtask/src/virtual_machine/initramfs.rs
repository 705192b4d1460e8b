//! The archive that a kernel unpacks as its first file system: cpio's "new ASCII" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use cpio::newc;

/// Kinds of entries, as in `st_mode` (inode(7)).
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive during writing. Its names have no leading slash.
#[derive(Debug, Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Initramfs {
    /// Adds a folder, with its parents.
    pub(super) fn folder(&mut self, path: &Path) -> Result<()> {
        self.entry(path, FOLDER | 0o755, (0, 0), &[])
    }

    /// Adds an executable file, with its parent folders.
    pub(super) fn file(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        self.entry(path, FILE | 0o755, (0, 0), content)
    }

    /// Adds a character device, with its parent folders.
    pub(super) fn device(&mut self, path: &Path, major: u32, minor: u32) -> Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        Ok(newc::trailer(self.bytes)?)
    }

    /// Does nothing for the root and for a name that exists.
    fn entry(&mut self, path: &Path, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let name = path.to_string_lossy().trim_start_matches('/').to_owned();
        if name.is_empty() || self.names.contains(&name) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        self.names.insert(name.clone());
        let header = newc::Builder::new(&name)
            .ino(u32::try_from(self.names.len())?)
            .mode(mode)
            .nlink(1)
            .rdev_major(device.0)
            .rdev_minor(device.1);
        let mut entry = header.write(&mut self.bytes, u32::try_from(content.len())?);
        entry.write_all(content)?;
        entry.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_goes_in_comes_out_with_the_folders_above_once() {
        let mut archive = Initramfs::default();
        archive.file(Path::new("/init"), b"abcde").unwrap();
        archive.file(Path::new("/lib/modules/veth.ko"), b"").unwrap();
        archive.file(Path::new("/lib/libc.so.6"), b"xyz").unwrap();
        archive.device(Path::new("/dev/console"), 5, 1).unwrap();
        let bytes = archive.finish().unwrap();
        let mut rest = &bytes[..];
        let mut found = Vec::new();
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            let mut body = String::new();
            reader.read_to_string(&mut body).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                break;
            }
            let device = (entry.rdev_major(), entry.rdev_minor());
            found.push(format!("{} {:o} {device:?} {body}", entry.name(), entry.mode()));
            rest = reader.finish().unwrap();
        }
        let expected = [
            "init 100755 (0, 0) abcde",
            "lib 40755 (0, 0) ",
            "lib/modules 40755 (0, 0) ",
            "lib/modules/veth.ko 100755 (0, 0) ",
            "lib/libc.so.6 100755 (0, 0) xyz",
            "dev 40755 (0, 0) ",
            "dev/console 20600 (5, 1) ",
        ];
        assert_eq!(found, expected);
    }
}
