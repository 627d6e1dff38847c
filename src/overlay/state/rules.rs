//! How the view is to treat a path: the rules of the project, the user and git, read from lower and then fixed (SPEC §6).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::hooks::{Program, ProgramError};
use crate::model::{Digest, RelPath};
use crate::overlay::git::tracked::{Tracked, TrackedReading, Unknown};
use crate::overlay::{Caller, Error, Overlay};
use crate::policy::ignored::{IgnoreFile, IgnoreScope};
use crate::policy::rules::{Action, Entry, Place, Rule, RuleError, RuleSet, Trust};
use crate::policy::settings::{Key, Layer, Origin, Settings, SettingsError, SettingsFile, is_trusted, untrusted};
use crate::protocol::EventName;
use crate::store::{Recovered, Writer};
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::Tree;

/// Where settings come from besides the project's own file. Kept, so that `reload` reads the same places again.
#[derive(Clone, Debug, Default)]
pub struct RuleSource {
    /// Absolute paths: of the project, and of its view if it has one. Settings are never read from what programs can
    /// write there.
    pub project: PathBuf,
    pub view: Option<PathBuf>,
    pub user_file: Option<PathBuf>,
    /// Which projects' files a person has trusted.
    pub trusted_file: Option<PathBuf>,
    pub environment: Layer,
    pub flags: Layer,
}

/// Settings and rules as they are until the next `reload`.
pub struct Policy {
    pub settings: Settings,
    /// For people: what is ignored because the project's file is not trusted.
    pub notices: Vec<String>,
    /// Why only the built-in settings and rules apply, if the others could not be read.
    pub unread: Option<String>,
    /// The project's own settings file.
    pub project_file: Option<ProjectFile>,
    /// Permission programs, asked one after the other in this order.
    pub hooks: Vec<Program>,
    /// The project's path, for them.
    pub project: PathBuf,
    rules: RuleSet,
    git: GitView,
}

/// A project's settings file as lower has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectFile {
    pub text: Vec<u8>,
    pub digest: Digest,
    pub is_trusted: bool,
}

/// What git ignores and tracks, as it was when first looked at.
struct GitView {
    root: IgnoreScope,
    tracked: Tracked,
    dirs: Mutex<HashMap<RelPath, DirScope>>,
}

#[derive(Clone)]
enum DirScope {
    /// Judged. Patterns decide which of the directories in it pass.
    Judged(IgnoreScope),
    /// Judged with all that is in it, because another repository has it: git does not apply the project's patterns there,
    /// and we do not know what that repository tracks.
    Elsewhere,
    /// Passes with all that is in it, because git ignores this directory, which is the topmost such.
    Passing(RelPath),
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Rules(#[from] RuleError),
    #[error("read {what}: {cause}")]
    Read { what: String, cause: std::io::Error },
    #[error("{PROJECT_FILE} is no regular file: rules are read from what the project itself has there")]
    NoFile,
    #[error("{0} is in the project, where what runs in the view could write it; keep it elsewhere (`XDG_CONFIG_HOME`)")]
    Inside(String),
    #[error("{at}: hooks.pre_write: {cause}")]
    Hook { at: Origin, cause: ProgramError },
}

/// A settings or ignore file larger than this is a mistake, or an attack on the daemon's memory.
const FILE_BYTES_MAX: u64 = 4 << 20;
pub const PROJECT_FILE: &str = ".fettle.toml";
const GITIGNORE: &str = ".gitignore";

/// A policy that can no longer fail to load, while HEAD of the project's repository is still being read.
#[must_use = "nothing is tracked until it has ended"]
pub struct PolicyLoading {
    policy: Policy,
    tracked: TrackedReading,
}

impl PolicyLoading {
    /// Must be begun, and ended, before anything covers the project: see [`crate::overlay::git::tracked`].
    pub fn begin(lower: &Tree, source: &RuleSource) -> Result<Self, PolicyError> {
        let tracked = TrackedReading::begin(lower);
        Ok(Self { policy: Policy::read(lower, source, Tracked::unknown())?, tracked })
    }

