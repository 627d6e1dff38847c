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
    for entry in tree.list(within)?.into_iter().filter(|entry| !is_temp_name(&entry.name)) {
        let Ok(path) = within.join(&entry.name) else { continue };
        if entry.kind != FileKind::Directory || !goes(&path) {
            return Ok(Some(path));
        }
        if let Some(found) = foreign_in(tree, &path, goes)? {
            return Ok(Some(found));
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

/// Empties a directory that stood at `path`, except for temporary names, so that it can go.
fn keep_within(store: &Store, path: &RelPath, dir: &Place) -> Result<()> {
    let doing = || format!("keep what somebody wrote in {path}");
    let dir = Arc::new(dir.open(OFlags::RDONLY | OFlags::DIRECTORY).doing(doing)?);
    for entry in tree::list(dir.as_fd()).doing(doing)? {
        let place = Place { dir: Arc::clone(&dir), name: entry.name };
        let (Ok(path), Some(meta)) = (path.join(&place.name), place.stat().doing(doing)?) else { continue };
        match meta.kind {
            _ if is_temp_name(&place.name) => {}
            FileKind::Directory => {
                keep_within(store, &path, &place)?;
                remove_if_empty(&place).doing(doing)?;
            }
            _ => {
                keep_entry(store, &path, &place, &meta)?;
                place.unlink().doing(doing)?;
            }
        }
    }
    Ok(())
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
