//! The Unix socket for probes. Only the owner of its file can connect: no peer on a network and no
//! other Pod can use up its connections or its queue.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio::net::{UnixListener, UnixStream};

use crate::serve::listen::retried;
use topo_lb_core::flag::PROBE_SOCKET;

/// The socket's file, once this process has created it. [`remove`](Self::remove) deletes it.
#[derive(Clone, Debug, Default)]
pub struct SocketFile(Arc<OnceLock<PathBuf>>);

impl SocketFile {
    /// Deletes the file if this process created it; a probe then fails at once.
    pub fn remove(self) {
        if let Some(path) = self.0.get() {
            // The next agent replaces a leftover file.
            let _ = fs::remove_file(path);
        }
    }
}

/// Listens at the path and stores it in `file`; retries until that succeeds.
pub(super) async fn bind(path: &Path, file: &SocketFile) -> UnixListener {
    let advice = format!("until then probes fail; {PROBE_SOCKET} chooses another path");
    let listener = retried("", path.display(), &advice, || listen(path)).await;
    let _ = file.0.set(path.to_owned());
    listener
}

async fn listen(path: &Path) -> Result<UnixListener, String> {
    match UnixStream::connect(path).await {
        Ok(_) => return Err("another process listens there".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => clear(path)?,
        Err(error) => return Err(error.to_string()),
    }
    let sentence = |error: std::io::Error| error.to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(sentence)?;
    }
    let listener = UnixListener::bind(path).map_err(sentence)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(sentence)?;
    Ok(listener)
}

/// Removes the socket that an earlier agent left.
fn clear(path: &Path) -> Result<(), String> {
    let kind = fs::symlink_metadata(path).map_err(|error| error.to_string())?.file_type();
    if !kind.is_socket() {
        return Err("something that is no socket is there".to_owned());
    }
    fs::remove_file(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::listen::PAUSE;

    #[tokio::test]
    async fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below").join("probes");
        let first = listen(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listen(&path).await.unwrap_err().contains("another process"));
        drop(first);
        assert!(path.exists(), "it is left");
        listen(&path).await.unwrap();
    }

    #[tokio::test]
    async fn an_agent_that_stops_removes_its_own_socket_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probes");
        let (file, other) = (SocketFile::default(), SocketFile::default());
        let listener = bind(&path, &file).await;
        let late = tokio::time::timeout(PAUSE / 50, bind(&path, &other)).await;
        assert!(late.is_err(), "two agents have one socket");
        other.remove();
        assert!(path.exists(), "the other one's socket is removed");
        file.remove();
        assert!(!path.exists(), "it is left");
        drop(listener);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        assert!(listen(&path).await.unwrap_err().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert!(listen(&path.join("below")).await.is_err());
    }
}