    /// For a view that must stand although its settings cannot be used: [`Policy::built_in`].
    pub fn built_in(lower: &Tree, unread: &PolicyError) -> Self {
        Self { policy: Policy::built_in(unread), tracked: TrackedReading::begin(lower) }
    }

    pub fn end(self) -> Policy {
        let Self { mut policy, tracked } = self;
        policy.git.tracked = tracked.end();
        policy
    }
}

impl Policy {
    pub fn load(lower: &Tree, source: &RuleSource) -> Result<Self, PolicyError> {
        Ok(PolicyLoading::begin(lower, source)?.end())
    }

    /// Returns the policy as it is after a recovery, which may have landed the files that it is read from.
    pub fn after(self, recovered: &Recovered, lower: &Tree, source: &RuleSource) -> Result<Self, PolicyError> {
        match recovered.is_nothing() || self.unread.is_some() {
            true => Ok(self),
            false => self.read_again(lower, source),
        }
    }

    /// The same at a time when the project may be covered.
    pub(in crate::overlay) fn read_again(&self, lower: &Tree, source: &RuleSource) -> Result<Self, PolicyError> {
        Self::read(lower, source, self.git.tracked.at_reload(lower))
    }

    fn read(lower: &Tree, source: &RuleSource, tracked: Tracked) -> Result<Self, PolicyError> {
        let user_text = source.user_file.as_ref().map_or(Ok(None), |path| source.read_outside(lower, path))?;
        let user_name = source.user_file.as_ref().map_or_else(String::new, |path| path.display().to_string());
        let user = SettingsFile::parse(&user_name, user_text.as_deref().unwrap_or_default())?;
        let project_file = ProjectFile::read(lower, source)?;
        let project_text = project_file.as_ref().map(|file| file.text.as_slice());
        let project = SettingsFile::parse(PROJECT_FILE, project_text.unwrap_or_default())?;
        let trust = match &project_file {
            Some(file) if !file.is_trusted => Trust::Untrusted,
            Some(_) | None => Trust::Trusted,
        };
        let defaults = Settings::defaults();
        let (project, notices) = match trust {
            Trust::Trusted => (project, Vec::new()),
            Trust::Untrusted => untrusted(project, &user.values, &defaults),
        };
        let layers = [&user.values, &project.values, &source.environment, &source.flags];
        let mut settings = Settings::layered(defaults, layers)?;
        // An untrusted file that tightens this for others would let in those in a run, whom the default keeps out.
        let trusted = (trust == Trust::Trusted).then_some(&project.values);
        let believed = [Some(&user.values), trusted, Some(&source.environment), Some(&source.flags)];
        let in_run = believed.into_iter().flatten().filter_map(Layer::approve).next_back();
        settings.approve_in_run = in_run.unwrap_or(settings.approve_in_run);
        let at = settings.origin(Key::PreWrite);
        let rules = compile(&user.rules, &project.rules, trust)?;
        let is_inside = |path: &Path| source.is_inside(lower, path);
        let hooks = settings.pre_write.iter().map(|command| Program::resolve(command, is_inside));
        let hooks = hooks.collect::<Result<_, _>>().map_err(|cause| PolicyError::Hook { at, cause })?;
        let (project, git) = (source.project.clone(), GitView::read(lower, tracked));
        Ok(Self { settings, notices, unread: None, project_file, hooks, project, rules, git })
    }

    /// Only what is built in, to look at held changes while the settings cannot be read. Nothing passes by being ignored.
    pub fn built_in(unread: &PolicyError) -> Self {
        Self {
            settings: Settings::defaults(),
            notices: Vec::new(),
            unread: Some(unread.to_string()),
            project_file: None,
            hooks: Vec::new(),
            project: PathBuf::new(),
            rules: RuleSet::compile(&[], &[], Trust::Trusted).expect("no pattern, so none that is wrong"),
            git: GitView { root: IgnoreScope::root([]), tracked: Tracked::unknown(), dirs: Mutex::default() },
        }
    }

