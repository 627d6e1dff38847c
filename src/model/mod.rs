//! The words of the project as values: paths, ids, hashes, reasons.
//!
//! Nothing here does I/O, reads a clock or knows a layer above it. A value that exists is valid: each newtype has one
//! constructor that checks. Begin with [`RelPath`].

mod acl;
mod change;
mod counted;
mod digest;
mod ends;
mod glob;
mod looks;
mod operation;
mod path;
mod printable;
mod spelled;
mod stamp;
#[cfg(test)]
mod tests;

pub use acl::{Acl, Inherited};
pub use change::{BackupKind, ChangeId, ChangeKind, ID_DIGITS, ID_PREFIX_MIN, IdSide, Reason};
pub use counted::{age, plural};
pub use digest::{ContentHasher, Digest, Hasher, ZERO_BLOCK_BYTES};
pub use ends::{common_prefix, common_suffix};
pub use glob::{Glob, GlobError};
pub use looks::{Looks, Xattr};
pub use operation::OperationId;
pub use path::{NAME_BYTES_MAX, PathError, RelPath};
pub use printable::{escape_content, escape_json, escape_name, is_plain_word, shell_word};
pub use spelled::{Object, Word};
pub use stamp::{Births, InodeKey, Stamp, Timestamp};
