use std::sync::mpsc;
use std::time::Duration;

use super::*;

/// Nothing but a hang takes so long.
const HANG: Duration = Duration::from_secs(60);

fn full() -> Error {
    Error::Io { doing: "write".to_owned(), cause: io::Error::from_raw_os_error(libc::ENOSPC) }
}

/// Fails so many times.
fn full_at_first(times: &mut u32) -> Result<()> {
    match *times {
        0 => Ok(()),
        _ => {
            *times -= 1;
            Err(full())
        }
    }
}

#[test]
fn who_works_in_the_room_is_let_into_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let reserve = Reserve::open(File::open(dir.path()).unwrap().into());
        let room = || std::fs::metadata(&path).unwrap().len();
        let mut whole = 1;
        let worked = reserve.vitally(|| {
            full_at_first(&mut whole)?;
            let mut part = 1;
            reserve.vitally(|| full_at_first(&mut part))?;
            reserve.refill();
            assert!(room() < RESERVE_BYTES, "the whole still works in it");
            Ok(())
        });
        worked.unwrap();
        assert_eq!(room(), RESERVE_BYTES);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(HANG).expect("it ends, and well");
}

#[test]
fn what_is_too_much_is_given_back_once_nobody_works_in_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let reserve = Reserve::open(File::open(dir.path()).unwrap().into());
    let room = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
    reserve.cover(PIECE_BYTES);
    assert!(reserve.is_whole() && room() == RESERVE_BYTES + PIECE_BYTES);
    let in_use = reserve.enter();
    std::thread::scope(|threads| threads.spawn(|| reserve.cover(0)).join().unwrap());
    assert!(!reserve.is_whole());
    drop(in_use);
    reserve.refill();
    assert!(reserve.is_whole() && room() == RESERVE_BYTES);
}