    /// Why nothing passes by being ignored, if that is so although there is a repository.
    pub fn git_notice(&self) -> Option<String> {
        match self.git.tracked.why_unknown() {
            None | Some(Unknown::NoRepository) => None,
            Some(why) => {
                Some(format!("directories that git ignores are judged, for what it tracks is not known: {why}"))
            }
        }
    }

    /// What to do with a write to `path` by `exe`. `None` is an unknown program, to which every rule for a program
    /// applies. Reads the ignore files of directories seen for the first time, and nothing else.
    pub fn action(&self, lower: &Tree, path: &RelPath, entry: Entry, exe: Option<&OsStr>) -> Action {
        let dir = match entry {
            Entry::Dir => path.clone(),
            Entry::Symlink | Entry::File => path.parent().unwrap_or_default(),
        };
        let scope = self.git.scope(lower, &dir);
        let ignored = match &scope {
            DirScope::Passing(topmost) => Some(topmost),
            DirScope::Judged(_) | DirScope::Elsewhere => None,
        };
        self.rules.action(&Place { path, entry, ignored }, exe)
    }

    /// True if some rule names programs.
    pub fn names_programs(&self) -> bool {
        self.rules.names_programs()
    }

    pub fn refuses(&self) -> bool {
        self.rules.refuses()
    }

    /// True if something frozen may stand below a directory.
    pub fn may_freeze_below(&self, dir: &RelPath) -> bool {
        self.rules.may_freeze_below(dir)
    }

    pub fn may_judge_below(&self, dir: &RelPath) -> bool {
        self.rules.may_judge_below(dir)
    }
}

impl Overlay {
    /// How the view treats a path, whoever asks: it passes only if it passes for every program.
    pub(in crate::overlay) fn action(&self, path: &RelPath, kind: FileKind) -> Action {
        self.unless_held(path, self.policy().action(&self.lower, path, entry_of(kind), None))
    }

    /// What has no directory in lower cannot pass.
    fn unless_held(&self, path: &RelPath, action: Action) -> Action {
        match action {
            Action::Pass if self.is_in_held_dir(path) => Action::Auto,
            action => action,
        }
    }

    /// What a program may do at a path. A rule for programs only tightens (SPEC §6): what passes for this program but not
    /// for all takes the way of what is judged, and is let through when it is ([`Self::action_on_content`]).
    pub(in crate::overlay) fn action_by(&self, path: &RelPath, kind: FileKind, by: &Writer) -> Action {
        match self.action_on_content(path, kind, by) {
            Action::Pass if self.policy().names_programs() && self.action(path, kind) != Action::Pass => Action::Auto,
            action => action,
        }
    }

    /// What the rules say of content that a program wrote.
    pub(in crate::overlay) fn action_on_content(&self, path: &RelPath, kind: FileKind, by: &Writer) -> Action {
        let exe = by.exe().map(OsStr::new);
        self.unless_held(path, self.policy().action(&self.lower, path, entry_of(kind), exe))
    }

    /// The caller of an operation on a name, as far as rules and permission programs need to know it. Not for FLUSH and
    /// RELEASE: see [`crate::sys::process`].
    pub(in crate::overlay) fn writer(&self, caller: &Caller) -> Writer {
        let policy = self.policy();
        match policy.names_programs() || !policy.hooks.is_empty() {
            true => self.doer(caller),
            false => caller.writer(),
        }
    }

    /// Another name of a lower file by which a rule refuses the write: what is written through one name shows under all.
    pub(in crate::overlay) fn refused_other_name(
        &self,
        meta: &Meta,
        by: &Writer,
        is_refused: fn(Action) -> bool,
    ) -> crate::overlay::Result<Option<RelPath>> {
        match self.policy().refuses() && self.links_below(meta) > 1 {
            true => self.judged_name_below(meta.key(), |path| is_refused(self.action_by(path, FileKind::Regular, by))),
            false => Ok(None),
        }
    }

