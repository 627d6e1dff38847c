//! Bytes that anybody may write to the control file: a request or an error, and a request is what its own JSON says.

use fettlefs::protocol::Request;

pub fn check(bytes: &[u8]) {
    let Ok(request) = Request::parse(bytes) else { return };
    // One that is too large to be sent again was not too large to be read: the fields of a target are spelled out.
    let Ok(line) = request.to_line() else { return };
    assert_eq!(Request::parse(&line).as_ref(), Ok(&request));
}
