//! The file of a Unix socket.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The file of a socket that this process has bound. It is removed on drop, unless another process has replaced it.
pub struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    /// The file at `path`, which was just bound.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub fn new(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), device_and_inode: device_and_inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|found| found == self.device_and_inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_file_is_removed_unless_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = UnixListener::bind(&path).unwrap();
        let file = SocketFile::new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // The first is still open, so its inode is in use.
        let second = UnixListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
        drop(SocketFile::new(&path).unwrap());
        assert!(!path.exists());
        drop((first, second));
    }
}
