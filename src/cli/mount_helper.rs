//! The program under the name `mount.fuse.fettlefs`, which mount(8) starts for the type `fuse.fettlefs` (SPEC §2).
//!
//! Arguments and statuses are those that mount(8) prescribes for such helpers; the work is that of `fettlefs mount`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use super::desk::Format;
use super::mount::{Audience, Ground, MountArgs, SettingFlags};
use super::{Desk, Failure, failure, mount_start};
use crate::protocol::{ErrorCode, Exit};

const NAMES: [&str; 2] = ["mount.fuse.fettlefs", "mount.fettlefs"];

/// Exit statuses of mount(8).
const DONE: u8 = 0;
/// For a call that makes no sense, or one without permission.
const REFUSED: u8 = 1;
const NOT_MOUNTED: u8 = 32;

/// Mount a project's view, as mount(8) asks for it
#[derive(Parser)]
#[command(name = NAMES[0], version, disable_help_subcommand = true)]
struct Arguments {
    /// The project's directory
    project: PathBuf,
    /// Where the view appears; the project itself for over it
    mountpoint: PathBuf,
    /// Mount options
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type that mount(8) was asked for
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Look at everything and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Pass over mount options that mean nothing here
    #[arg(short = 's')]
    sloppy: bool,
    /// Say what was mounted
    #[arg(short = 'v')]
    verbose: bool,
    /// Read-only, as `-o ro`
    #[arg(short = 'r', overrides_with = "read_write")]
    read_only: bool,
    /// As `-o rw`
    #[arg(short = 'w')]
    read_write: bool,
    /// There is no table of mounts but the kernel's: always so
    #[arg(short = 'n')]
    no_table: bool,
    /// Refused: mount from within that namespace
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// True if the program was called by the name of the helper.
pub fn is_called(argv: &[OsString]) -> bool {
    let name = argv.first().and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|own| name == OsStr::new(own)))
}

/// The grammar, for the helper's manual page.
pub fn described() -> clap::Command {
    Arguments::command()
}

/// Returns the status to end with, as mount(8) defines it.
pub fn run(argv: &[OsString]) -> u8 {
    let arguments = match Arguments::try_parse_from(argv) {
        Ok(arguments) => arguments,
        Err(err) => {
            return match failure::report_usage(&err, argv) {
                Exit::Done => DONE,
                _ => REFUSED,
            };
        }
    };
    match mount(&arguments) {
        Ok(()) => DONE,
        Err(failure) => {
            Desk::new(None, Format::Human).report(&failure);
            status(&failure)
        }
    }
}

fn mount(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(other) = arguments.fs_type.as_deref().filter(|name| !["fuse.fettlefs", "fettlefs"].contains(name)) {
        return Err(Failure::usage(format!("type {other:?} is not ours: fuse.fettlefs")));
    }
    if let Some(namespace) = &arguments.namespace {
        let message = format!("-N {namespace:?}: no other mount namespace is entered; `nsenter -m -t PID mount` does");
        return Err(Failure::usage(message));
    }
    let typed = typed(arguments);
    match arguments.fake {
        true => mount_start::rehearse(typed)?,
        false => mount_start::start(typed)?,
    }
    if arguments.verbose {
        let (project, point) = (arguments.project.display(), arguments.mountpoint.display());
        let is = if arguments.fake { "could be" } else { "is" };
        mount_start::say(format_args!("{project} {is} mounted on {point}"));
    }
    Ok(())
}

fn typed(arguments: &Arguments) -> MountArgs {
    let mut options = mount_start::words_of(&arguments.options);
    if arguments.sloppy {
        options.retain(|word| mount_start::is_known_option(word));
    }
    match (arguments.read_only, arguments.read_write) {
        (true, _) => options.push("ro".to_owned()),
        (_, true) => options.push("rw".to_owned()),
        (false, false) => {}
    }
    MountArgs {
        project: arguments.project.clone(),
        mountpoint: Some(arguments.mountpoint.clone()),
        ground: Ground::Background,
        audience: Audience::Everyone,
        options,
        settings: SettingFlags::default(),
    }
}

fn status(failure: &Failure) -> u8 {
    match failure {
        Failure::Told(body) if matches!(body.code, ErrorCode::BadRequest | ErrorCode::NotPermitted) => REFUSED,
        Failure::Told(_) | Failure::Print(_) => NOT_MOUNTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Arguments {
        Arguments::try_parse_from([&["mount.fuse.fettlefs"], words].concat()).expect("words of mount(8)")
    }

    #[test]
    fn it_is_known_by_its_name_wherever_it_stands() {
        for (program, want) in [
            ("/sbin/mount.fuse.fettlefs", true),
            ("mount.fuse.fettlefs", true),
            ("/usr/sbin/mount.fettlefs", true),
            ("/usr/bin/fettlefs", false),
            ("/srv/mount.fuse.fettlefs/fettlefs", false),
        ] {
            assert_eq!(is_called(&[program.into()]), want, "{program}");
        }
        assert!(!is_called(&[]));
    }

    #[test]
    fn flags_come_in_any_order_and_ro_counts_whichever_way_it_is_said() {
        let words = ["/p", "/m", "-nsv", "-o", "noauto,user,x-gvfs-show", "-t", "fuse.fettlefs", "-r"];
        let typed = typed(&parsed(&words));
        assert_eq!((typed.project, typed.mountpoint), ("/p".into(), Some("/m".into())));
        assert_eq!(typed.options, ["noauto", "user", "x-gvfs-show", "ro"]);
        assert_eq!(super::typed(&parsed(&["-r", "-w", "/p", "/m"])).options, ["rw"]);
    }

    #[test]
    fn a_comma_in_quotes_parts_no_words() {
        let words = ["/p", "/m", "-o", r#"ro,comment="a,b",noexec"#, "-o", r#"x-a="c,d"#];
        assert_eq!(typed(&parsed(&words)).options, ["ro", r#"comment="a,b""#, "noexec", r#"x-a="c,d"#]);
    }

    #[test]
    fn only_a_sloppy_mount_passes_over_what_it_does_not_know() {
        let words = ["/p", "/m", "-o", "noexec,umask=022"];
        assert_eq!(typed(&parsed(&words)).options, ["noexec", "umask=022"]);
        assert_eq!(typed(&parsed(&[&words[..], &["-s"]].concat())).options, ["noexec"]);
        // What is known and makes no sense is no matter of taste.
        assert_eq!(typed(&parsed(&["/p", "/m", "-s", "-o", "watches=all"])).options, ["watches=all"]);
    }
}
