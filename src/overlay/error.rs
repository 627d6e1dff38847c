//! Why an operation failed: an errno for the program, words for the log.

use std::io;

use crate::model::RelPath;
use crate::protocol::ErrorCode;
use crate::store;
use crate::sys::file;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An everyday refusal, such as `ENOENT`; nothing to log.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
    /// A permission program refused the operation, which is undone.
    #[error("denied by a permission program")]
    Denied,
    /// Nothing is done yet: the kernel is to look up again what the names stand for, and then repeats the request.
    #[error("the kernel looks again")]
    LooksAgain,
    /// The path was written to at this very moment, or still is; `pid` is the writer, if known.
    #[error("{path} was written to at this very moment")]
    Busy { path: RelPath, pid: Option<u32> },
    /// What we know contradicts itself.
    #[error("internal fault: {0}")]
    Internal(&'static str),
    #[error("{doing}: {cause}")]
    Io { doing: String, cause: io::Error },
    #[error(transparent)]
    Store(#[from] store::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno for the waiting program.
    pub fn code(&self) -> i32 {
        match self {
            Self::Errno(errno) => *errno,
            Self::Denied => libc::EACCES,
            Self::LooksAgain => libc::ESTALE,
            Self::Busy { .. } => libc::EBUSY,
            Self::Internal(_) => libc::EIO,
            Self::Io { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Store(err) => err.errno(),
        }
    }

    /// The code for a client whose request has failed.
    pub fn kind(&self) -> ErrorCode {
        match self {
            Self::Denied => ErrorCode::HookDenied,
            Self::Busy { .. } => ErrorCode::Busy,
            Self::Io { .. } | Self::Store(_) if self.is_written_meanwhile() => ErrorCode::Busy,
            Self::Errno(_) | Self::LooksAgain | Self::Internal(_) | Self::Io { .. } | Self::Store(_) => ErrorCode::Io,
        }
    }

    /// True if what was being copied was written to.
    pub fn is_written_meanwhile(&self) -> bool {
        match self {
            Self::Io { cause, .. } | Self::Store(store::Error::Io { cause, .. }) => file::has_changed_meanwhile(cause),
            Self::Errno(_)
            | Self::Denied
            | Self::LooksAgain
            | Self::Busy { .. }
            | Self::Internal(_)
            | Self::Store(_) => false,
        }
    }

    /// True for what belongs in the log: a fault of the machine or of ours, not of the caller.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Errno(_) | Self::Denied | Self::LooksAgain | Self::Busy { .. })
            && !matches!(self.code(), libc::ENOENT | libc::EEXIST | libc::ENOTEMPTY | libc::ENODATA | libc::ERANGE)
    }
}

/// A refusal below that is simply passed on to the caller, such as `ENOTEMPTY` of a directory.
impl From<io::Error> for Error {
    fn from(err: io::Error) -> Self {
        match err.raw_os_error() {
            Some(errno) => Self::Errno(errno),
            None => Self::Io { doing: "work below".to_owned(), cause: err },
        }
    }
}

/// Adds to an I/O error what was being done.
pub(super) trait Context<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::Io { doing: what(), cause })
    }
}

/// For what consists of several steps: most errors say already what was being done.
impl<T> Context<T> for Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|err| match err {
            Error::Errno(errno) => Error::Io { doing: what(), cause: io::Error::from_raw_os_error(errno) },
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::judge::land::is_unreadable;
    use crate::overlay::review::why_not_landed;

    #[test]
    fn a_denial_is_told_apart_from_a_failure() {
        assert_eq!((Error::Denied.code(), Error::Denied.kind()), (libc::EACCES, ErrorCode::HookDenied));
        let full = Error::Errno(libc::ENOSPC);
        assert_eq!((full.code(), full.kind()), (libc::ENOSPC, ErrorCode::Io));
    }

    /// Of a copy that lost its race, whichever layer made it, a client is told that he may try again.
    #[test]
    fn who_is_written_to_meanwhile_is_busy_and_has_not_failed() {
        let doing = || "keep 2 bytes of content".to_owned();
        let fails = |cause: fn() -> io::Error| {
            [Error::Io { doing: doing(), cause: cause() }, store::Error::Io { doing: doing(), cause: cause() }.into()]
        };
        let told = |err: Error| (err.kind(), why_not_landed(err, "nothing was applied").code);
        let written = fails(file::changed_meanwhile).map(told);
        assert_eq!(written, [(ErrorCode::Busy, ErrorCode::Busy); 2]);
        let broken = fails(|| io::Error::from_raw_os_error(libc::EIO)).map(told);
        assert_eq!(broken, [(ErrorCode::Io, ErrorCode::WriteFailed); 2]);
    }

    #[test]
    fn what_contradicts_itself_is_told_and_logged() {
        let err = Error::Internal("what is held has no id");
        assert_eq!((err.code(), err.kind(), err.is_fault()), (libc::EIO, ErrorCode::Io, true));
        assert_eq!(err.to_string(), "internal fault: what is held has no id");
        assert!(!is_unreadable(&err), "nor is it held as if the old content could not be kept");
    }

    /// What has changed the project is not told as nothing.
    #[test]
    fn what_could_not_be_recorded_is_done() {
        let cause = io::Error::from_raw_os_error(libc::EIO);
        let cause = store::Error::Io { doing: "write to the state database".to_owned(), cause };
        let err = Error::Store(store::Error::Unrecorded(Box::new(cause)));
        let want = "the project has changed and that could not be recorded: write to the state database: \
                    Input/output error (os error 5)";
        assert_eq!(why_not_landed(err, "nothing was applied").message, want);
    }
}
