//! The files to read, and whether any of them changed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::FileError;

/// `path` itself, or the manifests in that folder, sorted by name.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => FileError::Missing(path.to_owned()),
        _ => FileError::Unreadable { path: path.to_owned(), source },
    };
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_manifest = entry.file_name().to_str().is_some_and(is_manifest);
        if is_manifest && !entry.path().is_dir() {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Not hidden files (a ConfigMap's `..data`, vim's `.x.yaml.swp`, Emacs' `.#x.yaml`) or backups
/// (`x.yaml~`, `#x.yaml#`).
fn is_manifest(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json")) && !name.starts_with(['.', '#'])
}

/// Metadata that shows a change of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    /// Time of the last change to content or name, since 1970.
    changed: Duration,
}

impl Look {
    fn at(path: PathBuf) -> Result<Self, FileError> {
        let data = match fs::metadata(&path) {
            Ok(data) => data,
            Err(source) => return Err(FileError::Unreadable { path, source }),
        };
        let time = |seconds: i64, nanos: i64| {
            let nanos = u32::try_from(nanos).unwrap_or_default();
            Duration::new(u64::try_from(seconds).unwrap_or_default(), nanos)
        };
        let modified = time(data.mtime(), data.mtime_nsec());
        let changed = modified.max(time(data.ctime(), data.ctime_nsec()));
        Ok(Self { path, device: data.dev(), inode: data.ino(), size: data.size(), changed })
    }
}

/// Metadata of all files, and of `path` itself, because a folder may be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looks {
    device: u64,
    inode: u64,
    files: Vec<Look>,
}

impl Looks {
    pub(super) fn at(path: &Path) -> Result<Self, FileError> {
        let looks = files(path)?.into_iter().map(Look::at).collect::<Result<Vec<_>, _>>()?;
        let Look { device, inode, .. } = Look::at(path.to_owned())?;
        Ok(Self { device, inode, files: looks })
    }

    /// Whether all files are unchanged for `quiet` or longer.
    pub(super) fn rested(&self, quiet: Duration) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.files.iter().all(|look| now.checked_sub(look.changed).is_some_and(|age| age >= quiet))
    }

    /// Whether one of the files has the file name of `path`.
    pub(super) fn names(&self, path: &Path) -> bool {
        self.files.iter().any(|look| look.path.file_name() == path.file_name())
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|look| look.path.as_path())
    }
}

/// A folder to watch, with its inode, because another folder may replace it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    device: u64,
    inode: u64,
}

/// Every folder where a change can change what `path` leads to: the folder itself or the file's
/// folder, and the folders of links on the way, as in a ConfigMap's mount.
pub(super) fn folders(path: &Path) -> BTreeSet<Folder> {
    let mut folders = BTreeSet::new();
    add_links(path, &mut folders);
    if path.is_dir() {
        add(path, &mut folders);
    } else {
        add(parent(path), &mut folders);
    }
    for file in files(path).unwrap_or_default() {
        add_links(&file, &mut folders);
    }
    folders
}

/// Adds the folders of the links on the way to `path`, and the folder of the last link's target.
fn add_links(path: &Path, folders: &mut BTreeSet<Folder>) {
    /// Linux's limit.
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        // The folder may be a link too: a ConfigMap's files are links into its `..data`.
        let holder = parent(&path).to_owned();
        if let Ok(target) = fs::read_link(&holder) {
            add(parent(&holder), folders);
            add(&parent(&holder).join(target), folders);
        }
        let Ok(target) = fs::read_link(&path) else {
            return;
        };
        add(&holder, folders);
        path = holder.join(target);
        add(parent(&path), folders);
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// Adds a folder by its canonical path.
fn add(path: &Path, folders: &mut BTreeSet<Folder>) {
    let found = fs::canonicalize(path).and_then(|path| Ok((fs::metadata(&path)?, path)));
    if let Ok((data, path)) = found
        && data.is_dir()
    {
        folders.insert(Folder { path, device: data.dev(), inode: data.ino() });
    }
}
