//! The mounts of fettlefs that this process can see.

use super::{ClientError, place::io_error};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const MOUNTINFO: &str = "/proc/self/mountinfo";
const FETTLE_TYPE: &[u8] = b"fuse.fettlefs";

/// One line of `mountinfo`, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mountpoint: PathBuf,
    pub fs_type: OsString,
    /// For fettlefs the project's path.
    pub source: OsString,
}

/// The mounts of fettlefs, in the order in which they were made.
pub fn fettle_mounts() -> Result<Vec<Mount>, ClientError> {
    let table = std::fs::read(MOUNTINFO).map_err(|cause| io_error("read", Path::new(MOUNTINFO), cause))?;
    Ok(parse_mountinfo(&table).into_iter().filter(|mount| mount.fs_type.as_bytes() == FETTLE_TYPE).collect())
}

/// The lines of `/proc/<pid>/mountinfo` (proc(5)); what does not look like one is left out.
pub fn parse_mountinfo(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mountpoint options [optional fields] - type source superoptions`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    Some(Mount {
        mountpoint: PathBuf::from(unescape(fields.get(4)?)),
        fs_type: unescape(fields.get(separator + 1)?),
        source: unescape(fields.get(separator + 2)?),
    })
}

/// Undoes the kernel's `\040` for blanks, line ends and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        match rest.get(1..4).filter(|_| *byte == b'\\').and_then(octal) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

/// The mountpoint that `directory` lies in, as far as the mount table tells; else the directory itself.
pub(super) fn mountpoint_of(directory: &Path) -> PathBuf {
    let mounts = fettle_mounts().unwrap_or_default();
    let around = mounts.into_iter().map(|mount| mount.mountpoint).filter(|point| directory.starts_with(point));
    around.max_by_key(|point| OsStr::len(point.as_os_str())).unwrap_or_else(|| directory.to_owned())
}
