use super::*;

fn owner(inode: u64, device: u64, file_system: u64, path: &str) -> Owner {
    Owner { inode, btime: Timestamp::default(), device, file_system, path: path.into() }
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
