use super::*;
use std::ffi::OsStr;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

#[test]
fn a_path_that_could_leave_the_root_is_refused() {
    for (text, want) in [
        ("/a", PathError::Absolute),
        ("a//b", PathError::Component),
        ("a/../b", PathError::Component),
        ("./a", PathError::Component),
        ("a/", PathError::Component),
        ("a\0b", PathError::Nul),
    ] {
        assert_eq!(RelPath::parse(text.as_bytes()), Err(want), "{text:?}");
    }
    assert_eq!(path("a").join(OsStr::new("b/c")), Err(PathError::Component));
    assert_eq!(path("a").join(OsStr::new(&"n".repeat(256))), Err(PathError::NameTooLong));
}

#[test]
fn paths_sort_by_their_names_one_after_the_other() {
    let long = "x".repeat(70);
    let texts =
        ["", "a", "a/b", "a/b/c", "a-b", "a!", "ab", "b", "\u{1}", &format!("{long}/a"), &format!("{long}-a"), &long];
    let names = |text: &str| text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    for (one, two) in texts.iter().flat_map(|one| texts.iter().map(move |two| (*one, *two))) {
        let order = path(one).cmp(&path(two));
        assert_eq!(order, names(one).cmp(&names(two)), "{one:?} {two:?}");
    }
}

#[test]
fn a_directory_sorts_right_before_what_it_contains() {
    let mut paths = [path("a-b"), path("a/z"), path("a"), path("a/b/c"), path("a.b")];
    paths.sort();
    assert_eq!(paths, [path("a"), path("a/b/c"), path("a/z"), path("a-b"), path("a.b")]);
}

#[test]
fn rebase_moves_only_what_lies_within() {
    for (from, to, subject, want) in [
        ("a", "b", "a/x", Some("b/x")),
        ("a", "b/c", "a", Some("b/c")),
        ("a", "b", "ab/x", None),
        ("", "b", "x", Some("b/x")),
        ("b", "", "b/x", Some("x")),
    ] {
        assert_eq!(path(subject).rebase(&path(from), &path(to)), want.map(path), "{subject} {from}->{to}");
    }
}

#[test]
fn messages_escape_what_a_terminal_would_obey() {
    assert_eq!(RelPath::parse(b"a\x1b[31m\n\xff").unwrap().to_string(), "a\\u{1b}[31m\\n\\xff");
}

#[test]
fn the_root_is_told_as_a_dot() {
    assert_eq!((RelPath::root().to_string(), RelPath::root().shown()), (".".to_owned(), &b"."[..]));
    assert_eq!((path("a/b").to_string(), path("a/b").shown()), ("a/b".to_owned(), &b"a/b"[..]));
}

#[test]
fn an_id_depends_on_path_kind_both_contents_what_they_are_and_looks() {
    let content = |text: &str| IdSide { content: Some(Digest::of(text.as_bytes())), thing: None };
    let (old, new, none) = (content("old"), content("new"), IdSide::default());
    let symlink = |named| IdSide { thing: Some("symlink"), ..named };
    let thing = |word| IdSide { thing: Some(word), ..none };
    let looks = Some(Digest::of(b"looks"));
    let ids = [
        ChangeId::full(&path("a"), ChangeKind::Modify, old, new, None),
        ChangeId::full(&path("b"), ChangeKind::Modify, old, new, None),
        ChangeId::full(&path("a"), ChangeKind::Type, old, new, None),
        ChangeId::full(&path("a"), ChangeKind::Modify, new, old, None),
        ChangeId::full(&path("a"), ChangeKind::Modify, old, none, None),
        ChangeId::full(&path("a"), ChangeKind::Modify, none, old, None),
        ChangeId::full(&path("a"), ChangeKind::Modify, old, new, looks),
        ChangeId::full(&path("a"), ChangeKind::Modify, old, none, new.content),
        ChangeId::full(&path("a"), ChangeKind::Modify, symlink(old), new, None),
        ChangeId::full(&path("a"), ChangeKind::Modify, old, symlink(new), None),
        ChangeId::full(&path("a"), ChangeKind::Structure, none, none, None),
        ChangeId::full(&path("a"), ChangeKind::Structure, none, thing("directory"), None),
        ChangeId::full(&path("a"), ChangeKind::Structure, none, thing("block device 8:0"), None),
        ChangeId::full(&path("a"), ChangeKind::Structure, none, thing("block device 8:1"), None),
    ];
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), ids.len());
}

