//! Python packages of a test, in a virtual environment beside the build's target directory: installed once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

/// A package that brings `jsonschema`; the one that the tests of MCP have anyhow.
pub const WITH_JSON_SCHEMA: &str = "mcp==2.3.0";

/// One at a time: tests run side by side, and each environment is made once.
static MAKING: Mutex<()> = Mutex::new(());

/// The Python of an environment that has `package` (`name==version`). Made at its first use, which needs a network.
#[track_caller]
pub fn python_with(package: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory").join("python");
    let made = beside.join(package.replace("==", "-"));
    let _guard = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !made.exists() {
        fs::create_dir_all(&beside).expect("a directory for Python environments");
        let unfinished = TempDir::new_in(&beside).expect("a directory for a Python environment");
        make(unfinished.path(), package);
        // As a whole: one that was interrupted is none. Another run of the tests may have been first.
        match fs::rename(unfinished.path(), &made) {
            Ok(()) => drop(unfinished.keep()),
            Err(err) => assert!(made.exists(), "{}: {err}", made.display()),
        }
    }
    made.join("bin/python")
}

#[track_caller]
fn make(dir: &Path, package: &str) {
    let steps: [(&Path, &[&str], &str); 2] = [
        (Path::new("python3"), &["-m", "venv", "."], "it needs the Debian package python3-venv"),
        (Path::new("bin/python"), &["-m", "pip", "install", "--quiet", package], "the first time it needs a network"),
    ];
    for (program, args, needs) in steps {
        let program =
            if program.is_relative() && program.starts_with("bin") { dir.join(program) } else { program.into() };
        let output = Command::new(&program).args(args).current_dir(dir).output();
        let output = output.unwrap_or_else(|err| panic!("{}: {err}", program.display()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{} {args:?} for the tests of MCP failed; {needs}:\n{said}",
            program.display()
        );
    }
}
