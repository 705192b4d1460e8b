//! The archive that a kernel unpacks into its first file system: cpio's "new ASCII" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::path::Path;

/// Kinds of entries, as in `st_mode` (inode(7)).
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive in the making. Its names have no leading slash.
#[derive(Debug, Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Initramfs {
    /// A folder, and those above.
    pub(super) fn folder(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(path, FOLDER | 0o755, (0, 0), &[]);
    }

    /// A file that anybody may execute, with the folders above.
    pub(super) fn file(&mut self, path: &Path, content: &[u8]) {
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(path, FILE | 0o755, (0, 0), content);
    }

    /// A character device, with the folders above.
    pub(super) fn device(&mut self, path: &Path, major: u32, minor: u32) {
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// The whole of it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, (0, 0), &[]);
        self.bytes
    }

    /// Nothing where that name is taken, and for the root itself.
    fn entry(&mut self, path: &Path, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        let name = path.to_string_lossy().trim_start_matches('/').to_owned();
        if name.is_empty() || !self.names.insert(name.clone()) {
            return;
        }
        let number = self.names.len();
        let fields = [
            number as u64,
            mode.into(),
            0, // owner
            0, // group
            1, // links
            0, // time
            content.len() as u64,
            0, // the device that it lies on
            0,
            major.into(),
            minor.into(),
            name.len() as u64 + 1,
            0, // checksum
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line for every entry, as a kernel reads them: name, mode, device, content.
    fn read(mut archive: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            assert_eq!(&archive[..6], b"070701");
            let field = |number: usize| {
                let text = std::str::from_utf8(&archive[6 + 8 * number..][..8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (size, name) = (field(6) as usize, field(11) as usize);
            let content = (110 + name).next_multiple_of(4);
            let text = std::str::from_utf8(&archive[110..110 + name - 1]).unwrap();
            assert_eq!(archive[110 + name - 1], 0);
            if text == "TRAILER!!!" {
                return found;
            }
            let body = std::str::from_utf8(&archive[content..content + size]).unwrap();
            found.push(format!("{text} {:o} {}:{} {body}", field(1), field(9), field(10)));
            archive = &archive[(content + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn what_goes_in_comes_out_with_the_folders_above_once() {
        let mut archive = Initramfs::default();
        archive.file(Path::new("/init"), b"abcde");
        archive.file(Path::new("/lib/modules/veth.ko"), b"");
        archive.file(Path::new("/lib/libc.so.6"), b"xyz");
        archive.device(Path::new("/dev/console"), 5, 1);
        let expected = [
            "init 100755 0:0 abcde",
            "lib 40755 0:0 ",
            "lib/modules 40755 0:0 ",
            "lib/modules/veth.ko 100755 0:0 ",
            "lib/libc.so.6 100755 0:0 xyz",
            "dev 40755 0:0 ",
            "dev/console 20600 5:1 ",
        ];
        assert_eq!(read(&archive.finish()), expected);
    }
}
