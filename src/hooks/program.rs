//! Resolves a program named in the settings to the file that will be run.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Where a name without a slash is looked up. Fixed, instead of the caller's `PATH`, which may lead into the project or
/// differ at the next mount.
const SEARCHED: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A command that may be asked. Invariant: `file` is absolute and has no symlink in it, and when it was resolved it was
/// neither in the project nor in its view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    file: PathBuf,
    arguments: Vec<String>,
}

/// The reason why a command cannot be asked. Every message names the command.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{0}: a program is named by its absolute path, or by a name found in {searched}", searched = SEARCHED.join(", "))]
    Relative(String),
    #[error("{0}: there is no such program")]
    Missing(String),
    #[error("{0} is in the project, where what is to be judged could change it; keep it elsewhere")]
    Inside(String),
    #[error("{0} cannot be run: it is no file, or not executable")]
    NotExecutable(String),
    #[error("{0}, or a directory above it, can be written by everybody on this machine")]
    Exposed(String),
    #[error("{name}: {cause}")]
    Unreadable { name: String, cause: std::io::Error },
}

/// Permission bits: someone may execute it; everybody may write to it; only owners may remove its entries.
const EXECUTABLE: u32 = 0o111;
const WORLD_WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// How many interpreters the kernel follows from one script to the next, how much it reads of each, and how many links
/// it follows on one path.
const INTERPRETERS_MAX: usize = 5;
const SCRIPT_LINE_BYTES: u64 = 256;
const LINKS_MAX: usize = 40;

impl Program {
    /// `command` is a program and its arguments, never empty; `is_inside` tells whether programs in the view can
    /// write to a resolved path.
    pub fn resolve(command: &[String], is_inside: impl Fn(&Path) -> bool) -> Result<Self, ProgramError> {
        let (name, arguments) = command.split_first().ok_or_else(|| ProgramError::Missing(String::new()))?;
        let file = locate(name)?;
        if is_inside(&file) {
            return Err(ProgramError::Inside(name.clone()));
        }
        check_mode(name, &file)?;
        check_interpreters(&file, &is_inside)?;
        // Catches a script passed to an interpreter. Any other meaning of an argument is up to the program.
        match arguments.iter().find(|argument| leads_inside(argument, &is_inside)) {
            Some(argument) => Err(ProgramError::Inside(argument.clone())),
            None => Ok(Self { file, arguments: arguments.to_vec() }),
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// The name by which people know the program.
    pub(super) fn name(&self) -> String {
        self.file.file_name().unwrap_or(OsStr::new("")).to_string_lossy().into_owned()
    }
}

fn locate(name: &str) -> Result<PathBuf, ProgramError> {
    if name.starts_with('/') {
        return resolved(name, Path::new(name))?.ok_or_else(|| ProgramError::Missing(name.to_owned()));
    }
    if name.contains('/') {
        return Err(ProgramError::Relative(name.to_owned()));
    }
    for directory in SEARCHED {
        if let Some(found) = resolved(name, &Path::new(directory).join(name))? {
            return Ok(found);
        }
    }
    Err(ProgramError::Missing(name.to_owned()))
}

/// A script is run by the program that its first line names, which may be a script in turn. These must not be changed
/// either, and are looked up by the kernel each time: no link on the way may lie in the project.
fn check_interpreters(script: &Path, is_inside: &impl Fn(&Path) -> bool) -> Result<(), ProgramError> {
    let mut script = script.to_owned();
    for _ in 0..INTERPRETERS_MAX {
        let Some((interpreter, arguments)) = interpreter_of(&script) else { return Ok(()) };
        if !interpreter.starts_with('/') {
            return Err(ProgramError::Relative(interpreter));
        }
        let words = std::iter::once(&interpreter).chain(&arguments);
        if let Some(word) = words.into_iter().find(|word| leads_inside(word, is_inside)) {
            return Err(ProgramError::Inside(word.clone()));
        }
        // A script without its interpreter cannot be run, and what cannot be asked holds everything.
        let Some(file) = resolved(&interpreter, Path::new(&interpreter))? else { return Ok(()) };
        check_mode(&interpreter, &file)?;
        script = file;
    }
    Ok(())
}

/// Returns the program that runs a script, and the words that follow; `None` for what is no script, or may only be
/// executed.
fn interpreter_of(script: &Path) -> Option<(String, Vec<String>)> {
    let mut line = Vec::new();
    std::fs::File::open(script).ok()?.take(SCRIPT_LINE_BYTES).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?;
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    // A name that is no UTF-8 is compared as it is shown: no file of that name is found.
    let line = String::from_utf8_lossy(line);
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty()).map(str::to_owned);
    Some((words.next()?, words.collect()))
}

/// True if an absolute path, or a link on the way to what it names, lies in the project. The last step alone would not
/// tell: a link in the project can be made to lead elsewhere.
fn leads_inside(word: &str, is_inside: &impl Fn(&Path) -> bool) -> bool {
    if !word.starts_with('/') {
        return false;
    }
    let mut left: Vec<OsString> = names_of(Path::new(word)).rev().collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        at.push(&name);
        if is_inside(&at) {
            return true;
        }
        let Ok(target) = std::fs::read_link(&at) else { continue };
        links += 1;
        if links > LINKS_MAX {
            return false;
        }
        at.pop();
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names_of(&target).rev());
    }
    false
}

/// The names on a path, `..` included.
fn names_of(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn resolved(name: &str, path: &Path) -> Result<Option<PathBuf>, ProgramError> {
    match std::fs::canonicalize(path) {
        Ok(resolved) => Ok(Some(resolved)),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ProgramError::Unreadable { name: name.to_owned(), cause }),
    }
}

