use super::*;

#[test]
fn what_a_listing_does_not_tell_is_asked_of_the_entry_itself() {
    let at = tempfile::tempdir().unwrap();
    std::fs::create_dir(at.path().join("dir")).unwrap();
    std::fs::write(at.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("dir", at.path().join("link")).unwrap();
    let dir = File::open(at.path()).unwrap();
    let untold = |name: &str| kind_in_listing(dir.as_fd(), OsStr::new(name), fs::FileType::Unknown).unwrap();
    assert_eq!(untold("dir"), Some(FileKind::Directory));
    assert_eq!(untold("file"), Some(FileKind::Regular));
    assert_eq!(untold("link"), Some(FileKind::Symlink));
    assert_eq!(untold("gone"), None);
}
