//! A file that is always whole: the old one or the new one, whatever happens in between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// More than any cluster takes: fifty times that of 100,000 endpoints.
pub(super) const LARGEST: u64 = 256 << 20;

/// Makes `folder` unless it is there; for its owner alone, as objects of a cluster are nobody
/// else's business.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Puts what `write` writes in the place of `path`, and returns its size in bytes. It is on the disk
/// before it takes the name, and the name before this returns.
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

/// Takes so many bytes and no more.
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

/// All of `path`; `None` where there is no such file.
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

/// Renames `path`, in the place of what was set aside before, and returns its new name.
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
