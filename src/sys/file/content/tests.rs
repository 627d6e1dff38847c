use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const MIB: u64 = 1 << 20;

/// Bytes, each with the offset at which they stand.
type Data<'a> = &'a [(u64, &'a [u8])];

/// A file of `size` bytes with these, and holes between.
fn file(size: u64, data: Data) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(size).unwrap();
    data.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).unwrap());
    file
}

/// The same bytes without holes.
fn filled(size: u64, data: Data) -> File {
    let mut bytes = vec![0; size as usize];
    data.iter().for_each(|(offset, part)| bytes[*offset as usize..][..part.len()].copy_from_slice(part));
    file(size, &[(0, &bytes)])
}

/// What somebody makes of a file without any room: holes around the places where a block, a piece or a file begins or ends.
const LAYOUTS: [(u64, Data); 8] = [
    (0, &[]),
    (1, &[(0, b"x")]),
    (MIB + 17, &[]),
    (MIB, &[(4095, b"ab")]),
    (MIB + 1, &[(MIB, b"x")]),
    (3 * MIB, &[(0, b"begin"), (262_143, b"ab"), (2 * MIB, b"middle")]),
    (70 * MIB + 9, &[(68 * MIB, b"x")]),
    (70 * MIB + 9, &[(0, b"x"), (70 * MIB + 8, b"y")]),
];

#[test]
fn a_hole_is_hashed_and_compared_as_the_zeros_that_it_is() {
    for (size, data) in LAYOUTS {
        let (sparse, whole) = (file(size, data), filled(size, data));
        let want = Digest::of(&read_all(&whole, 100 * MIB).unwrap());
        assert_eq!((digest(&sparse).unwrap(), digest(&whole).unwrap()), (want, want), "{size} {data:?}");
        assert!(same_content(&sparse, &whole).unwrap() && same_content(&whole, &sparse).unwrap(), "{size} {data:?}");
        assert!(same_content(&sparse, &file(size, data)).unwrap());
    }
    for (number, (size, data)) in LAYOUTS.iter().enumerate() {
        for (size_of_other, of_other) in &LAYOUTS[number + 1..] {
            let (one, other) = (file(*size, data), file(*size_of_other, of_other));
            assert!(!same_content(&one, &other).unwrap() && !same_content(&other, &one).unwrap(), "{size} {data:?}");
        }
    }
}

/// What a program makes of a file, at the moment at which it is read.
#[test]
fn no_file_is_read_past_what_was_allowed_for() {
    let small = filled(10, &[(0, b"begin")]);
    let before = Meta::of(small.as_fd()).unwrap();
    small.set_len(1 << 40).unwrap();
    let err = read_about(&small, 10, 100).unwrap_err();
    assert!(has_changed_meanwhile(&err), "{err}");
    assert_eq!(read_all(&small, 100).unwrap_err().to_string(), "larger than 100 bytes");
    let to = file(0, &[]);
    let err = copy_bytes(&small, &before, &to).unwrap_err();
    assert!(has_changed_meanwhile(&err), "{err}");
    assert_eq!(read_all(&to, 100).unwrap(), b"begin\0\0\0\0\0");
}

fn copy(of: &File) -> File {
    let copy = file(0, &[]);
    copy_content(of, &copy).unwrap();
    copy
}

#[test]
fn each_takes_the_place_of_each_whatever_holes_they_have() {
    for (size, data) in LAYOUTS {
        for (size_before, before) in LAYOUTS {
            let new = file(size, data);
            for old in [file(size_before, before), filled(size_before, before)] {
                let was = file(size_before, before);
                for was in [None, Some(&was)] {
                    let old = copy(&old);
                    overwrite(&new, &Overwritten { file: &old, was, written: &Cell::default() }).unwrap();
                    assert!(same_content(&new, &old).unwrap(), "{size_before} {before:?} became {size} {data:?}");
                }
            }
        }
    }
}

/// Whatever he wrote and wherever: it is found before it is written over, and stays when what was written is taken back.
#[test]
fn what_somebody_writes_to_a_file_that_is_written_over_stays() {
    for ((size, data), (size_before, before)) in LAYOUTS.into_iter().flat_map(|one| LAYOUTS.map(|other| (one, other))) {
        for theirs in [0, size_before / 2, size_before.saturating_sub(1), size_before] {
            let (new, was) = (file(size, data), file(size_before, before));
            let found = copy(&was);
            found.write_all_at(b"theirs", theirs).unwrap();
            let (expected, written) = (copy(&found), Cell::default());
            let to = Overwritten { file: &found, was: Some(&was), written: &written };
            let is_found = overwrite(&new, &to).is_err_and(|err| has_changed_meanwhile(&err));
            assert!(is_found, "{theirs} of {size_before} {before:?}, {size} {data:?}");
            take_back(&new, &to, &was).unwrap();
            assert!(same_content(&found, &expected).unwrap(), "{theirs} of {size_before} {before:?}, {size} {data:?}");
        }
    }
}

