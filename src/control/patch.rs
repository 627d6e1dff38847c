//! Answers `patch`: checks all files and prepares their new contents before it writes any (SPEC §16).

use super::read::{content_of, reader_of};
use super::rights::{self, FileAccess};
use super::{Asker, Project};
use crate::diff::{Anchored, TEXT_BYTES_MAX, Unpatched, apply_anchored};
use crate::model::Digest;
use crate::overlay::{Caller, Rewrite, RewriteHow, Shown, changed_since};
use crate::protocol::{ErrorBody, ErrorCode, FilePatch, PatchHunk, PatchReply, Reply, Request, refused_at};

type Result<T> = std::result::Result<T, ErrorBody>;

pub fn patch(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    if request.files.is_empty() {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "patch of what? Give `files`"));
    }
    let reader = reader_of(request, asker)?;
    let rewrites = request.files.iter().map(|file| rewrite(file, asker, project)).collect::<Result<Vec<_>>>()?;
    // The umask is irrelevant: a patch creates no files.
    let caller = Caller { pid: asker.pid, uid: asker.uid, gid: asker.gid, umask: 0 };
    // Asked again when the file is opened for writing: another file may be at the path by then.
    let may_write = |opened: &Shown| rights::may_open(asker, opened, FileAccess::ReadWrite);
    let how = RewriteHow { caller, may_write: &may_write, dry_run: request.dry_run };
    let outcomes = project.overlay.rewrite_all(&rewrites, &how)?;
    if let Some(reader) = reader.filter(|_| !request.dry_run) {
        for rewrite in &rewrites {
            let made = Digest::of(&rewrite.content);
            let noted = project.overlay.store().note_own_edit(&reader, &rewrite.path, rewrite.base, made);
            if let Err(err) = noted {
                // The files are written. Without this note, their author is merely sent a diff at the next read.
                log::warn!("note who patched {}: {err}", rewrite.path);
            }
        }
    }
    Ok(Reply::Patch(PatchReply { outcomes, dry_run: request.dry_run }))
}

fn rewrite(file: &FilePatch, asker: &Asker, project: &Project) -> Result<Rewrite> {
    let path = &file.path;
    let old = content_of(path, asker, project, FileAccess::ReadWrite)?;
    if old.len() as u64 > TEXT_BYTES_MAX {
        let why = format!("it has {} bytes, a patch is for {TEXT_BYTES_MAX} at most: write the file itself", old.len());
        return Err(refused_at(path, ErrorCode::TooLarge, &why));
    }
    let digest = Digest::of(old.as_bytes());
    if digest != file.base_sha256 {
        return Err(changed_since(path, digest));
    }
    let hunks: Vec<Anchored<'_>> = file.hunks.iter().map(anchored).collect();
    match apply_anchored(old.as_bytes(), &hunks) {
        Ok(content) => Ok(Rewrite { path: path.clone(), base: digest, content }),
        Err(unpatched) => {
            let code = code_of(&unpatched);
            let detail = unpatched.near().map(Box::from);
            Err(ErrorBody { detail, ..refused_at(path, code, &format!("nothing was written: {unpatched}")) })
        }
    }
}

fn code_of(unpatched: &Unpatched) -> ErrorCode {
    match unpatched {
        Unpatched::Nowhere { .. } => ErrorCode::Conflict,
        Unpatched::Elsewhere { .. } => ErrorCode::Ambiguous,
        Unpatched::NoAnchor { .. } | Unpatched::Overlap { .. } => ErrorCode::BadRequest,
        Unpatched::TooMany { .. } => ErrorCode::TooLarge,
    }
}

fn anchored(hunk: &PatchHunk) -> Anchored<'_> {
    let PatchHunk { left, old, right, new, matches, whole_lines } = hunk;
    let [left, old, right, new] = [left, old, right, new].map(|text| text.as_bytes());
    Anchored { left, old, right, new, matches: *matches as usize, whole_lines: *whole_lines }
}
