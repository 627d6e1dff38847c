//! Finds and keeps what other programs put where a landing was at work.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use crate::model::{BackupKind, RelPath};
use crate::protocol::EventName;
use crate::store::content::StagedContent;
use crate::store::rows::backups::{self, Backup};
use crate::store::rows::events::{self, EventDraft};
use crate::store::{Context, Result, Store, is_temp_name, now_millis};
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::{self, Place, Tree, is_absent};

/// Returns an entry below `within` that is neither a temporary name of ours nor a directory that `goes`, if there is one.
pub(super) fn foreign_in(
    tree: &Tree,
    within: &RelPath,
    goes: &impl Fn(&RelPath) -> bool,
) -> std::io::Result<Option<RelPath>> {
    let mut dirs = vec![within.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in tree.list(&dir)?.into_iter().filter(|entry| !is_temp_name(&entry.name)) {
            let Ok(path) = dir.join(&entry.name) else { continue };
            if entry.kind != FileKind::Directory || !goes(&path) {
                return Ok(Some(path));
            }
            dirs.push(path);
        }
    }
    Ok(None)
}

/// Makes a backup of what another program wrote at `path` at the very moment of a landing, which is at `place` now. If
/// that is a directory, its files become backups and are removed from it.
pub(in crate::store) fn keep_foreign(store: &Store, path: &RelPath, place: &Place) -> Result<()> {
    match place.stat().doing(|| format!("keep what somebody wrote at {path}"))? {
        None => Ok(()),
        Some(meta) if meta.is_dir() => keep_within(store, path, place),
        Some(meta) => keep_entry(store, path, place, &meta),
    }
}

/// Empties a directory that stood at `path`, except for temporary names, so that it can go. In a loop, because a
/// program may nest more directories than a stack has room for calls.
fn keep_within(store: &Store, path: &RelPath, dir: &Place) -> Result<()> {
    let doing = || format!("keep what somebody wrote in {path}");
    let tree = dir.open(OFlags::RDONLY | OFlags::DIRECTORY).and_then(Tree::from_root).doing(doing)?;
    let (mut dirs, mut emptied) = (vec![RelPath::root()], 0);
    while let Some(dir) = dirs.get(emptied).cloned() {
        emptied += 1;
        dirs.extend(keep_files(store, path, &tree, &dir)?);
    }
    // What is in a directory goes before it.
    let mut below = dirs[1..].iter().rev();
    below.try_for_each(|dir| remove_if_empty(&tree.place(dir)?)).doing(doing)
}

/// The same for one directory within `tree`, which stood at `path`. Returns the directories in it.
fn keep_files(store: &Store, path: &RelPath, tree: &Tree, dir: &RelPath) -> Result<Vec<RelPath>> {
    let doing = || format!("keep what somebody wrote in {path}");
    let opened = Arc::new(tree.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY).doing(doing)?);
    let mut below = Vec::new();
    for entry in tree::list(opened.as_fd()).doing(doing)?.into_iter().filter(|entry| !is_temp_name(&entry.name)) {
        let place = Place { dir: Arc::clone(&opened), name: entry.name };
        let (Ok(within), Some(meta)) = (dir.join(&place.name), place.stat().doing(doing)?) else { continue };
        match (meta.kind, within.rebase(&RelPath::root(), path)) {
            (FileKind::Directory, _) => below.push(within),
            (_, Some(path)) => {
                keep_entry(store, &path, &place, &meta)?;
                place.unlink().doing(doing)?;
            }
            (_, None) => {}
        }
    }
    Ok(below)
}

fn keep_entry(store: &Store, path: &RelPath, place: &Place, meta: &Meta) -> Result<()> {
    let doing = || format!("keep what somebody wrote at {path}");
    match meta.kind {
        FileKind::Regular => {
            let file = place.open_to_read().doing(doing)?;
            keep_foreign_file(store, path, &file, meta)
        }
        FileKind::Symlink => keep_foreign_content(
            store,
            path,
            StagedContent::of(place.read_symlink().doing(doing)?.into_vec()),
            None,
            meta,
        ),
        // Nothing else has content that could be lost.
        _ => Ok(()),
    }
}

/// As [`keep_foreign`], for a file that is open.
pub(super) fn keep_foreign_file(store: &Store, path: &RelPath, file: &File, meta: &Meta) -> Result<()> {
    keep_foreign_content(store, path, store.stage_content(file)?, file::masked_group(file, meta.mode), meta)
}

fn keep_foreign_content(
    store: &Store,
    path: &RelPath,
    content: StagedContent,
    group: Option<u32>,
    meta: &Meta,
) -> Result<()> {
    store.note_use(content.digest);
    let created = now_millis();
    let backup = Backup {
        name: Backup::name_for(path, created),
        path: path.clone(),
        kind: BackupKind::Landed,
        digest: content.digest,
        size: content.size,
        mode: meta.mode,
        group,
        symlink: meta.kind == FileKind::Symlink,
        mtime: meta.mtime,
        created,
        by: None,
        for_all: false,
        owner: Some((meta.uid, meta.gid)),
    };
    let event = EventDraft::new(EventName::ExternalModified).with(|event| {
        event.path = Some(path.clone());
        event.sha256 = Some(content.digest);
        event.bytes = Some(content.size);
        event.message = Some("written below while something landed there: kept as a backup".to_owned());
    });
    store.database.lock().write(|tx| {
        content.commit(tx)?;
        let name = backups::put(tx, &backup)?;
        events::put_all(tx, &[event], &[(&backup, &name)]).map(|_| ())
    })
}

/// Removes an empty directory. One that is gone, or into which something has been put, is left alone.
pub(in crate::store) fn remove_if_empty(place: &Place) -> std::io::Result<()> {
    match place.remove_dir() {
        Err(err) if is_absent(&err) || err.raw_os_error() == Some(libc::ENOTEMPTY) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Location;
    use crate::sys::thread::on_a_small_stack;

    #[test]
    fn what_somebody_wrote_in_a_deep_tree_is_found_and_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let deep = scratch.path().join("gone").join("d/".repeat(1000));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("f"), "theirs").unwrap();
        let lower = Tree::open(scratch.path()).unwrap();
        let store = Store::open(&lower, &Location::default()).unwrap();
        let gone = RelPath::parse(b"gone").unwrap();
        let place = lower.place(&gone).unwrap();
        let found = || foreign_in(&lower, &gone, &|_| true).unwrap();
        assert!(on_a_small_stack(found).is_some_and(|path| path.as_bytes().ends_with(b"/d/f")));
        on_a_small_stack(|| keep_foreign(&store, &gone, &place).unwrap());
        place.remove_dir().unwrap();
        let backups = store.backups().unwrap();
        assert!(matches!(&backups[..], [backup] if backup.path.as_bytes().ends_with(b"/d/f")), "{backups:?}");
    }
}
