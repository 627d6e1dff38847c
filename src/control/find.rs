//! Finds the held changes that a request means (SPEC §8): an exact path first, then an id or an operation, then a glob.
//!
//! Pure except through [`Known`]: callers say what is held, what became of other ids and which paths exist.

use std::collections::{BTreeSet, HashSet};

use crate::model::{ChangeId, Glob, ID_PREFIX_MIN, OperationId, RelPath, shell_word};
use crate::protocol::{ErrorBody, ErrorCode, Target};
use crate::store::{Fate, Verdict};

/// The ways in which a held change can be named.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    pub id: &'a ChangeId,
    pub names: &'a [RelPath],
    /// The operation that the change came with.
    pub operation: Option<OperationId>,
}

/// The questions about changes that [`find`] needs answered.
pub trait Known {
    /// A held change, as the answer contains it.
    type Change: Identified;
    /// The changes held at a path or below it, in the order in which answers list them.
    fn within(&self, path: &RelPath) -> Vec<Self::Change>;
    /// The change held under this exact id.
    fn held_as(&self, id: &ChangeId) -> Option<Self::Change>;
    /// All ids that begin with these digits, including those of changes no longer held.
    fn ids_beginning_with(&self, digits: &ChangeId) -> BTreeSet<ChangeId>;
    /// The held changes that are wanted. Looks through all of them.
    fn held(&self, wanted: &dyn Fn(Live<'_>) -> bool) -> Vec<Self::Change>;
    /// What became of an id, which may be shortened.
    fn verdict(&self, prefix: &ChangeId) -> Result<Option<Verdict>, ErrorBody>;
    /// Whether anything exists at a path, held or not.
    fn exists(&self, path: &RelPath) -> bool;
}

pub trait Identified {
    fn id(&self) -> &ChangeId;
}

/// How many times an id may have been superseded before we stop following.
const SUCCESSORS_MAX: usize = 10_000;

/// Returns the changes that all targets mean together, in their order and each once; otherwise the first error.
pub fn find<K: Known>(targets: &[Target], known: &K) -> Result<Vec<K::Change>, ErrorBody> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for target in targets {
        let meant = find_one(target, known)?.into_iter();
        found.extend(meant.filter(|change| seen.insert(change.id().clone())));
    }
    Ok(found)
}

fn find_one<K: Known>(target: &Target, known: &K) -> Result<Vec<K::Change>, ErrorBody> {
    let by_path = target.path.as_ref().map(|path| known.within(path)).unwrap_or_default();
    let id = target.id.as_deref().and_then(ChangeId::parse);
    let ById { live: by_id, count } = id.as_ref().map_or_else(ById::none, |id| by_id(id, known));
    let of_operation = operation_of(target).map(|operation| held_of(operation, known)).unwrap_or_default();
    let is_by_path = |named: &[K::Change]| by_path.iter().map(K::Change::id).eq(named.iter().map(K::Change::id));
    match (by_path.as_slice(), by_id.as_slice(), of_operation.as_slice()) {
        ([_, ..], [], []) => return Ok(by_path),
        ([_, ..], named, []) | ([_, ..], [], named) if is_by_path(named) => return Ok(by_path),
        ([_, ..], _, []) => return Err(ambiguous(target, "is a path and an id at once; write the path as ./PATH")),
        ([_, ..], _, _) => {
            return Err(ambiguous(target, "is a path and an operation at once; write the path as ./PATH"));
        }
        ([], [_], _) if count == 1 => return Ok(by_id),
        ([], [_, ..], _) => return Err(ambiguous(target, &format!("is the beginning of {count} ids"))),
        ([], [], [_, ..]) => return Ok(of_operation),
        ([], [], []) => {}
    }
    let by_glob = match glob_of(target)? {
        Some(matcher) => known.held(&|live| live.names.iter().any(|name| matcher.is_match(name.as_os_str()))),
        None => Vec::new(),
    };
    match by_glob.is_empty() {
        false => Ok(by_glob),
        true => Err(nothing(target, id.as_ref(), known)?),
    }
}

/// Parses the name of an operation, as `log` and `status` show it.
fn operation_of(target: &Target) -> Option<OperationId> {
    target.id.as_deref().and_then(OperationId::parse)
}

fn held_of<K: Known>(operation: OperationId, known: &K) -> Vec<K::Change> {
    known.held(&|live| live.operation == Some(operation))
}

/// The changes that some digits may mean.
struct ById<C> {
    live: Vec<C>,
    /// How many ids begin with the digits, including those of changes no longer held.
    count: usize,
}

impl<C> ById<C> {
    fn none() -> Self {
        Self { live: Vec::new(), count: 0 }
    }
}

/// A complete id means only itself, even if a longer one begins with it, and even if it is no longer held: nobody has
/// reviewed what came after it.
fn by_id<K: Known>(digits: &ChangeId, known: &K) -> ById<K::Change> {
    if let Some(exact) = known.held_as(digits) {
        return ById { live: vec![exact], count: 1 };
    }
    let ids = known.ids_beginning_with(digits);
    if ids.contains(digits) {
        return ById::none();
    }
    let live = known.held(&|live| live.id.as_str().starts_with(digits.as_str()));
    ById { count: ids.len().max(live.len()), live }
}

/// Compiles a target's glob. Text that is no valid glob, such as `a[b`, may still be a path.
pub fn glob_of(target: &Target) -> Result<Option<Glob>, ErrorBody> {
    match target.glob.as_deref().map(path_glob).transpose() {
        Err(_) if target.path.is_some() => Ok(None),
        compiled => compiled,
    }
}

pub fn path_glob(glob: &str) -> Result<Glob, ErrorBody> {
    Glob::new(glob).map_err(|err| ErrorBody::new(ErrorCode::BadRequest, err.to_string()))
}

/// Explains why a target means nothing: for an id no longer held, what became of it.
fn nothing(target: &Target, id: Option<&ChangeId>, known: &impl Known) -> Result<ErrorBody, ErrorBody> {
    if let Some(id) = id
        && let Some(verdict) = known.verdict(id)?
    {
        return became(&verdict, known);
    }
    if let Some(operation) =
        operation_of(target).filter(|_| target.path.as_ref().is_none_or(|path| !known.exists(path)))
    {
        let message = format!("nothing of {operation} is held");
        return Ok(ErrorBody::new(ErrorCode::UnknownId, message).about(operation.to_string()));
    }
    if let Some(text) = target.id.as_deref().filter(|text| is_too_short(text)) {
        return Ok(match target.path.as_ref().filter(|path| known.exists(path)) {
            Some(path) => nothing_at(path, known),
            None => no_id(text),
        });
    }
    let path = target.path.as_ref().filter(|path| id.is_none() || known.exists(path));
    Ok(match (path, &target.glob, &target.id) {
        (_, Some(glob), _) => ErrorBody::new(ErrorCode::UnknownPath, format!("nothing held matches {glob}")),
        (Some(path), None, _) => nothing_at(path, known),
        (None, None, Some(text)) if id.is_some() => {
            ErrorBody::new(ErrorCode::UnknownId, format!("no change has the id {text}")).about(text)
        }
        (None, None, Some(text)) => no_id(text),
        (None, None, None) => ErrorBody::new(ErrorCode::BadRequest, "an argument names nothing"),
    })
}

/// Whether the text would be an id if it had more digits.
fn is_too_short(text: &str) -> bool {
    let hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (1..ID_PREFIX_MIN).contains(&text.len()) && text.bytes().all(hex)
}

fn no_id(text: &str) -> ErrorBody {
    let message = format!("{text} is no id: ids have at least {ID_PREFIX_MIN} digits, 0-9 and a-f");
    ErrorBody::new(ErrorCode::UnknownId, message).about(text)
}

fn nothing_at(path: &RelPath, known: &impl Known) -> ErrorBody {
    let message = match (path.is_root(), known.exists(path)) {
        (true, _) => "nothing is held".to_owned(),
        (false, true) => format!("nothing is held at {path}"),
        (false, false) => format!("{path}: no such path, and nothing is held there"),
    };
    ErrorBody::new(ErrorCode::UnknownPath, message).at(path)
}

fn became(verdict: &Verdict, known: &impl Known) -> Result<ErrorBody, ErrorBody> {
    let Verdict { id, path, .. } = verdict;
    let body = |code, message: String| ErrorBody::new(code, message).about(id.as_str()).at(path);
    Ok(match &verdict.fate {
        Fate::Superseded { by } => {
            let (last, end) = successor(by, known)?;
            let message = match end {
                None => format!("{id} ({path}) became {last}"),
                Some(end) => format!("{id} ({path}) became {last}, which {end}"),
            };
            ErrorBody { new_id: Some(last.to_string()), ..body(ErrorCode::Superseded, message) }
        }
        Fate::Applied => body(ErrorCode::AlreadyApplied, format!("{id} ({path}) is already applied")),
        Fate::Ended => {
            let message = format!("{id} ({path}) needs no review any more: it became small, or equal to what is there");
            body(ErrorCode::AlreadyApplied, message)
        }
        Fate::Discarded => body(ErrorCode::AlreadyDiscarded, format!("{id} ({path}) is already discarded")),
        Fate::Removed => {
            let message = format!(
                "{id} ({path}) was removed in the view; content that it had is a backup: fettlefs rollback {}",
                shell_word(&path.to_string())
            );
            body(ErrorCode::AlreadyDiscarded, message)
        }
        Fate::Lost => {
            let message = format!("{id} ({path}) went with the power: it was never synced, and nothing is left of it");
            body(ErrorCode::AlreadyDiscarded, message)
        }
    })
}

/// Returns the last of a chain of successors, and how it ended if it is no longer held.
fn successor(first: &ChangeId, known: &impl Known) -> Result<(ChangeId, Option<&'static str>), ErrorBody> {
    let mut last = first.clone();
    for _ in 0..SUCCESSORS_MAX {
        if known.held_as(&last).is_some() {
            return Ok((last, None));
        }
        match known.verdict(&last)?.map(|verdict| verdict.fate) {
            Some(Fate::Superseded { by }) if by != last => last = by,
            Some(Fate::Superseded { .. }) | None => return Ok((last, None)),
            Some(Fate::Applied) => return Ok((last, Some("is already applied"))),
            Some(Fate::Discarded) => return Ok((last, Some("is already discarded"))),
            Some(Fate::Ended) => return Ok((last, Some("ended by itself"))),
            Some(Fate::Removed) => return Ok((last, Some("was removed in the view"))),
            Some(Fate::Lost) => return Ok((last, Some("went with the power"))),
        }
    }
    Ok((last, None))
}

fn ambiguous(target: &Target, why: &str) -> ErrorBody {
    let text = target.id.as_deref().unwrap_or_default();
    ErrorBody::new(ErrorCode::Ambiguous, format!("{text} {why}"))
}

#[cfg(test)]
mod tests;
