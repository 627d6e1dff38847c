//! The JSON spelling of the words of `model`.
//!
//! A [`RelPath`] becomes two fields, so it is always flattened: `path`, and `path_b64` when it is not UTF-8. The text is
//! then only for people (`\xff` for a byte that is not UTF-8), and `path_b64` is the real path.

use crate::model::{BackupKind, ChangeId, ChangeKind, Digest, Reason, RelPath};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! spelled_by {
    ($($type:ty, $parse:path, $what:literal);+ $(;)?) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not {}", $what)))
            }
        }
    )+ };
}

spelled_by! {
    ChangeId, ChangeId::parse, "an id";
    Digest, Digest::parse, "a SHA-256";
    ChangeKind, ChangeKind::from_name, "a kind of change";
    Reason, Reason::from_name, "a reason to hold";
    BackupKind, BackupKind::from_name, "a kind of backup";
}

/// Writes a time, always with three decimals of a second, so that times sort as text.
pub(super) fn time<S: Serializer>(time: &jiff::Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}

pub(super) fn time_if_any<S: Serializer>(time: &Option<jiff::Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(known) => self::time(known, serializer),
        None => serializer.serialize_none(),
    }
}

#[derive(Serialize, Deserialize)]
struct PathFields {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (path, path_b64) = text_and_base64(self.as_bytes());
        PathFields { path, path_b64 }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = PathFields::deserialize(deserializer)?;
        let bytes = bytes_of(fields.path, fields.path_b64.as_deref()).map_err(D::Error::custom)?;
        Self::parse(&bytes).map_err(D::Error::custom)
    }
}

/// Returns bytes as a JSON string, and also as base64 if the string cannot express them.
pub(super) fn text_and_base64(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (readable(bytes), Some(encode(bytes))),
    }
}

/// Returns the bytes that [`text_and_base64`] was given.
pub(super) fn bytes_of(text: String, base64: Option<&str>) -> Result<Vec<u8>, base64::DecodeError> {
    match base64 {
        Some(base64) => decode(base64),
        None => Ok(text.into_bytes()),
    }
}

/// For counts that are omitted if they are zero.
pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn decode(base64: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(base64)
}

fn readable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}
