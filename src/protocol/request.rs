//! One request: parsed from bytes that anybody may have sent, or written for the daemon.

use super::patch::check_patch;
use super::{CheckPhase, ErrorBody, ErrorCode, FilePatch, Op, words};
use crate::model::{Digest, Object, PathError, RelPath, Word};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A request. Fields that an operation does not take have their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub op: Op,
    /// The subjects, in the order given. Empty with `all` unset means everything, for an operation that only reads.
    pub targets: Vec<Target>,
    pub all: bool,
    pub force: bool,
    pub wait: bool,
    pub renew: bool,
    pub dry_run: bool,
    /// Counted from 1, as the diff shows them; empty means the whole change.
    pub hunks: Vec<u32>,
    /// A backup's name, or a glob of names.
    pub name: Option<String>,
    pub path: Option<RelPath>,
    pub to: Option<RelPath>,
    pub operation: Option<String>,
    pub session: Option<String>,
    pub offset: u64,
    pub limit: Option<u64>,
    /// The digest that the previous page returned for everything up to `offset`.
    pub told: Option<Digest>,
    /// The number of the last event that the asker knows.
    pub since: Option<u64>,
    pub held: HeldAtUnmount,
    /// How long to wait, for writers or for an event.
    pub timeout_seconds: Option<u64>,
    /// Forgets what was received, before reading; or what was counted, after reporting it.
    pub reset: bool,
    /// Includes content that is not text in full, in the form that `git apply` takes.
    pub binary: bool,
    /// The changes of a patch, file by file.
    pub files: Vec<FilePatch>,
    pub phase: Option<CheckPhase>,
    /// The token that the start of a check returned.
    pub tested: Option<String>,
    /// The exit status of a check's command.
    pub status: Option<i32>,
}

/// One argument and the ways in which it may be read. The daemon tries the exact path first, then the id (a unique
/// prefix, or an operation), then the glob; an argument that is both a path and an id is ambiguous (SPEC §8).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Target {
    pub id: Option<String>,
    /// A directory stands for everything below it.
    pub path: Option<RelPath>,
    pub glob: Option<String>,
}

/// What `unmount` does with held changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldAtUnmount {
    #[default]
    Keep,
    Confirm,
    Discard,
}