#[test]
fn looks_differ_in_their_hash_by_each_of_their_values() {
    let xattrs = |pairs: &[(&str, Option<&str>)]| Looks {
        xattrs: pairs
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec())))
            .collect(),
        ..Looks::default()
    };
    let looks = [
        Looks::default(),
        Looks { mode: Some(0), ..Looks::default() },
        Looks { mode: Some(0o755), ..Looks::default() },
        Looks { owner: Some((0, 7)), ..Looks::default() },
        Looks { owner: Some((7, 0)), ..Looks::default() },
        xattrs(&[("user.a", None)]),
        xattrs(&[("user.a", Some(""))]),
        xattrs(&[("user.a", Some("x"))]),
        xattrs(&[("user.b", Some("x"))]),
        xattrs(&[("user.a", Some("x")), ("user.b", Some("x"))]),
    ];
    let digests: std::collections::HashSet<_> = looks.iter().map(Looks::digest).collect();
    assert_eq!((digests.len(), Looks::default().digest()), (looks.len(), None));
}

#[test]
fn digests_survive_their_own_spelling() {
    let digest = Digest::of(b"x");
    assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
    assert_eq!(Digest::parse(&digest.to_string().to_uppercase()), Some(digest));
    for wrong in ["zz".to_owned(), "zz".repeat(32), "+1".repeat(32), "é".repeat(32), "00".repeat(33)] {
        assert_eq!(Digest::parse(&wrong), None, "{wrong}");
    }
}

/// Entries as `getfacl` writes them, in the kernel's format.
fn acl(entries: &[(u16, u16, u32)]) -> Acl {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        [tag.to_le_bytes().as_slice(), &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let bytes = [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat();
    let acl = Acl::parse(&bytes).expect("the kernel's own format");
    assert_eq!(acl.to_bytes(), bytes);
    acl
}

#[test]
fn a_default_list_bounds_the_mode_of_what_is_made() {
    const NONE: u32 = u32::MAX;
    let plain = acl(&[(1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)]);
    assert_eq!(plain.inherited(0o2666), Inherited { mode: 0o2640, access: None });
    assert_eq!(plain.inherited(0o777), Inherited { mode: 0o750, access: None });
    let named = acl(&[(1, 7, NONE), (2, 7, 1234), (4, 7, NONE), (0x10, 7, NONE), (0x20, 4, NONE)]);
    // The group's own entry stays: the mask bounds it.
    let access = acl(&[(1, 6, NONE), (2, 7, 1234), (4, 7, NONE), (0x10, 4, NONE), (0x20, 4, NONE)]);
    assert_eq!(named.inherited(0o646), Inherited { mode: 0o644, access: Some(access) });
}

#[test]
fn what_is_no_access_control_list_is_refused() {
    for bytes in [&b""[..], b"\x02\0\0", b"\x03\0\0\0", b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff"] {
        assert_eq!(Acl::parse(bytes), None, "{bytes:?}");
    }
    assert_eq!(Acl::parse(b"\x02\0\0\0").map(|acl| acl.to_bytes()), Some(b"\x02\0\0\0".to_vec()));
}

#[test]
fn a_list_permits_what_the_kernel_would_and_no_more() {
    let (user_object, user, group_object, group, mask, other) = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20);
    let none = u32::MAX;
    let listed = acl(&[
        (user_object, 6, none),
        (user, 7, 1001),
        (user, 0, 1002),
        (group_object, 4, none),
        (group, 6, 50),
        (mask, 6, none),
        (other, 5, none),
    ]);
    for (uid, groups, is_owners, want, why) in [
        (1001, &[100][..], false, 6, "what is his, but for the mask"),
        (1002, &[50], true, 0, "named and shut out, whatever his groups"),
        (1003, &[100], true, 4, "by the file's own group"),
        (1003, &[50], false, 6, "by a named group"),
        (1003, &[50], true, 6, "by either"),
        (1003, &[100], false, 4, "as one of the rest, less what a group that he may be in has not"),
    ] {
        assert_eq!(listed.permits(uid, groups, is_owners), want, "{why}");
    }
    let shut = acl(&[(user_object, 7, none), (group_object, 0, none), (other, 7, none)]);
    assert_eq!(shut.permits(1003, &[100], false), 0);
}