    pub(in crate::overlay) fn check_not_refused(
        &self,
        path: &RelPath,
        action: Action,
        caller: &Caller,
    ) -> crate::overlay::Result<()> {
        if action.refuses() { Err(self.denied(path, &self.doer(caller))) } else { Ok(()) }
    }

    /// Counts and records a refusal by a rule.
    pub(in crate::overlay) fn denied(&self, path: &RelPath, by: &Writer) -> Error {
        self.counters.denied.fetch_add(1, Ordering::Relaxed);
        let event = self.event(EventName::WriteDenied, path).by(by);
        if let Err(err) = self.store.record(&event) {
            log::error!("record a denied write to {path}: {err}");
        }
        Error::Errno(libc::EPERM)
    }
}

fn entry_of(kind: FileKind) -> Entry {
    match kind {
        FileKind::Directory => Entry::Dir,
        FileKind::Symlink => Entry::Symlink,
        FileKind::Regular | FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            Entry::File
        }
    }
}

fn compile(user: &[Rule], project: &[Rule], trust: Trust) -> Result<RuleSet, RuleError> {
    RuleSet::compile(user, project, trust)
}

impl GitView {
    fn read(lower: &Tree, tracked: Tracked) -> Self {
        let (root, git) = (RelPath::root(), RelPath::parse(b".git/info").expect("a path"));
        let files = [(&git, "exclude"), (&root, GITIGNORE)].map(|(dir, name)| ignore_file(lower, dir, name));
        Self { root: IgnoreScope::root(files.into_iter().flatten()), tracked, dirs: Mutex::default() }
    }

    fn scope(&self, lower: &Tree, dir: &RelPath) -> DirScope {
        let (mut scope, mut unknown) = self.known_above(dir);
        // Once patterns no longer decide, nothing below is remembered.
        while let (DirScope::Judged(patterns), Some(dir)) = (&scope, unknown.pop()) {
            let made = self.enter(lower, patterns, &dir);
            scope = self.dirs.lock().entry(dir).or_insert(made).clone();
        }
        scope
    }

    /// The scope of the nearest directory that is known, from `dir` upwards, and the unknown ones below it, outermost
    /// last. In a loop, because a program may nest more directories than a stack has room for calls.
    fn known_above(&self, dir: &RelPath) -> (DirScope, Vec<RelPath>) {
        let dirs = self.dirs.lock();
        let (mut unknown, mut at) = (Vec::new(), dir.clone());
        loop {
            if let Some(known) = dirs.get(&at) {
                return (known.clone(), unknown);
            }
            let Some(above) = at.parent() else { break };
            unknown.push(std::mem::replace(&mut at, above));
        }
        (DirScope::Judged(self.root.clone()), unknown)
    }

    fn enter(&self, lower: &Tree, above: &IgnoreScope, dir: &RelPath) -> DirScope {
        let name = dir.name().unwrap_or_default();
        if above.ignores_dir(name) && self.tracked.is_none_within(dir) {
            return match is_elsewhere(lower, dir) {
                true => DirScope::Elsewhere,
                false => DirScope::Passing(dir.clone()),
            };
        }
        if has_repository(lower, dir) {
            return DirScope::Elsewhere;
        }
        DirScope::Judged(above.child(name, ignore_file(lower, dir, GITIGNORE)))
    }
}

fn ignore_file(lower: &Tree, dir: &RelPath, name: &str) -> Option<IgnoreFile> {
    let path = dir.join(OsStr::new(name)).ok()?;
    match read_path(lower, &path, FILE_BYTES_MAX) {
        Ok(text) => text.map(IgnoreFile::Text),
        Err(err) => {
            log::warn!("read {path}: {err}");
            Some(IgnoreFile::Unreadable)
        }
    }
}