/// The reason why some bytes are not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("the request has {0} bytes; the limit is {limit}", limit = super::REQUEST_BYTES_MAX)]
    TooLarge(usize),
    #[error("the request is not a JSON object: {0}")]
    Json(String),
    #[error("protocol version {0} is not spoken here; this is version {ours}", ours = super::VERSION)]
    Version(String),
    #[error("the request has no `{0}`")]
    Missing(&'static str),
    #[error("unknown operation {0}")]
    Op(String),
    #[error("`{op}` takes no field {field:?}")]
    Field { op: Op, field: String },
    #[error("a field has a wrong value: {0}")]
    Value(String),
    #[error("not a patch: {0}")]
    Patch(String),
    #[error("a patch of {count} {what} is too large (the limit is {max}): write the files themselves")]
    PatchTooLarge { what: &'static str, count: usize, max: usize },
    #[error("{field} {text:?}: {cause}")]
    Path { field: &'static str, text: String, cause: PathError },
}

/// The JSON of a request. Absent and null mean the same.
#[derive(Default, Serialize, Deserialize)]
struct Fields {
    v: u64,
    op: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Vec<Object<ArgFields>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    all: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    force: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renew: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hunks: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<Word<HeldAtUnmount>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reset: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    binary: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<Vec<FilePatch>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<Word<CheckPhase>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tested: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArgFields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    glob: Option<String>,
}

impl Request {
    /// A request for `op` and nothing else.
    pub fn new(op: Op) -> Self {
        Self {
            op,
            targets: Vec::new(),
            all: false,
            force: false,
            wait: false,
            renew: false,
            dry_run: false,
            hunks: Vec::new(),
            name: None,
            path: None,
            to: None,
            operation: None,
            session: None,
            offset: 0,
            limit: None,
            told: None,
            since: None,
            held: HeldAtUnmount::Keep,
            timeout_seconds: None,
            reset: false,
            binary: false,
            files: Vec::new(),
            phase: None,
            tested: None,
            status: None,
        }
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, ProtocolError> {
        if bytes.len() > super::REQUEST_BYTES_MAX {
            return Err(ProtocolError::TooLarge(bytes.len()));
        }
        let object: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|err| ProtocolError::Json(err.to_string()))?;
        // The version is checked first: only a later version knows what its fields mean.
        check_version(&object)?;
        let op = op_of(&object)?;
        check_fields(op, &object)?;
        let fields: Fields = serde_json::from_value(Value::Object(object)).map_err(wrong_value)?;
        Self::from_fields(op, fields)
    }

    /// Returns the request as one line. Fails only if it is too large for one write.
    pub fn to_line(&self) -> Result<Vec<u8>, ProtocolError> {
        let mut line = serde_json::to_vec(&self.fields()).map_err(wrong_value)?;
        line.push(b'\n');
        match line.len() > super::REQUEST_BYTES_MAX {
            true => Err(ProtocolError::TooLarge(line.len())),
            false => Ok(line),
        }
    }

    /// Returns the hunks, or nothing for the whole change. An empty list is refused: it would mean no hunk.
    pub fn checked_hunks(hunks: Option<Vec<u32>>) -> Result<Vec<u32>, ProtocolError> {
        match hunks {
            Some(hunks) if hunks.is_empty() => {
                Err(ProtocolError::Value("`hunks` is empty: leave it out to mean the whole change".into()))
            }
            Some(hunks) if hunks.contains(&0) => Err(ProtocolError::Value("hunks are counted from 1".into())),
            hunks => Ok(hunks.unwrap_or_default()),
        }
    }

    fn from_fields(op: Op, fields: Fields) -> Result<Self, ProtocolError> {
        let mut targets = Vec::new();
        targets.extend(fields.ids.unwrap_or_default().into_iter().map(Target::id));
        for path in fields.paths.unwrap_or_default() {
            targets.push(Target::path_or_glob(path)?);
        }
        for Object(arg) in fields.args.unwrap_or_default() {
            targets.push(Target::from_fields(arg)?);
        }
        let files = fields.files.unwrap_or_default();
        check_patch(&files)?;
        Ok(Self {
            op,
            targets,
            all: fields.all.unwrap_or_default(),
            force: fields.force.unwrap_or_default(),
            wait: fields.wait.unwrap_or_default(),
            renew: fields.renew.unwrap_or_default(),
            dry_run: fields.dry_run.unwrap_or_default(),
            hunks: Self::checked_hunks(fields.hunks)?,
            name: fields.name,
            path: path_field("path", fields.path, fields.path_b64)?,
            to: path_field("to", fields.to, fields.to_b64)?,
            operation: fields.operation,
            session: fields.session,
            offset: fields.offset.unwrap_or_default(),
            limit: fields.limit,
            told: fields.told,
            since: fields.since,
            held: fields.held.map_or_else(HeldAtUnmount::default, |Word(held)| held),
            timeout_seconds: fields.timeout,
            reset: fields.reset.unwrap_or_default(),
            binary: fields.binary.unwrap_or_default(),
            files,
            phase: fields.phase.map(|Word(phase)| phase),
            tested: fields.tested,
            status: fields.status,
        })
    }

    fn fields(&self) -> Fields {
        let (path, path_b64) = spell(self.path.as_ref());
        let (to, to_b64) = spell(self.to.as_ref());
        let set = |flag: bool| flag.then_some(true);
        // Ids alone take the short spelling, because a request has at most 64 KiB.
        let ids: Option<Vec<String>> = self.targets.iter().map(Target::id_alone).collect();
        let ids = ids.filter(|ids| !ids.is_empty() && self.op.fields().contains(&"ids"));
        let args = self.targets.iter().filter(|_| ids.is_none()).map(Target::fields).map(Object).collect::<Vec<_>>();
        Fields {
            v: super::VERSION,
            op: self.op.name().to_owned(),
            ids,
            paths: None,
            args: (!args.is_empty()).then_some(args),
            all: set(self.all),
            force: set(self.force),
            wait: set(self.wait),
            renew: set(self.renew),
            dry_run: set(self.dry_run),
            hunks: (!self.hunks.is_empty()).then(|| self.hunks.clone()),
            name: self.name.clone(),
            path,
            path_b64,
            to,
            to_b64,
            operation: self.operation.clone(),
            session: self.session.clone(),
            offset: (self.offset > 0).then_some(self.offset),
            limit: self.limit,
            told: self.told,
            since: self.since,
            held: (self.held != HeldAtUnmount::Keep).then_some(Word(self.held)),
            timeout: self.timeout_seconds,
            reset: set(self.reset),
            binary: set(self.binary),
            files: (!self.files.is_empty()).then(|| self.files.clone()),
            phase: self.phase.map(Word),
            tested: self.tested.clone(),
            status: self.status,
        }
    }
}

impl Target {
    pub fn id(id: String) -> Self {
        Self { id: Some(id), ..Self::default() }
    }

    /// Reads an element of `paths`: an exact path, or a glob.
    fn path_or_glob(text: String) -> Result<Self, ProtocolError> {
        // An unset shell variable must not come to mean the whole project.
        if text.is_empty() {
            return Err(ProtocolError::Value("an element of `paths` is empty".into()));
        }
        let path = path_field("paths", Some(text.clone()), None)?;
        Ok(Self { id: None, path, glob: Self::is_glob(&text).then_some(text) })
    }

    /// Whether a text can match anything but itself.
    pub fn is_glob(text: &str) -> bool {
        text.contains(['*', '?', '[', '{'])
    }

    fn from_fields(fields: ArgFields) -> Result<Self, ProtocolError> {
        let path = path_field("path", fields.path, fields.path_b64)?;
        let target = Self { id: fields.id, path, glob: fields.glob };
        match target == Self::default() {
            true => Err(ProtocolError::Value("an element of `args` is empty".into())),
            false => Ok(target),
        }
    }

    fn id_alone(&self) -> Option<String> {
        self.id.clone().filter(|_| self.path.is_none() && self.glob.is_none())
    }

    fn fields(&self) -> ArgFields {
        let (path, path_b64) = spell(self.path.as_ref());
        ArgFields { id: self.id.clone(), path, path_b64, glob: self.glob.clone() }
    }
}

fn check_version(object: &Map<String, Value>) -> Result<(), ProtocolError> {
    match object.get("v") {
        None => Err(ProtocolError::Missing("v")),
        Some(v) if v.as_u64() == Some(super::VERSION) => Ok(()),
        Some(v) => Err(ProtocolError::Version(v.to_string())),
    }
}

fn op_of(object: &Map<String, Value>) -> Result<Op, ProtocolError> {
    let op = object.get("op").ok_or(ProtocolError::Missing("op"))?;
    op.as_str().and_then(Op::from_name).ok_or_else(|| ProtocolError::Op(op.to_string()))
}

fn check_fields(op: Op, object: &Map<String, Value>) -> Result<(), ProtocolError> {
    let known = |field: &str| matches!(field, "v" | "op") || op.fields().contains(&field);
    match object.keys().find(|field| !known(field)) {
        Some(field) => Err(ProtocolError::Field { op, field: field.clone() }),
        None => Ok(()),
    }
}

fn path_field(
    field: &'static str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<RelPath>, ProtocolError> {
    if text.is_none() && base64.is_none() {
        return Ok(None);
    }
    let text = text.unwrap_or_default();
    let bytes = words::bytes_of(text.clone(), base64.as_deref()).map_err(wrong_value)?;
    RelPath::parse(&bytes).map(Some).map_err(|cause| ProtocolError::Path { field, text, cause })
}

fn spell(path: Option<&RelPath>) -> (Option<String>, Option<String>) {
    match path.map(|path| words::text_and_base64(path.as_bytes())) {
        Some((text, base64)) => (Some(text), base64),
        None => (None, None),
    }
}

fn wrong_value(err: impl std::fmt::Display) -> ProtocolError {
    ProtocolError::Value(err.to_string())
}

impl ProtocolError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge(_) | Self::PatchTooLarge { .. } => ErrorCode::TooLarge,
            Self::Version(_) => ErrorCode::UnsupportedVersion,
            Self::Json(_) | Self::Missing(_) | Self::Op(_) | Self::Field { .. } => ErrorCode::BadRequest,
            Self::Value(_) | Self::Path { .. } | Self::Patch(_) => ErrorCode::BadRequest,
        }
    }
}

impl From<ProtocolError> for ErrorBody {
    fn from(err: ProtocolError) -> Self {
        Self::new(err.code(), err.to_string())
    }
}
