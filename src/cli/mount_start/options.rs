//! The words of `-o`: those of mount(8) that have a meaning here, and no others.

use super::super::Failure;
use crate::fuse::{Channel, Means, Passing, Watching};
use crate::overlay::Grants;
use crate::sys::mount::{FuseMount, kernel_option};
use std::ffi::OsStr;

/// Options that mount(8) or fstab(5) handle themselves and pass on all the same.
const FOR_OTHERS: [&str; 15] = [
    "defaults", "auto", "noauto", "nofail", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
    "nogroup", "_netdev", "silent", "loud",
];

/// Words that mount(8) assumes unless the other word of the pair is given, and that other word, which they take back.
const DEFAULTS: [(&str, &str); 7] = [
    ("async", "sync"),
    ("atime", "noatime"),
    ("diratime", "nodiratime"),
    ("norelatime", "relatime"),
    ("nostrictatime", "strictatime"),
    ("nolazytime", "lazytime"),
    ("symfollow", "nosymfollow"),
];

/// Prefixes of words that are for others too: `x-` for readers of fstab(5); `user=` is what mount(8) makes of `user`.
const FOR_OTHERS_BEGIN: [&str; 4] = ["x-", "X-", "comment=", "user="];

/// The options given; of two that contradict each other the later wins, as in mount(8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Enforced by the overlay: a mount that the kernel made read-only would have no writable control file.
    pub read_only: bool,
    pub allow_other: bool,
    pub suid: bool,
    pub dev: bool,
    pub noexec: bool,
    /// The daemon reads and writes files under a `pass` rule, as it does where the kernel cannot do so by itself.
    pub nopassthrough: bool,
    pub watching: Watching,
    pub channel: Channel,
    /// Words that the kernel understands.
    pub extra: Vec<String>,
}

/// Whether a word has a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Some,
    None,
}

/// Splits the lists given to `-o` into words. A comma between double quotes is part of a word, as in mount(8).
pub fn words_of(lists: &[String]) -> Vec<String> {
    let split = |list: &'_ String| {
        let mut is_quoted = false;
        let ends_a_word = |letter: char| {
            is_quoted ^= letter == '"';
            letter == ',' && !is_quoted
        };
        list.split(ends_a_word).map(str::to_owned).collect::<Vec<_>>()
    };
    lists.iter().flat_map(split).collect()
}

/// True if a word has a meaning here, even if its value is wrong.
pub fn is_known(word: &str) -> bool {
    !matches!(Options::default().take(word), Ok(Meaning::None))
}

impl Options {
    pub fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        for word in words.iter().filter(|word| !word.is_empty()) {
            if options.take(word)? == Meaning::None {
                return Err(Failure::usage(format!("unknown mount option {word:?}")));
            }
        }
        Ok(options)
    }

    fn take(&mut self, word: &str) -> Result<Meaning, Failure> {
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "passthrough" => self.nopassthrough = false,
            "nopassthrough" => self.nopassthrough = true,
            "rings" => self.channel = Channel::Rings,
            "norings" => self.channel = Channel::Device,
            "watch" => self.watching = Watching::AsManyAsMay,
            "nowatch" => self.watching = Watching::AtMost(0),
            // Always in force.
            "default_permissions" => {}
            _ if let Some((_, other)) = DEFAULTS.iter().find(|(default, _)| *default == word) => {
                self.extra.retain(|said| said != other);
            }
            _ if FOR_OTHERS.contains(&word) || FOR_OTHERS_BEGIN.iter().any(|begin| word.starts_with(begin)) => {}
            _ if let Some(max) = word.strip_prefix("watches=") => {
                let max = max.parse().map_err(|_| Failure::usage(format!("not a number of directories: {word:?}")))?;
                self.watching = Watching::AtMost(max);
            }
            _ if let Some(max) = word.strip_prefix("max_read=")
                && max.parse::<u32>().is_err() =>
            {
                return Err(Failure::usage(format!("not a number of bytes: {word:?}")));
            }
            _ if kernel_option(word).is_some() => self.extra.push(word.to_owned()),
            _ => return Ok(Meaning::None),
        }
        Ok(Meaning::Some)
    }

    pub fn grants(&self) -> Grants {
        let mounter = rustix::process::geteuid();
        let only = (!mounter.is_root()).then(|| mounter.as_raw());
        Grants { suid: self.suid, dev: self.dev, only }
    }

    pub fn means(&self) -> Means {
        // What the kernel writes by itself does not heed that all of the view is synchronous.
        let is_synchronous = self.extra.iter().any(|word| word == "sync");
        let passing = if self.nopassthrough || is_synchronous { Passing::ByDaemon } else { Passing::ByKernel };
        Means { passing, watching: self.watching, channel: self.channel }
    }

    /// `extra` holds the words of [`Self::extra`]. What root mounts is open to other users (SPEC §2).
    pub fn to_mount<'a>(&self, source: &'a OsStr, extra: &'a [&'a str], is_root: bool) -> FuseMount<'a> {
        FuseMount {
            allow_other: self.allow_other || is_root,
            default_permissions: true,
            suid: self.suid,
            dev: self.dev,
            noexec: self.noexec,
            extra,
            ..FuseMount::new(source)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        let words: Vec<_> = words.split(',').map(str::to_owned).collect();
        Options::parse(&words).map_err(|failure| match failure {
            Failure::Told(body) => body.message,
            Failure::Print(err) => err.to_string(),
        })
    }

    #[test]
    fn words_of_mount_8_are_taken_and_unknown_ones_refused_by_name() {
        let none = Options::default();
        for (words, want) in [
            ("", Ok(none.clone())),
            ("ro", Ok(Options { read_only: true, ..none.clone() })),
            ("ro,rw", Ok(none.clone())),
            ("suid,dev", Ok(Options { suid: true, dev: true, ..none.clone() })),
            ("suid,nosuid", Ok(none.clone())),
            ("nopassthrough", Ok(Options { nopassthrough: true, ..none.clone() })),
            ("nopassthrough,passthrough", Ok(none.clone())),
            ("watches=100", Ok(Options { watching: Watching::AtMost(100), ..none.clone() })),
            ("rings", Ok(Options { channel: Channel::Rings, ..none.clone() })),
            ("rings,norings", Ok(none.clone())),
            ("watches=100,nowatch", Ok(Options { watching: Watching::AtMost(0), ..none.clone() })),
            ("nowatch,watch", Ok(none.clone())),
            ("watches=all", Err("not a number of directories: \"watches=all\"".to_owned())),
            ("defaults,nofail,x-systemd.automount,default_permissions", Ok(none.clone())),
            ("noauto,user=alice,_netdev,X-mount.mkdir,comment=mine", Ok(none.clone())),
            ("noexec,allow_other", Ok(Options { noexec: true, allow_other: true, ..none.clone() })),
            ("atime,diratime,norelatime,nostrictatime,nolazytime,symfollow,async", Ok(none.clone())),
            ("nosymfollow,noatime,symfollow,atime", Ok(none.clone())),
            ("noatime,sync", Ok(Options { extra: vec!["noatime".into(), "sync".into()], ..none })),
            ("ro,nonsense", Err("unknown mount option \"nonsense\"".to_owned())),
            ("subtype=x", Err("unknown mount option \"subtype=x\"".to_owned())),
        ] {
            assert_eq!(parse(words), want, "{words}");
        }
    }
}
