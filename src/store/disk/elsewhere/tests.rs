use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

fn owner(inode: u64, device: u64, file_system: u64, path: &str) -> Owner {
    Owner { inode, btime: Timestamp::default(), device, file_system, path: DirPath(path.into()) }
}

#[test]
fn a_state_directory_is_known_where_it_was_moved_or_renumbered_and_its_copies_are_not() {
    let noted = owner(7, 1, 11, "/p/.fettle");
    for (now, want, what) in [
        (owner(7, 1, 11, "/p/.fettle"), true, "as it was"),
        (owner(7, 1, 11, "/q/.fettle"), true, "moved"),
        (owner(7, 2, 11, "/p/.fettle"), true, "under another device number"),
        (owner(8, 1, 11, "/q/.fettle"), false, "copied"),
        (owner(8, 1, 11, "/p/.fettle"), false, "copied, to where the original was"),
        (owner(7, 2, 12, "/snapshot/.fettle"), false, "a snapshot"),
        (owner(7, 2, 11, "/clone/.fettle"), false, "on a copied disk"),
        (owner(7, 2, 12, "/p/.fettle"), false, "on another file system"),
        (
            Owner { btime: Timestamp { seconds: 1, nanoseconds: 0 }, ..owner(7, 1, 11, "/p/.fettle") },
            false,
            "made anew",
        ),
    ] {
        assert_eq!(noted.is(&now), want, "{what}");
    }
}

#[test]
fn an_owner_is_noted_as_before_and_by_any_path() {
    let noted = r#"{"inode":7,"btime":{"seconds":0,"nanoseconds":0},"device":1,"file_system":11,"path":"/p"}"#;
    assert_eq!(serde_json::to_string(&owner(7, 1, 11, "/p")).unwrap(), noted);
    for path in [&b"/p"[..], b"/\xff/.fettle"] {
        let owner = Owner { path: DirPath(OsStr::from_bytes(path).into()), ..owner(7, 1, 11, "") };
        let noted = serde_json::to_vec(&owner).unwrap();
        assert_eq!(serde_json::from_slice::<Owner>(&noted).unwrap(), owner);
    }
}