/// True if a directory between the project's root and `dir` is another repository's. They have been looked at already, but
/// a clone has its `.git` only after that.
fn is_elsewhere(lower: &Tree, dir: &RelPath) -> bool {
    let mut above = std::iter::successors(dir.parent(), RelPath::parent);
    above.any(|above| !above.is_root() && has_repository(lower, &above))
}

/// True if a directory is the root of a work tree: of a repository, or with a `.git` that is a file as of a submodule.
/// What cannot be determined counts as one.
fn has_repository(lower: &Tree, dir: &RelPath) -> bool {
    dir.join(OsStr::new(".git")).is_ok_and(|path| lower.exists(&path).unwrap_or(true))
}

/// True if something has that name; what cannot be determined counts as there.
pub(in crate::overlay) fn is_there(lower: &Tree, path: &str) -> bool {
    RelPath::parse(path.as_bytes()).is_ok_and(|path| lower.exists(&path).unwrap_or(true))
}

impl ProjectFile {
    fn read(lower: &Tree, source: &RuleSource) -> Result<Option<Self>, PolicyError> {
        let text = match read_below(lower, PROJECT_FILE, FILE_BYTES_MAX)? {
            Some(text) => text,
            // Rules that are kept elsewhere, behind a link, are not taken for none.
            None if is_there(lower, PROJECT_FILE) => return Err(PolicyError::NoFile),
            None => return Ok(None),
        };
        let digest = Digest::of(&text);
        let trusted = source.trusted_file.as_ref().map_or(Ok(None), |path| source.read_outside(lower, path))?;
        let is_trusted = is_trusted(&trusted.unwrap_or_default(), &source.project, digest);
        Ok(Some(Self { text, digest, is_trusted }))
    }
}

impl RuleSource {
    /// The text of a file of the user's own, which nothing in the view can have written; `None` if there is no such file.
    fn read_outside(&self, lower: &Tree, path: &Path) -> Result<Option<Vec<u8>>, PolicyError> {
        let failed = |cause| PolicyError::Read { what: path.display().to_string(), cause };
        let resolved = match std::fs::canonicalize(path) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            resolved => resolved.map_err(failed)?,
        };
        match self.is_inside(lower, &resolved) {
            true => Err(PolicyError::Inside(path.display().to_string())),
            false => std::fs::read(&resolved).map(Some).map_err(failed),
        }
    }

    /// True if a resolved path leads into the project or its view: by its name, or because a directory above it is the
    /// project's root under another name.
    pub fn is_inside(&self, lower: &Tree, path: &Path) -> bool {
        let named = path.starts_with(&self.project) && !self.project.as_os_str().is_empty();
        let viewed = self.view.as_ref().is_some_and(|view| path.starts_with(view));
        named || viewed || path.ancestors().skip(1).any(|dir| is_root_of(lower, dir))
    }
}

fn is_root_of(lower: &Tree, dir: &Path) -> bool {
    let root = lower.stat(&RelPath::root()).ok().flatten();
    let root = root.map(|meta| meta.number());
    std::fs::metadata(dir).is_ok_and(|dir| root == Some((dir.dev(), dir.ino())))
}

pub(in crate::overlay) fn read_below(lower: &Tree, path: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, PolicyError> {
    let failed = |cause| PolicyError::Read { what: path.to_owned(), cause };
    let parsed = RelPath::parse(path.as_bytes()).map_err(|err| failed(std::io::Error::other(err)))?;
    read_path(lower, &parsed, bytes_max).map_err(failed)
}

/// A regular file's content; `None` if there is nothing, or something that is not a regular file.
fn read_path(lower: &Tree, path: &RelPath, bytes_max: u64) -> std::io::Result<Option<Vec<u8>>> {
    match lower.stat(path)? {
        Some(meta) if meta.is_file() => {
            let file = std::fs::File::from(lower.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
            // Something else may have been put there meanwhile.
            file.metadata()?.is_file().then(|| file::read_all(&file, bytes_max)).transpose()
        }
        _ => Ok(None),
    }
}