#[test]
fn what_takes_no_room_takes_no_time() {
    let size = 10 << 40;
    let one = file(size, &[(5 << 40, b"middle")]);
    let copy = copy(&one);
    assert!(same_content(&one, &copy).unwrap());
    assert_eq!(digest(&one).unwrap(), digest(&copy).unwrap());
    overwrite(&file(size, &[]), &Overwritten { file: &copy, was: None, written: &Cell::default() }).unwrap();
    assert!(!same_content(&one, &copy).unwrap());
    assert_ne!(digest(&one).unwrap(), digest(&copy).unwrap());
    assert!(copy.metadata().unwrap().blocks() * 512 < MIB);
}

/// What is copied behind its own end goes on growing.
#[test]
fn a_file_that_somebody_writes_to_while_it_is_copied_is_told_apart_from_a_failure() {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().write_all_at(&vec![b'x'; MIB as usize], 0).unwrap();
    let behind = File::options().append(true).open(named.path()).unwrap();
    let err = copy_content(named.as_file(), &behind).unwrap_err();
    assert!(has_changed_meanwhile(&err), "{err}");
    let unreadable = File::options().write(true).open(named.path()).unwrap();
    assert!(!has_changed_meanwhile(&copy_content(&unreadable, &file(0, &[])).unwrap_err()));
}

/// Who writes goes through the file again and again: behind each piece it appends a byte, so that no two moments have the
/// same size.
#[test]
fn what_is_copied_while_others_write_to_it_was_there_at_one_moment() {
    const PIECE: u64 = 64 << 10;
    const PIECES: u64 = 24;
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().write_all_at(&vec![0; (PIECE * PIECES) as usize], 0).unwrap();
    let ends = AtomicBool::new(false);
    let write = || {
        let grown = (0..).take_while(|_| !ends.load(Ordering::SeqCst));
        for step in grown {
            let (round, piece) = (step / PIECES + 1, step % PIECES);
            named.as_file().write_all_at(&vec![round as u8; PIECE as usize], piece * PIECE).unwrap();
            named.as_file().write_all_at(b"x", PIECE * PIECES + step).unwrap();
        }
    };
    let copies = || {
        let copies = std::iter::repeat_with(|| {
            let copy = file(0, &[]);
            copy_of_one_moment(named.as_file(), &copy).map(|()| read_at(&copy, 0, (PIECE * PIECES) as usize).unwrap())
        });
        let copies: Vec<_> = copies.take(10).collect();
        ends.store(true, Ordering::SeqCst);
        copies
    };
    let copies = std::thread::scope(|scope| {
        scope.spawn(write);
        copies()
    });
    for copy in copies {
        match copy {
            Ok(copied) => {
                assert!(copied.is_sorted_by(|before, after| before == after || *before == after.wrapping_add(1)))
            }
            Err(err) => assert!(has_changed_meanwhile(&err), "{err}"),
        }
    }
}

#[test]
fn a_file_that_grows_is_copied_as_it_was() {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().write_all_at(&vec![b'x'; MIB as usize], 0).unwrap();
    let ends = AtomicBool::new(false);
    let copies: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut behind = File::options().append(true).open(named.path()).unwrap();
            while !ends.load(Ordering::SeqCst) {
                behind.write_all(b"more").unwrap();
            }
        });
        let copies = (0..20).map(|_| {
            let copy = file(0, &[]);
            copy_of_one_moment(named.as_file(), &copy).map(|()| copy)
        });
        let copies = copies.collect();
        ends.store(true, Ordering::SeqCst);
        copies
    });
    for copy in copies {
        assert!(begins_with(named.as_file(), &copy.unwrap()).unwrap());
    }
}

/// Eight sectors and a bit of the one, over ten and a bit of the other.
#[test]
fn what_is_left_of_one_content_written_over_another_is_told_from_an_edit() {
    let (one, other) = ([b'1'; 4100], [b'2'; 5300]);
    let check = |parts: &[&[u8]], want| {
        let found = file(0, &[(0, &parts.concat())]);
        let [one, other] = [file(0, &[(0, &one)]), file(0, &[(0, &other)])];
        let found = (is_mixture(&found, &one, &other).unwrap(), is_mixture(&found, &other, &one).unwrap());
        assert_eq!(found, (want, want), "{parts:?}");
    };
    check(&[], true);
    check(&[&one], true);
    check(&[&other], true);
    check(&[&one, &other[one.len()..]], true);
    check(&[&other[..512], &one[512..1024], &other[1024..]], true);
    check(&[&one[..512], &[0; 512], &other[1024..2048]], true);
    check(&[&one, &[0; 9000]], true);
    check(&[&other[..511], &one[511..]], false);
    check(&[&one[..600], b"x", &one[601..]], false);
    check(&[&one, b"x"], false);
    check(&[&other, b"x"], false);
    let hole = file(MIB, &[(MIB - 5, b"edit\n")]);
    assert!(!is_mixture(&hole, &file(MIB, &[]), &file(0, &[(0, &one)])).unwrap());
    assert!(is_mixture(&file(MIB, &[]), &hole, &hole).unwrap());
}