fn check_mode(name: &str, file: &Path) -> Result<(), ProgramError> {
    let meta = std::fs::metadata(file);
    let meta = meta.map_err(|cause| ProgramError::Unreadable { name: name.to_owned(), cause })?;
    let mode = meta.permissions().mode();
    if !meta.is_file() || mode & EXECUTABLE == 0 {
        return Err(ProgramError::NotExecutable(name.to_owned()));
    }
    match mode & WORLD_WRITABLE == 0 && !file.ancestors().skip(1).any(is_replaceable_in) {
        true => Ok(()),
        false => Err(ProgramError::Exposed(name.to_owned())),
    }
}

/// Whether everybody could replace an entry of `directory`.
fn is_replaceable_in(directory: &Path) -> bool {
    let mode = std::fs::metadata(directory).map(|meta| meta.permissions().mode());
    mode.is_ok_and(|mode| mode & WORLD_WRITABLE != 0 && mode & STICKY == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(command: &[&str], project: &Path) -> Result<Program, String> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        Program::resolve(&command, |path| path.starts_with(project)).map_err(|err| err.to_string())
    }

    fn executable(path: &Path, mode: u32) {
        std::fs::write(path, "#!/bin/sh\n").expect("a file");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn what_runs_a_script_is_outside_as_well() {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = scratch.path().canonicalize().expect("a path");
        let project = root.join("project");
        std::fs::create_dir(&project).expect("a directory");
        let script = |name: &str, first: &str| {
            executable(&root.join(name), 0o755);
            std::fs::write(root.join(name), format!("#!{first}\n")).expect("a script");
        };
        // As in a virtual environment: what is in the project leads out of it, for now.
        std::os::unix::fs::symlink("/bin/sh", project.join("sh")).expect("a link");
        std::os::unix::fs::symlink("project", root.join("linked")).expect("a link");
        let at = |name: &str| root.join(name).display().to_string();
        script("direct", &at("project/sh"));
        script("spaced", &format!(" \t{} -e", at("linked/sh")));
        script("chained", &at("direct"));
        script("argument", &format!("/usr/bin/env -S {}", at("project/sh")));
        script("dotted", &at("project/../project/sh"));
        script("relative", "sh");
        script("exposed", &at("open"));
        executable(&root.join("open"), 0o757);
        script("itself", &at("itself"));
        for name in ["direct", "spaced", "chained", "argument", "dotted"] {
            let err = resolve(&[&at(name)], &project).expect_err(name);
            assert!(err.contains("is in the project"), "{name}: {err}");
        }
        assert!(resolve(&[&at("relative")], &project).expect_err("not absolute").contains("absolute path"));
        assert!(resolve(&[&at("exposed")], &project).expect_err("exposed").contains("by everybody"));
        let err = resolve(&["sh", &at("linked/sh")], &project).expect_err("a link in the project");
        assert!(err.contains("is in the project"), "{err}");
        for first in ["/bin/sh -e", "/usr/bin/env sh", "/nothing/there", ""] {
            script("fine", first);
            assert!(resolve(&[&at("fine")], &project).is_ok(), "{first}");
        }
        assert!(resolve(&[&at("itself")], &project).is_ok(), "the kernel does not run it");
    }

    #[test]
    fn a_program_is_an_executable_file_outside() {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = scratch.path().canonicalize().expect("a path");
        let project = root.join("project");
        std::fs::create_dir(&project).expect("a directory");
        let (outside, inside) = (root.join("hook"), project.join("hook"));
        executable(&outside, 0o755);
        executable(&inside, 0o755);
        std::os::unix::fs::symlink(&inside, root.join("link")).expect("a link");
        executable(&root.join("plain"), 0o644);
        executable(&root.join("exposed"), 0o757);
        for (directory, mode) in [("open", 0o777), ("sticky", 0o1777)] {
            let directory = root.join(directory);
            std::fs::create_dir(&directory).expect("a directory");
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).expect("a mode");
            executable(&directory.join("hook"), 0o755);
        }
        let path = |name: &str| root.join(name).display().to_string();

        let program = resolve(&[&path("hook"), "--strict", "x y"], &project).expect("it can be asked");
        assert_eq!((program.file(), program.arguments().len(), program.name().as_str()), (&*outside, 2, "hook"));
        assert!(resolve(&[&path("sticky/hook")], &project).is_ok(), "as in /tmp");
        assert!(resolve(&["sh"], &project).expect("in /bin or /usr/bin").file().is_absolute());
        for (command, want) in [
            (vec!["./hook".to_owned()], "a program is named by its absolute path"),
            (vec!["tools/hook".to_owned()], "a program is named by its absolute path"),
            (vec!["no-such-program-here".to_owned()], "there is no such program"),
            (vec![path("nothing")], "there is no such program"),
            (vec![path("project/hook")], "is in the project"),
            (vec![path("link")], "is in the project"),
            (vec![path("project/../project/hook")], "is in the project"),
            (vec!["sh".to_owned(), path("project/hook")], "is in the project"),
            (vec!["sh".to_owned(), path("link")], "is in the project"),
            (vec![path("plain")], "cannot be run"),
            (vec![path("project/..")], "cannot be run"),
            (vec![path("exposed")], "can be written by everybody"),
            (vec![path("open/hook")], "can be written by everybody"),
        ] {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let err = resolve(&words, &project).expect_err("it must be refused");
            assert!(err.contains(want) && err.contains(words.last().expect("a word")), "{command:?}: {err}");
        }
    }
}
