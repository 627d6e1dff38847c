//! Puts the layers together and starts a mount.

use super::Failure;
use super::mount::MountArgs;
use crate::protocol::ErrorCode;

/// Returns once the view answers, or, in the foreground, once it is gone.
pub fn start(arguments: MountArgs) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Io, format!("mount {}: not built yet", arguments.project.display())))
}
