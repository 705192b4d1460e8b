//! Replaces a file in one step: after a crash it is the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Fifty times the size for 100,000 endpoints.
pub(super) const LARGEST: u64 = 256 << 20;

/// Creates `folder` if missing. Only its owner has access, to protect the cluster's objects.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Replaces `path` with the output of `write`, and returns the size in bytes. The file is on the
/// disk before it takes the name, and the name is before this returns.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let new = beside(path, "new");
    let written = write_new(&new, write);
    if written.is_err() {
        let _ = fs::remove_file(&new);
        return written;
    }
    fs::rename(&new, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    written
}

fn write_new(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut out = BufWriter::with_capacity(64 << 10, Bounded { file, room: LARGEST });
    write(&mut out)?;
    let bounded = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    bounded.file.sync_all()?;
    Ok(LARGEST - bounded.room)
}

/// A file that accepts at most `room` more bytes.
struct Bounded {
    file: File,
    room: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room < bytes.len() as u64 {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it would be larger than {} MiB", LARGEST >> 20),
            ));
        }
        let written = self.file.write(bytes)?;
        self.room -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The content of `path`; `None` if the file does not exist.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    if size > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", LARGEST >> 20),
        ));
    }
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(LARGEST).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Renames `path`, replacing a file that was set aside earlier. Returns the new name.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = beside(path, "set-aside");
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}
