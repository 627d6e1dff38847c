//! Backups: listing them, and putting them back.

use std::collections::HashSet;

use super::answers::{self, failed};
use super::filter::Filter;
use super::find::path_glob;
use super::held::review;
use super::rights;
use super::{Asker, Project};
use crate::model::RelPath;
use crate::overlay::RollbackHow;
use crate::protocol::{Acted, BackupsReply, ErrorBody, ErrorCode, Reply, Request, Target, page};
use crate::store::Backup;

type Result<T> = std::result::Result<T, ErrorBody>;

pub fn rollback(request: &Request, asker: &Asker, project: &Project) -> Result<Acted> {
    project.overlay.settle_pending();
    let chosen = chosen_backups(request, project)?;
    if let (Some(to), [_, _, ..]) = (&request.to, chosen.as_slice()) {
        let message = format!("{} backups cannot all be put to {to}", chosen.len());
        return Err(ErrorBody::new(ErrorCode::Ambiguous, message));
    }
    chosen.iter().try_for_each(|backup| check_may_roll_back(backup, asker, project))?;
    let how = RollbackHow {
        review: review(request, asker, project),
        to: request.to.clone(),
        force: request.force,
        permits: rights::permits(asker, project).map_err(failed)?,
    };
    let outcomes = project.overlay.rollback(&chosen, &how)?;
    Ok(Acted { outcomes, dry_run: request.dry_run, ..Acted::default() })
}

/// A restored file can be read by everyone who may read at its target, so the asker must have the right to the content.
fn check_may_roll_back(backup: &Backup, asker: &Asker, project: &Project) -> Result<()> {
    if rights::may_roll_back(asker, project, backup) {
        return Ok(());
    }
    let message = format!("{}: you may not put this backup back", backup.name);
    Err(ErrorBody::new(ErrorCode::NotPermitted, message).at(&backup.path))
}

/// Returns the backups that all targets mean together, each path once.
fn chosen_backups(request: &Request, project: &Project) -> Result<Vec<Backup>> {
    let by_fields = Target { id: request.name.clone(), path: request.path.clone(), glob: None };
    let readings = request.targets.iter().chain([&by_fields]).filter(|reading| **reading != Target::default());
    let all = project.overlay.store().backups().map_err(failed)?;
    let mut chosen: Vec<Backup> = Vec::new();
    let mut paths = HashSet::new();
    for reading in readings {
        let meant = backups_of(reading, &all)?;
        chosen.extend(meant.into_iter().filter(|backup| paths.insert(&backup.path)).cloned());
    }
    match chosen.is_empty() {
        true => Err(ErrorBody::new(ErrorCode::BadRequest, "rollback of what? Give a backup's name or a path")),
        false => Ok(chosen),
    }
}

/// An exact name comes first, then the newest backup of a path; otherwise the newest backup of each path in a directory,
/// or of each one whose name or path a glob matches. `all` lists the newest first.
fn backups_of<'a>(reading: &Target, all: &'a [Backup]) -> Result<Vec<&'a Backup>> {
    let named = all.iter().find(|backup| Some(&backup.name) == reading.id.as_ref());
    if let Some(exact) = named.or_else(|| all.iter().find(|backup| Some(&backup.path) == reading.path.as_ref())) {
        return Ok(vec![exact]);
    }
    let filter = Filter::of(std::slice::from_ref(reading))?;
    let names = reading.id.as_deref().filter(|name| Target::is_glob(name)).map(path_glob).transpose()?;
    let is_called = |backup: &Backup| names.as_ref().is_some_and(|names| names.is_match(&backup.name));
    let mut seen = HashSet::new();
    let wanted = all.iter().filter(|backup| filter.wants(Some(&backup.path), |_| is_called(backup)));
    match wanted.filter(|backup| seen.insert(&backup.path)).collect::<Vec<_>>() {
        none if none.is_empty() => Err(no_backup(reading)),
        newest => Ok(newest),
    }
}

fn no_backup(reading: &Target) -> ErrorBody {
    let message = match reading {
        Target { id: Some(name), .. } => format!("no backup is called {name}, or of such a path"),
        Target { glob: Some(glob), .. } => format!("no backup is called {glob}, or of such a path"),
        Target { path, .. } => format!("there is no backup of {}", path.clone().unwrap_or_else(RelPath::root)),
    };
    ErrorBody {
        path: reading.path.clone().filter(|_| reading.id.is_none()),
        ..ErrorBody::new(ErrorCode::UnknownBackup, message)
    }
}

pub fn backups(request: &Request, project: &Project) -> Result<Reply> {
    let filter = Filter::of(&request.targets)?;
    let names = request.name.as_deref().map(path_glob).transpose()?;
    let is_named = |backup: &Backup| {
        names.as_ref().is_none_or(|glob| request.name.as_ref() == Some(&backup.name) || glob.is_match(&backup.name))
    };
    let all = project.overlay.store().backups().map_err(failed)?;
    let wanted = all
        .into_iter()
        .filter(|backup| is_named(backup) && filter.wants(Some(&backup.path), |name| name == backup.name));
    let page = page(wanted.map(answers::backup).collect(), request.offset, request.limit);
    Ok(Reply::Backups(BackupsReply { backups: page.entries, next: page.next }))
}
