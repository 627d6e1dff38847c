//! What can be answered with no mount present, from the state directory (SPEC §3).

use crate::client::Place;
use crate::protocol::{ErrorBody, ErrorCode, Request, Response};

/// Answers one request under the project's lock.
pub fn answer(place: &Place, request: &Request) -> Response {
    let message = format!("{}: {} is not mounted", request.op, place.root.display());
    Response::failed(ErrorBody::new(ErrorCode::NotMounted, message))
}
