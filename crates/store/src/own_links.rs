//! Symbolic links that are followed to a file which is written: only those that this user or root made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Number of links that are followed.
const MAX_LINKS: usize = 16;

/// Follows the symbolic links at `path`, not in its directory, to the file that is to be written.
///
/// # Errors
/// A link belongs to neither the user of this process nor root, so another user could choose the file; or there are too
/// many.
pub fn resolve_own_links(path: &Path) -> io::Result<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(found) = path.symlink_metadata() else { return Ok(path) };
        if !found.is_symlink() || is_special(&path) {
            return Ok(path);
        }
        if found.uid() != own && found.uid() != 0 {
            let text = format!("symbolic link {} of user {} is not followed", path.display(), found.uid());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        let target = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "too many symbolic links"))
}

/// Opens `path` with `options`, through links as [`resolve_own_links`].
///
/// # Errors
/// As of [`resolve_own_links`] and of opening the file.
pub fn open_through_own_links(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let path = resolve_own_links(path)?;
    if !is_special(&path) {
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    options.open(path)
}

/// Whether links are the system's, whose text is no path: `/dev/stdout`.
fn is_special(path: &Path) -> bool {
    path.starts_with("/dev") || path.starts_with("/proc")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn own_links_are_followed_and_those_of_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link, second) =
            (folder.path().join("target"), folder.path().join("link"), folder.path().join("second"));
        symlink("target", &link).unwrap();
        symlink(&link, &second).unwrap();
        assert_eq!(resolve_own_links(&second).unwrap(), target);
        let mut options = OpenOptions::new();
        drop(open_through_own_links(options.append(true).create(true), &second).unwrap());
        assert!(target.exists());
        assert!(open_through_own_links(OpenOptions::new().write(true), Path::new("/dev/null")).is_ok());
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(resolve_own_links(&folder.path().join("loop")).is_err());
        // Only root may give a link away.
        if lchown(&link, Some(4242), None).is_ok() {
            let error = open_through_own_links(OpenOptions::new().append(true), &second).unwrap_err();
            assert!(error.to_string().contains("of user 4242 is not followed"), "{error}");
        }
    }
}
