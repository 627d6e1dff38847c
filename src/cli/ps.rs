//! `fettlefs ps`: the mounts there are.

use super::{Desk, Failure};
use crate::client::fettle_mounts;
use crate::protocol::Exit;
use crate::sys::mount::MountEntry;
use std::os::unix::ffi::OsStrExt;

/// List the mounts of fettlefs
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(Arguments {}: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mounts = fettle_mounts()?;
    let listed: Vec<_> = mounts.iter().map(json).collect();
    desk.answer_value(serde_json::json!({"v": 1, "ok": true, "mounts": listed}), |text| {
        for mount in &mounts {
            text.name(mount.source.as_bytes()).put("  on  ").name(mount.mountpoint.as_os_str().as_bytes()).put("\n");
        }
    })?;
    Ok(Exit::Done)
}

fn json(mount: &MountEntry) -> serde_json::Value {
    serde_json::json!({"project": mount.source.to_string_lossy(), "mountpoint": mount.mountpoint.to_string_lossy()})
}
